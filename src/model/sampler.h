// model/sampler.h: picks the next token from logits with libllama's samplers.
//
//   threads  one owner; a Sampler belongs to one request
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/token.h"

namespace headstart::model {

struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy
  uint32_t seed = 0;
  int32_t top_k = 40;  // 0: all
  float top_p = 0.95f;
  float min_p = 0.05f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repeat_penalty = 1.0f;
  std::vector<std::pair<Token, float>> logit_bias;
};

class Sampler {
 public:
  // Errors: kInvalidArgument, naming the option that is out of range.
  static Result<std::unique_ptr<Sampler>> open(const SamplingOptions& options,
                                               const llama_vocab* vocab);
  ~Sampler();
  void accept(Token token);                     // a prompt token, for the penalties
  Token sample(std::span<const float> logits);  // [n_vocab]; accepts what it returns

 private:
  Sampler(llama_sampler* chain, bool plain_greedy) : chain_(chain), plain_greedy_(plain_greedy) {}
  llama_sampler* chain_;
  bool plain_greedy_;  // the largest logit wins: no candidates to build and sort
  std::vector<llama_token_data> candidates_;
};

}  // namespace headstart::model
