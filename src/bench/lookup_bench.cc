// Decode speed with prompt lookup against without, in the same engine.
#include <algorithm>

#include "bench/documents.h"
#include "bench/model_benches.h"
#include "exec/engine.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kPredict = 128;
constexpr uint32_t kPropose = 7;

struct Task {
  const char* name;
  bool quotes;  // else a letter, sampled at temperature 0.8: small models, greedy, quote themselves
};

constexpr Task kTasks[] = {{"that repeat the prompt", true}, {"of other text, sampled", false}};

struct Decoded {
  exec::Completion completion;
  double tok_s = 0;  // from the first token's text to the end
};

class LookupRun {
 public:
  static Result<LookupRun> open(const std::filesystem::path& model, const BenchOptions& o) {
    exec::EngineOptions e;
    e.model_path = model;
    e.n_threads = o.n_threads;
    e.operands = o.operands;
    e.n_ctx = 1024;
    e.reuse = store::ReuseMode::kOff;
    LookupRun run(model, o);
    HS_ASSIGN_OR_RETURN(run.engine_, exec::Engine::open(e));
    return run;
  }

  Result<std::vector<Row>> run(const Task& task, uint32_t n_repeat) {
    HS_ASSIGN_OR_RETURN(const auto r, request(task));
    std::vector<double> with, without, accepted, proposed;
    for (uint32_t i = 0; i < n_repeat; ++i) {
      Decoded lookup, plain;
      for (const bool looks_up : {i % 2 == 0, i % 2 != 0}) {
        HS_ASSIGN_OR_RETURN((looks_up ? lookup : plain), decode(r, looks_up ? kPropose : 0));
      }
      HS_CHECK(lookup.completion.tokens == plain.completion.tokens, "lookup changes no token");
      with.push_back(lookup.tok_s);
      without.push_back(plain.tok_s);
      accepted.push_back(lookup.completion.n_accepted);
      proposed.push_back(std::max(1u, lookup.completion.n_proposed));
    }
    const std::string name = "decode 128 tokens " + std::string(task.name);
    return std::vector<Row>{
        paired_row(name + ", against without lookup", model_, o_.n_threads,
                   std::string("tok/s ") + time_kind(o_.n_threads), with, without),
        paired_row(name + ", accepted against proposed", model_, o_.n_threads, "tokens", accepted,
                   proposed)};
  }

 private:
  LookupRun(const std::filesystem::path& model, const BenchOptions& o) : model_(model), o_(o) {}

  Result<exec::CompletionRequest> request(const Task& task) const {
    const model::Tokenizer& tokenizer = engine_->tokenizer();
    HS_ASSIGN_OR_RETURN(std::string text, documents(tokenizer, 400));
    HS_ASSIGN_OR_RETURN(const std::string heading, documents(tokenizer, 150));
    text = text.substr(heading.size());
    exec::CompletionRequest r;
    // Two copies and the start of a third: even the smallest model goes on copying.
    const std::string prompt =
        task.quotes ? text + "\n\n" + text + "\n\n" + text.substr(0, 60)
                    : text + "\n\nA letter from a sailor to his mother:\n\nDear mother,";
    r.tokens = tokenizer.encode(prompt, true, false);
    r.n_predict = kPredict;
    r.sampling.temperature = task.quotes ? 0.0f : 0.8f;
    return r;
  }

  Result<Decoded> decode(exec::CompletionRequest r, uint32_t n_propose_max) {
    r.n_propose_max = n_propose_max;
    double first_s = 0;
    r.on_text = [&](std::string_view) {
      if (first_s == 0) first_s = now_s(o_.n_threads);
      return true;
    };
    Decoded decoded;
    HS_ASSIGN_OR_RETURN(decoded.completion, engine_->complete(r));
    const auto n_token = static_cast<double>(decoded.completion.tokens.size()) - 1;
    decoded.tok_s = n_token / (now_s(o_.n_threads) - first_s);
    return decoded;
  }

  std::filesystem::path model_;
  BenchOptions o_;
  std::unique_ptr<exec::Engine> engine_;
};

}  // namespace

Result<std::vector<Row>> bench_lookup(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(auto run, LookupRun::open(path, o));
    for (const Task& task : kTasks) {
      HS_ASSIGN_OR_RETURN(const auto found, run.run(task, o.n_repeat != 0 ? o.n_repeat : 3));
      rows.insert(rows.end(), found.begin(), found.end());
    }
  }
  return rows;
}

}  // namespace headstart::bench
