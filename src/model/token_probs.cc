#include "model/token_probs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace headstart::model {

TokenProbs token_probs(std::span<const float> logits, Token picked, uint32_t n_top) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - max));
  const double log_sum = max + std::log(sum);
  auto prob = [&](Token t) {
    return TokenProb{t, static_cast<float>(logits[static_cast<size_t>(t)] - log_sum), {}};
  };
  TokenProbs out{prob(picked), {}};
  if (n_top == 0) return out;
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t n = std::min<size_t>(n_top, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(n), order.end(),
                    [&](Token a, Token b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (size_t i = 0; i < n; ++i) out.top.push_back(prob(order[i]));
  return out;
}

}  // namespace headstart::model
