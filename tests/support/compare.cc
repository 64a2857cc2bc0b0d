#include "tests/support/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "base/check.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::test {
namespace {

double log_sum_exp(std::span<const float> row) {
  const double top = *std::ranges::max_element(row);
  double sum = 0;
  for (float value : row) sum += std::exp(value - top);
  return top + std::log(sum);
}

}  // namespace

BestTwo best_two(std::span<const float> row) {
  HS_CHECK(row.size() >= 2, "two logits at least");
  BestTwo best = {0, 1, 0};
  if (row[1] > row[0]) std::swap(best.first, best.second);
  for (size_t i = 2; i < row.size(); ++i) {
    if (row[i] > row[best.first]) {
      best.second = best.first;
      best.first = i;
    } else if (row[i] > row[best.second]) {
      best.second = i;
    }
  }
  best.margin = row[best.first] - row[best.second];
  return best;
}

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  HS_CHECK(p.size() == q.size(), "rows of one length");
  const double norm_p = log_sum_exp(p), norm_q = log_sum_exp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - norm_p;
    sum += std::exp(log_p) * (log_p - (q[i] - norm_q));
  }
  return std::max(sum, 0.0);
}

std::string LogitDistance::to_string() const {
  std::array<char, 256> line;
  std::snprintf(line.data(), line.size(),
                "%zu rows: %s, max |d| %.3g (rms %.3g), KL mean %.3g max %.3g, top-1 differs in "
                "%zu (margin up to %.3g)",
                n_row,
                !finite     ? "NOT FINITE"
                : bit_equal ? "equal bits"
                            : "other bits",
                max_abs, rms, kl_mean, kl_max, n_top1_differs, margin_max);
  return line.data();
}

LogitDistance compare_logits(std::span<const float> reference, std::span<const float> got,
                             size_t n_vocab) {
  HS_CHECK(reference.size() == got.size() && reference.size() % n_vocab == 0,
           "logits of one shape");
  LogitDistance distance;
  distance.n_row = reference.size() / n_vocab;
  distance.bit_equal = std::memcmp(reference.data(), got.data(), got.size_bytes()) == 0;
  double squares = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(double{reference[i]} - double{got[i]});
    if (!std::isfinite(reference[i]) || !std::isfinite(got[i])) distance.finite = false;
    distance.max_abs = std::max(distance.max_abs, difference);
    squares += double{reference[i]} * reference[i];
  }
  distance.rms = std::sqrt(squares / static_cast<double>(reference.size()));
  for (size_t row = 0; row < distance.n_row; ++row) {
    const auto p = reference.subspan(row * n_vocab, n_vocab);
    const auto q = got.subspan(row * n_vocab, n_vocab);
    const double kl = distance.bit_equal ? 0.0 : kl_divergence(p, q);
    distance.kl_max = std::max(distance.kl_max, kl);
    distance.kl_mean += kl / static_cast<double>(distance.n_row);
    const BestTwo best = best_two(p);
    if (best.first == best_two(q).first) continue;
    ++distance.n_top1_differs;
    distance.margin_max = std::max(distance.margin_max, double{best.margin});
  }
  return distance;
}

std::vector<Token> random_tokens(uint64_t seed, size_t n, uint32_t n_vocab) {
  HS_CHECK(n_vocab > kTinyVocabMin, "a vocabulary without plain tokens");
  std::mt19937_64 random(seed);
  std::vector<Token> tokens(n);
  const auto first = static_cast<uint64_t>(kTinyImEnd) + 1;
  for (Token& token : tokens) token = static_cast<Token>(first + random() % (n_vocab - first));
  return tokens;
}

const char* const kProse =
    "The history of computing is longer than the history of computing hardware. Early devices such "
    "as the abacus helped merchants add and subtract, while the astrolabe let navigators work out "
    "the height of the sun above the horizon. In the seventeenth century, Blaise Pascal built a "
    "mechanical calculator to help his father with taxes, and Gottfried Leibniz improved it so "
    "that it could multiply and divide. Charles Babbage designed the Difference Engine in the "
    "1820s and later the Analytical Engine, which had a mill, a store and a way of reading "
    "instructions from punched cards. Ada Lovelace wrote notes on the machine that many people "
    "regard as the first published program. The twentieth century brought electromechanical "
    "relays, then vacuum tubes, and then transistors. Alan Turing described a universal machine in "
    "1936, and during the war his colleagues at Bletchley Park used electronic machines to break "
    "codes. In 1945 John von Neumann set down the stored-program idea that most computers still "
    "follow today. Integrated circuits made machines smaller and cheaper, and by 1971 Intel could "
    "sell a whole processor on a single chip. Personal computers arrived in homes during the "
    "1980s, the web spread through the 1990s, and phones became the most common computers of all "
    "in the 2010s. Today, language models with billions of parameters run in data centres, but "
    "engineers want to run them on small devices that sit close to the people who use them. That "
    "is difficult because memory is short, because bandwidth is limited, and because batteries do "
    "not last forever. In this essay, I will explain";

}  // namespace headstart::test
