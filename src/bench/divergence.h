// bench/divergence.h: how far apart two sets of logits are.
//
//   shapes  [n_row, n_vocab]
#pragma once

#include <cstddef>
#include <span>

namespace headstart::bench {

// Mean over the rows of KL(reference || other), nats.
double mean_kl(std::span<const float> reference, std::span<const float> other, size_t n_vocab);

}  // namespace headstart::bench
