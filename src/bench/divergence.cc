#include "bench/divergence.h"

#include <algorithm>
#include <cmath>

namespace headstart::bench {
namespace {

double log_of_sum(std::span<const float> row) {
  const float highest = *std::ranges::max_element(row);
  double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<double>(x) - highest);
  return std::log(sum) + highest;
}

}  // namespace

double mean_kl(std::span<const float> reference, std::span<const float> other, size_t n_vocab) {
  double total = 0;
  for (size_t first = 0; first < reference.size(); first += n_vocab) {
    const auto p = reference.subspan(first, n_vocab), q = other.subspan(first, n_vocab);
    const double zp = log_of_sum(p), zq = log_of_sum(q);
    for (size_t i = 0; i < n_vocab; ++i) {
      const double log_p = p[i] - zp;
      total += std::exp(log_p) * (log_p - (q[i] - zq));
    }
  }
  return total / (static_cast<double>(reference.size()) / static_cast<double>(n_vocab));
}

}  // namespace headstart::bench
