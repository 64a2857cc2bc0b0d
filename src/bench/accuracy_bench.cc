// How far our kernels and libllama's are from f32 arithmetic on the same weights.
//
// The reference is libllama on a copy of the model whose weights are dequantised to f32, with f32
// K,V: an implementation and a file of its own.
#include <llama.h>

#include "bench/divergence.h"
#include "bench/documents.h"
#include "bench/model_benches.h"
#include "bench/requantize.h"
#include "bench/scratch_dir.h"
#include "exec/executor_choice.h"
#include "exec/kv_shape.h"
#include "kv/live_kv.h"
#include "model/llama_log.h"
#include "model/tokenizer.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kTokens = 608;
constexpr uint32_t kRows = 304;  // of the last positions

using Logits = std::vector<float>;  // [kRows, n_vocab]

Result<void> write_f32_model(const std::filesystem::path& from, const std::filesystem::path& to) {
  const uint64_t need = std::filesystem::file_size(from) * 8;
  if (std::filesystem::space(to.parent_path()).available < need) {
    return Error{Code::kExhausted, to.parent_path().string() + " has no room for " +
                                       std::to_string(need >> 20) +
                                       " MiB of f32 weights; set TMPDIR to a larger disk"};
  }
  return requantize(from, to, LLAMA_FTYPE_ALL_F32);
}

Result<Logits> libllama_logits(const std::filesystem::path& path, std::span<const Token> tokens,
                               ggml_type type_kv, uint32_t n_threads) {
  const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
      llama_model_load_from_file(path.c_str(), llama_model_default_params()), &llama_model_free);
  if (model == nullptr) return Error{Code::kIo, "libllama cannot load " + path.string()};
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 1024;
  params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(n_threads);
  params.type_k = params.type_v = type_kv;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(
      llama_init_from_model(model.get(), params), &llama_free);
  if (context == nullptr) return Error{Code::kExhausted, "libllama cannot make a context"};
  const auto n_vocab =
      static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get())));
  Logits logits;
  for (uint32_t first = 0; first < tokens.size(); first += kRows) {
    llama_batch batch = llama_batch_init(kRows, 0, 1);
    batch.n_tokens = kRows;
    for (uint32_t i = 0; i < kRows; ++i) {
      batch.token[i] = tokens[first + i];
      batch.pos[i] = static_cast<llama_pos>(first + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = first > 0;
    }
    HS_CHECK(llama_decode(context.get(), batch) == 0, "libllama decodes");
    for (uint32_t i = 0; i < kRows && first > 0; ++i) {
      const float* row = llama_get_logits_ith(context.get(), static_cast<int32_t>(i));
      logits.insert(logits.end(), row, row + n_vocab);
    }
    llama_batch_free(batch);
  }
  return logits;
}

Result<Logits> our_logits(const std::filesystem::path& path, std::span<const Token> tokens,
                          exec::NumericClass numeric_class, const BenchOptions& o) {
  HS_ASSIGN_OR_RETURN(const auto prefill, kernels::prefill_ops(o.operands));
  HS_ASSIGN_OR_RETURN(const auto model, model::Model::open(path));
  const model::ModelParams& p = model->params();
  exec::RopeTables tables(p);
  HS_ASSIGN_OR_RETURN(
      const auto executor,
      exec::open_executor(*model, tables,
                          {.n_threads = o.n_threads, .n_token_max = kRows, .prefill = prefill}));
  HS_ASSIGN_OR_RETURN(const auto kv, kv::LiveKv::open(exec::kv_shape_of(p), kv::LiveType::kF16,
                                                      kv::LiveType::kF16, 1024));
  Logits all, logits;
  for (uint32_t first = 0; first < tokens.size();) {
    const bool wanted = first >= tokens.size() - kRows;
    exec::LayerStep s;
    s.numeric_class = wanted ? numeric_class : exec::NumericClass::kPrefill;
    const uint32_t n = s.numeric_class == exec::NumericClass::kPrefill ? kRows : 1;
    std::vector<uint32_t> positions(n);
    for (uint32_t i = 0; i < n; ++i) positions[i] = first + i;
    s.layer_end = p.n_layer;
    s.tokens = tokens.subspan(first, n);
    s.positions = positions;
    s.sequences = {{n, kv.get()}};
    s.want_logits = wanted ? exec::WantLogits::kAll : exec::WantLogits::kNone;
    s.logits = &logits;
    HS_RETURN_IF_ERROR(executor->run(s));
    if (wanted) all.insert(all.end(), logits.begin(), logits.end());
    first += n;
  }
  return all;
}

Result<std::vector<Token>> prose(const std::filesystem::path& model) {
  const std::filesystem::path files[] = {"/usr/share/common-licenses/GPL-3"};
  HS_ASSIGN_OR_RETURN(const auto tokenizer, model::Tokenizer::open(model));
  return tokens_of(files, *tokenizer, kTokens);
}

}  // namespace

Result<std::vector<Row>> bench_accuracy(const BenchOptions& o) {
  model::quiet_libllama();
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    const ScratchDir dir;
    const std::filesystem::path f32 = dir.path() / path.filename();
    HS_RETURN_IF_ERROR(write_f32_model(path, f32));
    HS_ASSIGN_OR_RETURN(const auto tokens, prose(path));
    HS_ASSIGN_OR_RETURN(const Logits reference,
                        libllama_logits(f32, tokens, GGML_TYPE_F32, o.n_threads));
    HS_ASSIGN_OR_RETURN(const Logits theirs,
                        libllama_logits(path, tokens, GGML_TYPE_F16, o.n_threads));
    const size_t n_vocab = reference.size() / kRows;
    const double their_kl = mean_kl(reference, theirs, n_vocab);
    for (const auto& [name, numeric_class] : {std::pair{"prefill", exec::NumericClass::kPrefill},
                                              {"decode", exec::NumericClass::kDecode}}) {
      HS_ASSIGN_OR_RETURN(const Logits ours, our_logits(path, tokens, numeric_class, o));
      rows.push_back(paired_row(std::string("KL to f32, ") + name + ", against libllama's", path,
                                o.n_threads, "nats", {mean_kl(reference, ours, n_vocab)},
                                {their_kl}));
    }
  }
  return rows;
}

}  // namespace headstart::bench
