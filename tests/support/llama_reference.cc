#include "tests/support/llama_reference.h"

#include <cstring>

#include "llama.h"
#include "tests/support/compare.h"

namespace headstart::test {
namespace {

void quiet() {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
}

llama_context_params context_params(const ReferenceOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.n_ctx;
  params.n_batch = options.n_ctx;
  params.n_ubatch = options.n_ubatch;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(options.n_threads);
  params.type_k = options.type_k;
  params.type_v = options.type_v;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.swa_full = true;
  return params;
}

}  // namespace

Result<std::unique_ptr<LlamaReference>> LlamaReference::open(const std::filesystem::path& gguf,
                                                             const ReferenceOptions& options) {
  quiet();
  llama_model* model = llama_model_load_from_file(gguf.c_str(), llama_model_default_params());
  if (model == nullptr) {
    return Error{Code::kUnsupported, "libllama does not load " + gguf.string()};
  }
  llama_context* context = llama_init_from_model(model, context_params(options));
  if (context == nullptr) {
    llama_model_free(model);
    return Error{Code::kUnsupported, "libllama makes no context for " + gguf.string()};
  }
  return std::unique_ptr<LlamaReference>(new LlamaReference(model, context));
}

LlamaReference::LlamaReference(llama_model* model, llama_context* context)
    : model_(model), context_(context) {}

LlamaReference::~LlamaReference() {
  llama_free(context_);
  llama_model_free(model_);
}

uint32_t LlamaReference::n_vocab() const {
  return static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_)));
}

std::vector<Token> LlamaReference::encode(std::string_view text, bool add_special,
                                          bool parse_special) const {
  std::vector<Token> tokens(text.size() + 8);
  const int32_t n = llama_tokenize(llama_model_get_vocab(model_), text.data(),
                                   static_cast<int32_t>(text.size()), tokens.data(),
                                   static_cast<int32_t>(tokens.size()), add_special, parse_special);
  HS_CHECK(n >= 0, "libllama needs more tokens than bytes");
  tokens.resize(static_cast<size_t>(n));
  return tokens;
}

std::string LlamaReference::decode(std::span<const Token> tokens) const {
  std::string text(tokens.size() * 64 + 64, '\0');
  const int32_t n = llama_detokenize(llama_model_get_vocab(model_), tokens.data(),
                                     static_cast<int32_t>(tokens.size()), text.data(),
                                     static_cast<int32_t>(text.size()), false, false);
  HS_CHECK(n >= 0, "a token is longer than 64 bytes");
  text.resize(static_cast<size_t>(n));
  return text;
}

void LlamaReference::decode_batch(std::span<const Token> tokens, uint32_t pos_first, size_t n_row) {
  llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
  batch.n_tokens = static_cast<int32_t>(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = static_cast<llama_pos>(pos_first + i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = i + n_row >= tokens.size();
  }
  const int32_t failed = llama_decode(context_, batch);
  llama_batch_free(batch);
  HS_CHECK(failed == 0, "llama_decode failed: the prompt does not fit into n_ctx");
}

std::vector<float> LlamaReference::logits(std::span<const Token> tokens, size_t n_row) {
  HS_CHECK(n_row <= tokens.size(), "more rows than tokens");
  llama_memory_clear(llama_get_memory(context_), true);
  decode_batch(tokens, 0, n_row);
  std::vector<float> result(n_row * n_vocab());
  std::memcpy(result.data(), llama_get_logits(context_), result.size() * sizeof(float));
  return result;
}

std::vector<Token> LlamaReference::greedy(std::span<const Token> prompt, uint32_t n,
                                          std::vector<float>* logits) {
  llama_memory_clear(llama_get_memory(context_), true);
  std::vector<Token> generated;
  std::span<const Token> step = prompt;
  uint32_t pos = 0;
  while (generated.size() < n) {
    decode_batch(step, pos, 1);
    pos += static_cast<uint32_t>(step.size());
    const std::span<const float> row(llama_get_logits_ith(context_, -1), n_vocab());
    if (logits != nullptr) logits->insert(logits->end(), row.begin(), row.end());
    generated.push_back(static_cast<Token>(best_two(row).first));
    step = std::span(generated).last(1);
  }
  return generated;
}

}  // namespace headstart::test
