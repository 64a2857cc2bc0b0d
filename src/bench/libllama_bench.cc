// Prefill and decode speed of our executor against libllama from the same source.
#include <llama.h>

#include "base/rounding.h"
#include "bench/model_benches.h"
#include "exec/executor_choice.h"
#include "exec/kv_shape.h"
#include "kv/capture.h"
#include "model/llama_log.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kContextMin = 8704;
constexpr uint32_t kBatch = 512;

// The reference: one llama_context, cleared before every prompt.
class Libllama {
 public:
  static Result<std::unique_ptr<Libllama>> open(const std::filesystem::path& path,
                                                uint32_t n_threads, uint32_t n_ctx) {
    model::quiet_libllama();
    std::unique_ptr<Libllama> l(new Libllama);
    l->model_ = llama_model_load_from_file(path.c_str(), llama_model_default_params());
    if (l->model_ == nullptr) return Error{Code::kIo, "libllama cannot load " + path.string()};
    llama_context_params params = llama_context_default_params();
    params.n_ctx = n_ctx;
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
  // Forgets the tokens from `pos` on.
  void truncate(uint32_t pos) {
    llama_memory_seq_rm(llama_get_memory(context_), 0, static_cast<llama_pos>(pos), -1);
  }
  // One batch, logits of the last token only where it ends the prompt.
  void step(std::span<const Token> tokens, uint32_t pos, bool last) {
    llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
    batch.n_tokens = static_cast<int32_t>(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      batch.token[i] = tokens[i];
      batch.pos[i] = static_cast<llama_pos>(pos + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = last && i + 1 == tokens.size();
    }
    HS_CHECK(llama_decode(context_, batch) == 0, "libllama decodes");
    llama_synchronize(context_);
    llama_batch_free(batch);
  }

 private:
  Libllama() = default;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
};

// Our side: the executor as the engine drives it, K,V captured for the store.
class Ours {
 public:
  static Result<std::unique_ptr<Ours>> open(const std::filesystem::path& path, uint32_t n_threads,
                                            uint32_t n_ctx) {
    std::unique_ptr<Ours> o(new Ours);
    HS_ASSIGN_OR_RETURN(o->model_, model::Model::open(path));
    o->tables_ = std::make_unique<exec::RopeTables>(o->model_->params());
    HS_ASSIGN_OR_RETURN(o->executor_,
                        exec::open_executor(*o->model_, *o->tables_, {n_threads, kBatch}));
    const model::ModelParams& p = o->model_->params();
    const kv::KvShape shape = exec::kv_shape_of(p);
    HS_ASSIGN_OR_RETURN(o->kv_,
                        kv::LiveKv::open(shape, kv::LiveType::kF16, kv::LiveType::kF16, n_ctx));
    o->capture_ = std::make_unique<kv::Capture>(shape, kBatch);
    return o;
  }
  uint32_t n_vocab() const { return model_->params().n_vocab; }
  void step(std::span<const Token> tokens, uint32_t pos, exec::NumericClass numeric_class,
            bool last) {
    std::vector<uint32_t> positions(tokens.size());
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = pos + static_cast<uint32_t>(i);
    capture_->set_start(pos);
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

 private:
  Ours() = default;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<exec::RopeTables> tables_;
  std::unique_ptr<exec::LayerExecutor> executor_;
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

// Steps both sides through the same tokens, turn about, and adds up their seconds: whatever else
// the machine does meets both alike.
class Race {
 public:
  static Result<std::unique_ptr<Race>> open(const std::filesystem::path& model,
                                            const BenchOptions& o) {
    std::unique_ptr<Race> race(new Race(model, o));
    uint32_t n_ctx = kContextMin;
    for (const uint32_t n : o.rows) n_ctx = std::max(n_ctx, pad_to(n + kBatch, kBatch));
    HS_ASSIGN_OR_RETURN(race->theirs_, Libllama::open(model, o.n_threads, n_ctx));
    HS_ASSIGN_OR_RETURN(race->ours_, Ours::open(model, o.n_threads, n_ctx));
    return race;
  }

  Row run(const std::string& name, uint32_t n_prefix, uint32_t n_token, uint32_t n_step,
          uint32_t n_repeat) {
    const auto tokens = random_tokens(n_prefix + n_token, ours_->n_vocab());
    std::vector<double> values, references;
    theirs_->truncate(0);
    steps(std::span(tokens).first(n_prefix), 0, kBatch, false);
    for (uint32_t i = 0; i < n_repeat; ++i) {
      ours_s_ = theirs_s_ = 0;
      theirs_->truncate(n_prefix);
      steps(std::span(tokens).subspan(n_prefix), n_prefix, n_step, i % 2 == 1);
      values.push_back(n_token / ours_s_);
      references.push_back(n_token / theirs_s_);
    }
    return paired_row(name, model_, o_.n_threads, std::string("tok/s ") + time_kind(o_.n_threads),
                      values, references);
  }

 private:
  Race(const std::filesystem::path& model, const BenchOptions& o) : model_(model), o_(o) {}

  void steps(std::span<const Token> tokens, uint32_t pos, uint32_t n_step, bool theirs_first) {
    const auto numeric_class =
        n_step == 1 ? exec::NumericClass::kDecode : exec::NumericClass::kPrefill;
    for (uint32_t i = 0; i < tokens.size(); i += n_step) {
      const auto part = tokens.subspan(i, std::min<size_t>(n_step, tokens.size() - i));
      const bool last = n_step == 1 || i + part.size() == tokens.size();
      auto ours = [&] {
        ours_s_ +=
            measure_s(o_.n_threads, [&] { ours_->step(part, pos + i, numeric_class, last); });
      };
      if (!theirs_first) ours();
      theirs_s_ += measure_s(o_.n_threads, [&] { theirs_->step(part, pos + i, last); });
      if (theirs_first) ours();
    }
  }

  const std::filesystem::path model_;
  const BenchOptions& o_;
  std::unique_ptr<Libllama> theirs_;
  std::unique_ptr<Ours> ours_;
  double ours_s_ = 0, theirs_s_ = 0;
};

}  // namespace

Result<std::vector<Row>> bench_prefill(const BenchOptions& o) {
  std::vector<Row> rows;
  auto repeat = [&](uint32_t usual) { return o.n_repeat != 0 ? o.n_repeat : usual; };
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(const auto race, Race::open(path, o));
    for (const uint32_t n : o.rows_or({512, 2048, 8000})) {
      const uint32_t usual = n < 2048 ? 7 : n < 8000 ? 3 : 1;
      rows.push_back(
          race->run("prefill " + std::to_string(n) + " tokens, against " + libllama_name(), 0, n,
                    kBatch, repeat(usual)));
    }
    if (!o.rows.empty()) continue;
    rows.push_back(race->run("prefill 16 tokens after 2048, against " + libllama_name(), 2048, 16,
                             16, repeat(7)));
  }
  return rows;
}

Result<std::vector<Row>> bench_decode(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(const auto race, Race::open(path, o));
    for (const uint32_t n_prefix : o.rows_or({512, 8000})) {
      rows.push_back(race->run(
          "decode 64 tokens after " + std::to_string(n_prefix) + ", against " + libllama_name(),
          n_prefix, 64, 1, o.n_repeat != 0 ? o.n_repeat : 5));
    }
  }
  return rows;
}

}  // namespace headstart::bench
