// model/sampler.h: picks the next token from logits with libllama's samplers.
//
// common_sampler would do the same but reads its logits from a llama_context, which we have not;
// tests/golden/sampler_test.cc holds the two equal.
//
//   threads  one owner; a Sampler belongs to one request
//   source   llama.h; the order of the samplers: common/sampling.cpp
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
#include "model/grammar.h"

namespace headstart::model {

inline constexpr size_t kLogitBiasMax = 1024;

struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy
  uint32_t seed = 0;
  int32_t top_k = 40;  // 0: all
  float top_p = 0.95f;
  float min_p = 0.05f;
  float typical_p = 1.0f;        // 1: off
  float top_n_sigma = -1.0f;     // 0 or less: off
  float xtc_probability = 0.0f;  // 0: off
  float xtc_threshold = 0.1f;    // above .5: off
  float dynatemp_range = 0.0f;   // 0: off
  float dynatemp_exponent = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repeat_penalty = 1.0f;
  int32_t repeat_last_n = 64;  // tokens that the penalties look back; 0: no penalties
  std::vector<std::pair<Token, float>> logit_bias;
  bool ignore_eos = false;  // no token that ends the text is picked
  GrammarOptions grammar;
};

class Sampler {
 public:
  static constexpr Token kNoToken = -1;

  // Errors: kInvalidArgument, naming the option that is out of range or saying what is wrong with
  // the grammar.
  static Result<std::unique_ptr<Sampler>> open(const SamplingOptions& options,
                                               const llama_vocab* vocab);
  void accept(Token token);  // a prompt token, for the penalties
  // [n_vocab]; accepts what it returns. kNoToken: the grammar allows no token of this vocabulary.
  Token sample(std::span<const float> logits);

 private:
  struct Free {
    void operator()(llama_sampler* s) const { llama_sampler_free(s); }
  };
  using Owned = std::unique_ptr<llama_sampler, Free>;

  Sampler(Owned chain, bool plain_greedy) : chain_(std::move(chain)), plain_greedy_(plain_greedy) {}
  Result<void> open_grammar(const GrammarOptions& options, const llama_vocab* vocab);
  bool constrained() const;
  bool allows(Token token);
  Token pick(std::span<const float> logits);
  Token pick_allowed(std::span<const float> logits);
  llama_token_data_array candidates(std::span<const float> logits);
  void accept_picked(Token token);

  Owned chain_;
  Owned grammar_;   // null: none
  Owned thinking_;  // follows where the model thinks; null: it does not, or nothing depends on it
  bool plain_greedy_;  // the largest logit wins: no candidates to build and sort
  std::vector<llama_token_data> candidates_;
};

}  // namespace headstart::model
