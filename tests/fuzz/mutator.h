// tests/fuzz/mutator.h: damaged and recombined inputs, the same ones for the same seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace headstart::fuzz {

class Mutator {
 public:
  // `words` are pieces of the format that are worth inserting.
  Mutator(uint64_t seed, std::vector<std::string> corpus, std::vector<std::string> words)
      : random_(seed), corpus_(std::move(corpus)), words_(std::move(words)) {}

  // One to four changes to one of the corpus.
  std::string next() {
    std::string out = pick(corpus_);
    for (size_t n = 1 + below(4); n > 0; --n) change(out);
    return out;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  void change(std::string& s) {
    const size_t at = below(s.size() + 1);
    const size_t n = below(std::min<size_t>(s.size() - at, 40) + 1);
    switch (below(8)) {
      case 0:
        if (at < s.size()) s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
        break;
      case 1: s.insert(at, 1, static_cast<char>(below(256))); break;
      case 2: s.erase(at, n); break;
      case 3: s.insert(at, std::string(s, at, n)); break;
      case 4: s.resize(at); break;
      case 5: s.insert(at, pick(words_)); break;
      case 6: s.replace(at, n, pick(words_)); break;
      case 7: {
        const std::string& other = pick(corpus_);
        s = s.substr(0, at) + other.substr(below(other.size() + 1));
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string> corpus_, words_;
};

}  // namespace headstart::fuzz
