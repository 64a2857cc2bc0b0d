// tests/soak/prompt_pool.h: prompts that share beginnings, each with the answer of a run that
// reuses nothing.
//
// Prompt i is a function of the seed and i alone (a follow-up also of the answer before it), so
// that two processes with one seed ask the same.
//
//   threads  one owner
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "exec/engine.h"

namespace headstart::test {

struct Prompt {
  std::vector<Token> tokens;
  uint32_t n_predict = 0;
  model::SamplingOptions sampling;
  exec::Completion want;  // without reuse
};

// A request for it that reuses nothing unless told.
exec::CompletionRequest request_for(const Prompt& prompt);

class PromptPool {
 public:
  static constexpr uint32_t kTokensMax = 640;  // of a prompt and its answer

  // Answers a request without reuse; where it is empty, prompts have no `want` and none follows up.
  using Answer = std::function<exec::Completion(const exec::CompletionRequest&)>;

  // The shared documents have n_document_token each. Errors: kNotFound where the texts are missing.
  static Result<std::unique_ptr<PromptPool>> open(const model::Tokenizer& tokenizer,
                                                  size_t n_document_token, uint64_t seed,
                                                  Answer answer);

  size_t size() const { return prompts_.size(); }
  const Prompt& at(size_t i) const { return prompts_[i]; }
  const Prompt& add();  // the next one

 private:
  PromptPool() = default;
  std::vector<std::vector<Token>> documents_, questions_;
  std::deque<Prompt> prompts_;  // never moved
  uint64_t seed_ = 0;
  Answer answer_;
};

}  // namespace headstart::test
