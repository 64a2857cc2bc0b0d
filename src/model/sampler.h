// model/sampler.h: picks the next token from logits with libllama's samplers.
//
//   threads  one owner; a Sampler belongs to one request
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kv/chunk_id.h"

struct llama_sampler;
struct llama_vocab;

namespace headstart::model {

struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy
  uint32_t seed = 0;
  int32_t top_k = 40;        // 0: all
  float top_p = 0.95f;
  float min_p = 0.05f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repeat_penalty = 1.0f;
  std::vector<std::pair<kv::Token, float>> logit_bias;
};

class Sampler {
 public:
  // Errors: kInvalidArgument, naming the option that is out of range.
  static Result<std::unique_ptr<Sampler>> open(const SamplingOptions& options,
                                               const llama_vocab* vocab);
  ~Sampler();
  void accept(kv::Token token);                  // a prompt token, for the penalties
  kv::Token sample(std::span<const float> logits);  // [n_vocab]; accepts what it returns

 private:
  explicit Sampler(llama_sampler* chain) : chain_(chain) {}
  llama_sampler* chain_;
};

}  // namespace headstart::model
