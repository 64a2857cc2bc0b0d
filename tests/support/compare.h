// tests/support/compare.h: how far two sets of logits are apart, and what to feed a model with.
//
//   shapes   logits [n_row, n_vocab], outermost first
//   threads  pure
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/token.h"

namespace headstart::test {

struct BestTwo {
  size_t first = 0, second = 0;  // indices of the highest two values; of equal ones the earlier
  float margin = 0;              // by which the first is higher
};
BestTwo best_two(std::span<const float> row);

// Kullback-Leibler divergence of softmax(q) from softmax(p), in nats.
double kl_divergence(std::span<const float> p, std::span<const float> q);

struct LogitDistance {
  size_t n_row = 0;
  bool finite = true;  // every value on both sides
  bool bit_equal = true;
  double max_abs = 0;              // largest difference of one logit
  double rms = 0;                  // of the reference's logits, to judge max_abs by
  double kl_mean = 0, kl_max = 0;  // nats, over rows
  size_t n_top1_differs = 0;       // rows
  double margin_max = 0;           // largest margin of the reference in a row where top-1 differs
  std::string to_string() const;   // one line
};
LogitDistance compare_logits(std::span<const float> reference, std::span<const float> got,
                             size_t n_vocab);

// Tokens that are neither control nor special in the vocabulary of the tiny models, the same for
// the same seed.
std::vector<Token> random_tokens(uint64_t seed, size_t n, uint32_t n_vocab);

// A few hundred words of English prose about computing, free of rights.
extern const char* const kProse;

}  // namespace headstart::test
