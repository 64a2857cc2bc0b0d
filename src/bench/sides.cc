#include "bench/sides.h"

#include <llama.h>

#include "exec/kv_shape.h"
#include "model/llama_log.h"

namespace headstart::bench {

Result<std::unique_ptr<Libllama>> Libllama::open(const std::filesystem::path& path,
                                                 uint32_t n_threads, uint32_t n_ctx, bool repack,
                                                 uint32_t n_sequence) {
  model::quiet_libllama();
  std::unique_ptr<Libllama> l(new Libllama);
  llama_model_params model_params = llama_model_default_params();
  model_params.use_extra_bufts = repack;
  l->model_ = llama_model_load_from_file(path.c_str(), model_params);
  if (l->model_ == nullptr) return Error{Code::kIo, "libllama cannot load " + path.string()};
  llama_context_params params = llama_context_default_params();
  params.n_ctx = n_ctx * n_sequence;
  params.n_seq_max = n_sequence;
  params.n_batch = params.n_ubatch = kBatch;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(n_threads);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.no_perf = true;
  l->context_ = llama_init_from_model(l->model_, params);
  if (l->context_ == nullptr) return Error{Code::kExhausted, "libllama cannot make a context"};
  return l;
}

Libllama::~Libllama() {
  if (context_ != nullptr) llama_free(context_);
  if (model_ != nullptr) llama_model_free(model_);
}

void Libllama::truncate(uint32_t pos) {
  llama_memory_seq_rm(llama_get_memory(context_), -1, static_cast<llama_pos>(pos), -1);
}

void Libllama::decode(std::span<const Place> places) {
  llama_batch batch = llama_batch_init(static_cast<int32_t>(places.size()), 0, 1);
  batch.n_tokens = static_cast<int32_t>(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    batch.token[i] = places[i].token;
    batch.pos[i] = static_cast<llama_pos>(places[i].pos);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = static_cast<llama_seq_id>(places[i].sequence);
    batch.logits[i] = places[i].logits;
  }
  HS_CHECK(llama_decode(context_, batch) == 0, "libllama decodes");
  llama_synchronize(context_);
  llama_batch_free(batch);
}

void Libllama::step(std::span<const Token> tokens, uint32_t pos, bool last, uint32_t sequence) {
  std::vector<Place> places;
  for (size_t i = 0; i < tokens.size(); ++i) {
    places.push_back(
        {tokens[i], pos + static_cast<uint32_t>(i), sequence, last && i + 1 == tokens.size()});
  }
  decode(places);
}

void Libllama::step_together(std::span<const Token> tokens, uint32_t pos) {
  std::vector<Place> places;
  for (const Token token : tokens) {
    places.push_back({token, pos, static_cast<uint32_t>(places.size()), true});
  }
  decode(places);
}

Result<std::unique_ptr<Ours>> Ours::open(const std::filesystem::path& path, uint32_t n_ctx,
                                         const exec::ExecutorOptions& options) {
  std::unique_ptr<Ours> o(new Ours);
  HS_ASSIGN_OR_RETURN(o->model_, model::Model::open(path));
  o->tables_ = std::make_unique<exec::RopeTables>(o->model_->params());
  HS_ASSIGN_OR_RETURN(o->executor_, exec::open_executor(*o->model_, *o->tables_, options));
  const kv::KvShape shape = exec::kv_shape_of(o->model_->params());
  HS_ASSIGN_OR_RETURN(o->kv_,
                      kv::LiveKv::open(shape, kv::LiveType::kF16, kv::LiveType::kF16, n_ctx));
  o->capture_ = std::make_unique<kv::Capture>(shape, options.n_token_max);
  return o;
}

void Ours::step(std::span<const Token> tokens, uint32_t pos, exec::NumericClass numeric_class,
                bool last) {
  std::vector<uint32_t> positions(tokens.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = pos + static_cast<uint32_t>(i);
  capture_->set_start(pos);
  exec::LayerStep s;
  s.layer_end = model_->params().n_layer;
  s.tokens = tokens;
  s.positions = positions;
  s.numeric_class = numeric_class;
  s.sequences = {{static_cast<uint32_t>(tokens.size()), kv_.get(), capture_.get()}};
  s.want_logits = last ? exec::WantLogits::kLast : exec::WantLogits::kNone;
  s.logits = &logits_;
  HS_CHECK(executor_->run(s).ok(), "the executor runs");
}

std::vector<Token> random_tokens(uint32_t n, uint32_t n_vocab) {
  std::vector<Token> tokens(n);
  uint32_t state = 1;
  for (Token& t : tokens) {
    state = state * 1664525u + 1013904223u;
    t = static_cast<Token>((state >> 8) % n_vocab);
  }
  return tokens;
}

}  // namespace headstart::bench
