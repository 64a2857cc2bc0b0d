// Several requests at once against one alone, in one engine: streams together, the gaps of a
// running stream while a long prompt arrives, a cold prefix that many share.
#include <algorithm>
#include <atomic>
#include <stop_token>
#include <thread>

#include "bench/documents.h"
#include "bench/model_benches.h"
#include "bench/scratch_dir.h"
#include "bench/sides.h"
#include "exec/engine.h"

namespace headstart::bench {
namespace fs = std::filesystem;
namespace {

constexpr uint32_t kStreams = 4, kSharing = 8;
constexpr uint32_t kDecode = 96;

struct Measured {
  std::vector<double> piece_s;  // when each piece of text arrived
  double start_s = 0;
  double ttft_s() const { return piece_s.empty() ? 0 : piece_s.front() - start_s; }
};

class ParallelRun {
 public:
  static Result<std::unique_ptr<ParallelRun>> open(const fs::path& model, const BenchOptions& o) {
    std::unique_ptr<ParallelRun> run(new ParallelRun);
    exec::EngineOptions e;
    e.model_path = model;
    e.n_threads = o.n_threads;
    e.n_parallel = kSharing;
    e.operands = o.operands;
    e.cache_dir = run->dir_.path() / "kv";
    e.ram_budget_bytes = uint64_t{1} << 30;
    HS_ASSIGN_OR_RETURN(run->engine_, exec::Engine::open(e));
    const model::Tokenizer& tokenizer = run->engine_->tokenizer();
    HS_ASSIGN_OR_RETURN(const std::string text, documents(tokenizer, 4000));
    run->tokens_ = tokenizer.encode(text, true, false);
    return run;
  }

  // Tokens per second of all streams together, and of one.
  Result<std::pair<double, double>> streams() {
    HS_ASSIGN_OR_RETURN(const double one, decode_rate(1));
    HS_ASSIGN_OR_RETURN(const double all, decode_rate(kStreams));
    return std::pair{all, one};
  }

  struct Gaps {
    double p99_s = 0, p99_alone_s = 0;
    double ttft_s = 0, ttft_alone_s = 0;
  };
  // A stream alone; a long prompt alone; the prompt arriving while the stream runs.
  Result<Gaps> gaps() {
    Gaps g;
    HS_ASSIGN_OR_RETURN(const Measured alone,
                        complete(tokens_of_text(200), 2 * kDecode, new_salt()));
    g.p99_alone_s = p99_gap(alone, 0, alone.piece_s.back());
    HS_ASSIGN_OR_RETURN(const Measured prompt_alone, complete(tokens_of_text(4000), 1, new_salt()));
    g.ttft_alone_s = prompt_alone.ttft_s();
    Result<Measured> stream = Measured{};
    std::stop_source enough;
    const std::string stream_salt = new_salt();
    n_piece_ = 0;
    std::atomic<bool> ended = false;
    std::thread running([&] {
      stream = complete(tokens_of_text(200), kStreamTokens, stream_salt, enough.get_token());
      ended = true;
    });
    while (n_piece_ < 16 && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Result<Measured> prompt = complete(tokens_of_text(4000), 1, new_salt());
    enough.request_stop();
    running.join();
    if (!stream.ok()) return stream.error();
    if (!prompt.ok()) return prompt.error();
    g.ttft_s = prompt->ttft_s();
    g.p99_s = p99_gap(*stream, prompt->start_s, prompt->piece_s.front());
    return g;
  }

  // Seconds to the last first token of requests that share a cold prefix of 2048 tokens, and of one
  // of them alone.
  Result<std::pair<double, double>> shared_prefix() {
    HS_ASSIGN_OR_RETURN(const Measured one, complete(with_question(0), 1, new_salt()));
    const double start_s = clock_.now_s();
    HS_ASSIGN_OR_RETURN(const auto all, complete_all(
                                            kSharing, [&](uint32_t i) { return with_question(i); },
                                            1, /*shared_salt=*/true));
    double last_s = 0;
    for (const Measured& m : all) last_s = std::max(last_s, m.piece_s.front() - start_s);
    return std::pair{last_s, one.ttft_s()};
  }

 private:
  // Another one makes the same prompt cold again.
  std::string new_salt() { return std::to_string(n_salt_++); }
  static constexpr uint32_t kStreamTokens = 2000;

  std::vector<Token> tokens_of_text(size_t n) const {
    return {tokens_.begin(), tokens_.begin() + std::min(n, tokens_.size())};
  }
  std::vector<Token> with_question(uint32_t i) const {
    std::vector<Token> tokens = tokens_of_text(2048);
    const auto rest = engine_->tokenizer().encode(
        "\n\nQuestion " + std::to_string(i) + ": what is this text about?\nAnswer:", false, false);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  }

  // Nothing ends the text before n_predict, and a piece is a token, but for a few that are no text.
  Result<Measured> complete(std::vector<Token> tokens, uint32_t n_predict, std::string salt,
                            const std::stop_token& enough = {}) {
    Measured m;
    exec::CompletionRequest r;
    r.tokens = std::move(tokens);
    r.n_predict = n_predict;
    r.sampling.ignore_eos = true;
    r.salt = std::move(salt);
    r.cancel = enough;
    r.on_text = [&](std::string_view) {
      m.piece_s.push_back(clock_.now_s());
      ++n_piece_;
      return true;
    };
    m.start_s = clock_.now_s();
    const auto done = engine_->complete(r);
    if (!done.ok() && done.error().code != Code::kCancelled) return done.error();
    if (m.piece_s.empty()) m.piece_s.push_back(clock_.now_s());
    return m;
  }

  template <class Tokens>
  Result<std::vector<Measured>> complete_all(uint32_t n, const Tokens& tokens, uint32_t n_predict,
                                             bool shared_salt) {
    const std::string salt = new_salt();
    std::vector<Result<Measured>> results(n, Measured{});
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < n; ++i) {
      threads.emplace_back([&, i] {
        results[i] =
            complete(tokens(i), n_predict, shared_salt ? salt : salt + "/" + std::to_string(i));
      });
    }
    for (std::thread& t : threads) t.join();
    std::vector<Measured> all;
    for (auto& r : results) {
      if (!r.ok()) return r.error();
      all.push_back(*std::move(r));
    }
    return all;
  }

  // While all n streams run.
  Result<double> decode_rate(uint32_t n) {
    HS_ASSIGN_OR_RETURN(const auto all, complete_all(
                                            n, [&](uint32_t i) { return tokens_of_text(100 + i); },
                                            kDecode, /*shared_salt=*/false));
    double begin_s = 0, end_s = 1e300;
    for (const Measured& m : all) {
      begin_s = std::max(begin_s, m.piece_s.front());
      end_s = std::min(end_s, m.piece_s.back());
    }
    size_t n_token = 0;
    for (const Measured& m : all) {
      n_token += static_cast<size_t>(
          std::ranges::count_if(m.piece_s, [&](double t) { return t > begin_s && t <= end_s; }));
    }
    return static_cast<double>(n_token) / (end_s - begin_s);
  }

  static double p99_gap(const Measured& m, double begin_s, double end_s) {
    std::vector<double> gaps;
    for (size_t i = 1; i < m.piece_s.size(); ++i) {
      if (m.piece_s[i] > begin_s && m.piece_s[i - 1] <= end_s) {
        gaps.push_back(m.piece_s[i] - m.piece_s[i - 1]);
      }
    }
    if (gaps.empty()) return 0;
    std::ranges::sort(gaps);
    return gaps[std::min(gaps.size() - 1, gaps.size() * 99 / 100)];
  }

  ScratchDir dir_;
  SystemClock clock_;
  std::unique_ptr<exec::Engine> engine_;
  std::vector<Token> tokens_;  // of documents
  std::atomic<uint32_t> n_piece_ = 0;
  uint32_t n_salt_ = 0;
};

// Tokens per second of as many of libllama's sequences, without sampling.
class LibllamaStreams {
 public:
  static Result<std::unique_ptr<LibllamaStreams>> open(const fs::path& model, uint32_t n_threads) {
    std::unique_ptr<LibllamaStreams> streams(new LibllamaStreams);
    HS_ASSIGN_OR_RETURN(streams->libllama_,
                        Libllama::open(model, n_threads, kPrompt + kDecode, true, kStreams));
    return streams;
  }
  double decode_rate(uint32_t n) {
    libllama_->truncate(0);
    const std::vector<Token> prompt(kPrompt, 100);  // any: time does not depend on it
    for (uint32_t i = 0; i < n; ++i) libllama_->step(prompt, 0, true, i);
    const double start_s = clock_.now_s();
    for (uint32_t i = 0; i < kDecode; ++i) {
      libllama_->step_together(std::span(prompt).first(n), kPrompt + i);
    }
    return n * kDecode / (clock_.now_s() - start_s);
  }

 private:
  static constexpr uint32_t kPrompt = 102;
  LibllamaStreams() = default;
  SystemClock clock_;
  std::unique_ptr<Libllama> libllama_;
};

struct Samples {
  std::string name;
  const char* unit;
  std::vector<double> values = {}, references = {};
  void add(double value, double reference) {
    values.push_back(value);
    references.push_back(reference);
  }
};

}  // namespace

Result<std::vector<Row>> bench_parallel(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& model : o.models) {
    HS_ASSIGN_OR_RETURN(const auto run, ParallelRun::open(model, o));
    HS_ASSIGN_OR_RETURN(const auto theirs, LibllamaStreams::open(model, o.n_threads));
    Samples streams{"decode, 4 streams together, against one", "tok/s wall"};
    Samples sides{"decode, 4 streams together, against " + libllama_name(), "tok/s wall"};
    Samples theirs_alone{libllama_name() + ": 4 streams together, against one", "tok/s wall"};
    Samples gap{"p99 gap of a stream while a 4k prompt arrives, against none", "s wall"};
    Samples ttft{"ttft of that prompt, against alone", "s wall"};
    Samples shared{"8 requests, a cold 2k prefix: last first token, against one", "s wall"};
    for (uint32_t i = 0; i < (o.n_repeat != 0 ? o.n_repeat : 3); ++i) {
      HS_ASSIGN_OR_RETURN(const auto rate, run->streams());
      streams.add(rate.first, rate.second);
      const double theirs_together = theirs->decode_rate(kStreams);
      sides.add(rate.first, theirs_together);
      theirs_alone.add(theirs_together, theirs->decode_rate(1));
      HS_ASSIGN_OR_RETURN(const auto gaps, run->gaps());
      gap.add(gaps.p99_s, gaps.p99_alone_s);
      ttft.add(gaps.ttft_s, gaps.ttft_alone_s);
      HS_ASSIGN_OR_RETURN(const auto prefix, run->shared_prefix());
      shared.add(prefix.first, prefix.second);
    }
    for (const Samples& s : {streams, sides, theirs_alone, gap, ttft, shared}) {
      rows.push_back(paired_row(s.name, model, o.n_threads, s.unit, s.values, s.references));
    }
  }
  return rows;
}

}  // namespace headstart::bench
