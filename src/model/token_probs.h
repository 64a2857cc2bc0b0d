// model/token_probs.h: what the model thought of a token, and of the likeliest others.
//
// From the raw logits, before any sampling option changes them, as OpenAI's clients expect.
//
//   units    natural logarithms of probabilities
//   threads  pure
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/token.h"

namespace headstart::model {

inline constexpr uint32_t kTopTokensMax = 20;

struct TokenProb {
  Token token = 0;
  float logprob = 0;
  std::string text;  // its bytes, of control tokens too; may be a part of a UTF-8 sequence
};

struct TokenProbs {
  TokenProb picked;
  std::vector<TokenProb> top;  // the likeliest first
};

// logits: [n_vocab]. The texts are left empty. Of equal logits the lower token comes first.
TokenProbs token_probs(std::span<const float> logits, Token picked, uint32_t n_top);

}  // namespace headstart::model
