// bench/sides.h: what a race is between: an executor of ours and libllama, each as its own program
// would drive it.
//
//   threads  one owner
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "exec/executor_choice.h"
#include "kv/capture.h"
#include "kv/live_kv.h"

struct llama_model;
struct llama_context;

namespace headstart::bench {

inline constexpr uint32_t kBatch = 512;  // most tokens of a step, on both sides

// One llama_context: flash attention on, K,V in f16.
class Libllama {
 public:
  // repack: weights may be copied into the form that suits the CPU, as is usual; else they stay
  // mapped. n_sequence: texts that it may hold at once, each of n_ctx tokens. Errors: kIo,
  // kExhausted.
  static Result<std::unique_ptr<Libllama>> open(const std::filesystem::path& path,
                                                uint32_t n_threads, uint32_t n_ctx,
                                                bool repack = true, uint32_t n_sequence = 1);
  ~Libllama();
  Libllama(const Libllama&) = delete;
  Libllama& operator=(const Libllama&) = delete;
  // Forgets the tokens of every sequence from `pos` on.
  void truncate(uint32_t pos);
  // One batch, logits of the last token only where it ends the prompt.
  void step(std::span<const Token> tokens, uint32_t pos, bool last, uint32_t sequence = 0);
  // One batch of a token for each of the first sequences, all at `pos`, with logits.
  void step_together(std::span<const Token> tokens, uint32_t pos);

 private:
  struct Place {
    Token token;
    uint32_t pos, sequence;
    bool logits;
  };
  Libllama() = default;
  void decode(std::span<const Place> places);
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
};

// The executor as the engine drives it, K,V captured for the store.
class Ours {
 public:
  static Result<std::unique_ptr<Ours>> open(const std::filesystem::path& path, uint32_t n_ctx,
                                            const exec::ExecutorOptions& options);
  uint32_t n_vocab() const { return model_->params().n_vocab; }
  std::string identity() const { return executor_->identity(); }
  void step(std::span<const Token> tokens, uint32_t pos, exec::NumericClass numeric_class,
            bool last);
  const std::vector<float>& logits() const { return logits_; }  // of the last step that ended

 private:
  Ours() = default;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<exec::RopeTables> tables_;
  std::unique_ptr<exec::LayerExecutor> executor_;
  std::unique_ptr<kv::LiveKv> kv_;
  std::unique_ptr<kv::Capture> capture_;
  std::vector<float> logits_;
};

// The same for the same numbers.
std::vector<Token> random_tokens(uint32_t n, uint32_t n_vocab);

}  // namespace headstart::bench
