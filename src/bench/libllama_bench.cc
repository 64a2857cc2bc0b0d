// Prefill and decode speed of our executor against libllama from the same source.
#include <llama.h>

#include "bench/model_benches.h"
#include "exec/ggml_executor.h"
#include "kv/capture.h"
#include "model/llama_log.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kContext = 4096;
constexpr uint32_t kBatch = 512;

// The reference: one llama_context, cleared before every prompt.
class Libllama {
 public:
  static Result<std::unique_ptr<Libllama>> open(const std::filesystem::path& path,
                                                uint32_t n_threads) {
    model::quiet_libllama();
    std::unique_ptr<Libllama> l(new Libllama);
    l->model_ = llama_model_load_from_file(path.c_str(), llama_model_default_params());
    if (l->model_ == nullptr) return Error{Code::kIo, "libllama cannot load " + path.string()};
    llama_context_params params = llama_context_default_params();
    params.n_ctx = kContext;
    params.n_batch = params.n_ubatch = kBatch;
    params.n_threads = params.n_threads_batch = static_cast<int32_t>(n_threads);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.no_perf = true;
    l->context_ = llama_init_from_model(l->model_, params);
    if (l->context_ == nullptr) return Error{Code::kExhausted, "libllama cannot make a context"};
    return l;
  }
  ~Libllama() {
    if (context_ != nullptr) llama_free(context_);
    if (model_ != nullptr) llama_model_free(model_);
  }
  void clear() { llama_memory_clear(llama_get_memory(context_), true); }
  void prefill(std::vector<Token> tokens) {
    for (size_t i = 0; i < tokens.size(); i += kBatch) {
      const size_t n = std::min<size_t>(kBatch, tokens.size() - i);
      const int failed =
          llama_decode(context_, llama_batch_get_one(tokens.data() + i, static_cast<int32_t>(n)));
      HS_CHECK(failed == 0, "libllama decodes");
    }
    llama_synchronize(context_);
  }

 private:
  Libllama() = default;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
};

// Our side: the executor as the engine drives it, K,V captured for the store.
class Ours {
 public:
  static Result<std::unique_ptr<Ours>> open(const std::filesystem::path& path, uint32_t n_threads) {
    std::unique_ptr<Ours> o(new Ours);
    HS_ASSIGN_OR_RETURN(o->model_, model::Model::open(path));
    o->tables_ = std::make_unique<exec::RopeTables>(o->model_->params());
    HS_ASSIGN_OR_RETURN(o->executor_,
                        exec::GgmlExecutor::open(*o->model_, *o->tables_, {n_threads, kBatch}));
    const model::ModelParams& p = o->model_->params();
    const kv::KvShape shape{p.n_layer, p.n_head_kv, p.d_head_k, p.d_head_v};
    HS_ASSIGN_OR_RETURN(o->kv_,
                        kv::LiveKv::open(shape, kv::LiveType::kF16, kv::LiveType::kF16, kContext));
    o->capture_ = std::make_unique<kv::Capture>(shape, kBatch);
    return o;
  }
  uint32_t n_vocab() const { return model_->params().n_vocab; }
  void prefill(std::span<const Token> tokens) {
    for (uint32_t i = 0; i < tokens.size(); i += kBatch) {
      const auto n = std::min<uint32_t>(kBatch, static_cast<uint32_t>(tokens.size()) - i);
      step(tokens.subspan(i, n), i, exec::NumericClass::kPrefill, i + n == tokens.size());
    }
  }
  void decode(Token token, uint32_t pos) {
    step({&token, 1}, pos, exec::NumericClass::kDecode, true);
  }

 private:
  Ours() = default;
  void step(std::span<const Token> tokens, uint32_t pos, exec::NumericClass numeric_class,
            bool last) {
    std::vector<uint32_t> positions(tokens.size());
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = pos + static_cast<uint32_t>(i);
    capture_->restart(pos);
    exec::LayerStep s;
    s.layer_end = model_->params().n_layer;
    s.tokens = tokens;
    s.positions = positions;
    s.numeric_class = numeric_class;
    s.kv = kv_.get();
    s.capture = capture_.get();
    s.want_logits = last ? exec::WantLogits::kLast : exec::WantLogits::kNone;
    s.logits = &logits_;
    HS_CHECK(executor_->run(s).ok(), "the executor runs");
  }
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<exec::RopeTables> tables_;
  std::unique_ptr<exec::GgmlExecutor> executor_;
  std::unique_ptr<kv::LiveKv> kv_;
  std::unique_ptr<kv::Capture> capture_;
  std::vector<float> logits_;
};

std::vector<Token> random_tokens(uint32_t n, uint32_t n_vocab) {
  std::vector<Token> tokens(n);
  uint32_t state = 1;
  for (Token& t : tokens) {
    state = state * 1664525u + 1013904223u;
    t = static_cast<Token>((state >> 8) % n_vocab);
  }
  return tokens;
}

// Alternates the two sides and turns their seconds into tokens per second.
Row compare(const std::string& name, const std::filesystem::path& model, const BenchOptions& o,
            uint32_t n_token, uint32_t n_repeat, const std::function<double()>& ours_s,
            const std::function<double()>& theirs_s) {
  std::vector<double> values, references;
  for (uint32_t i = 0; i < n_repeat; ++i) {
    // Which side goes first changes, so that a drift of the machine favours none.
    const bool ours_first = i % 2 == 0;
    const double a = ours_first ? ours_s() : 0, b = theirs_s(), c = ours_first ? a : ours_s();
    values.push_back(n_token / c);
    references.push_back(n_token / b);
  }
  return paired_row(name, model, o.n_threads, std::string("tok/s ") + time_kind(o.n_threads),
                    values, references);
}

}  // namespace

Result<std::vector<Row>> bench_prefill(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(const auto theirs, Libllama::open(path, o.n_threads));
    HS_ASSIGN_OR_RETURN(const auto ours, Ours::open(path, o.n_threads));
    for (const uint32_t n : {512u, 2048u}) {
      const auto tokens = random_tokens(n, ours->n_vocab());
      ours->prefill(
          std::span(tokens).first(64));  // pages and caches are warm before the first pair
      rows.push_back(compare(
          "prefill " + std::to_string(n) + " tokens, against libllama", path, o, n,
          o.n_repeat != 0 ? o.n_repeat
          : n == 512      ? 7
                          : 3,
          [&] { return measure_s(o.n_threads, [&] { ours->prefill(tokens); }); },
          [&] {
            theirs->clear();
            return measure_s(o.n_threads, [&] { theirs->prefill(tokens); });
          }));
    }
  }
  return rows;
}

Result<std::vector<Row>> bench_decode(const BenchOptions& o) {
  constexpr uint32_t kDepth = 512, kTokens = 64;
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(const auto theirs, Libllama::open(path, o.n_threads));
    HS_ASSIGN_OR_RETURN(const auto ours, Ours::open(path, o.n_threads));
    const auto tokens = random_tokens(kDepth + kTokens, ours->n_vocab());
    const std::vector<Token> prompt(tokens.begin(), tokens.begin() + kDepth);
    ours->prefill(prompt);
    std::vector<double> values, references;
    for (uint32_t i = 0; i < (o.n_repeat != 0 ? o.n_repeat : 7); ++i) {
      theirs->clear();
      theirs->prefill(prompt);
      // Token by token, so that whatever else the machine does meets both sides alike.
      double ours_s = 0, theirs_s = 0;
      for (uint32_t pos = kDepth; pos < kDepth + kTokens; ++pos) {
        ours_s += measure_s(o.n_threads, [&] { ours->decode(tokens[pos], pos); });
        theirs_s += measure_s(o.n_threads, [&] { theirs->prefill({tokens[pos]}); });
      }
      values.push_back(kTokens / ours_s);
      references.push_back(kTokens / theirs_s);
    }
    rows.push_back(paired_row("decode 64 tokens after 512, against libllama", path, o.n_threads,
                              std::string("tok/s ") + time_kind(o.n_threads), values, references));
  }
  return rows;
}

}  // namespace headstart::bench
