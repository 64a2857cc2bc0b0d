// tests/support/llama_reference.h: libllama on the same GGUF, the independent reference.
//
//   shapes   outermost first
//   threads  one owner
//   source   llama.h
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "ggml.h"

struct llama_model;
struct llama_context;

namespace headstart::test {

struct ReferenceOptions {
  uint32_t n_ctx = 1024;
  uint32_t n_threads = 1;            // waiting threads of ggml spin, and tests run side by side
  uint32_t n_ubatch = 512;           // most tokens computed in one graph
  ggml_type type_k = GGML_TYPE_F16;  // f16 or q8_0
  ggml_type type_v = GGML_TYPE_F16;
};

class LlamaReference {
 public:
  // Flash attention on; sliding-window layers keep the whole context, so K,V lie as in a model
  // without windows and only the mask differs. Errors: kUnsupported (libllama refuses the file).
  static Result<std::unique_ptr<LlamaReference>> open(const std::filesystem::path& gguf,
                                                      const ReferenceOptions& options = {});
  ~LlamaReference();
  LlamaReference(const LlamaReference&) = delete;
  LlamaReference& operator=(const LlamaReference&) = delete;

  uint32_t n_vocab() const;
  std::vector<Token> encode(std::string_view text, bool add_special, bool parse_special) const;
  std::string decode(std::span<const Token> tokens) const;

  // Logits of the last n_row positions of a fresh prefill, [n_row, n_vocab].
  std::vector<float> logits(std::span<const Token> tokens, size_t n_row);

  // The n tokens of highest logit that follow a fresh prefill of `prompt`, each decoded alone; an
  // end-of-text token does not stop. `logits`, if given, receives what each was picked from,
  // [n, n_vocab].
  std::vector<Token> greedy(std::span<const Token> prompt, uint32_t n,
                            std::vector<float>* logits = nullptr);

  const llama_model* handle() const { return model_; }

 private:
  LlamaReference(llama_model* model, llama_context* context);
  void decode_batch(std::span<const Token> tokens, uint32_t pos_first, size_t n_row);

  llama_model* model_;
  llama_context* context_;
};

}  // namespace headstart::test
