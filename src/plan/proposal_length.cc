#include "plan/proposal_length.h"

#include <algorithm>

namespace headstart::plan {
namespace {

// Share of the newest observation. A quotation ends within a few tokens, so the past counts little.
constexpr double kNewest = 0.15;

// Of a step with n proposals, as the products of 1, 2, 4 and 8 columns were measured
// (docs/decisions/0008-native-decode.md); where columns are cheaper, a little is left on the table.
double cost(uint32_t n) { return 1 + 0.03 * n + 0.013 * n * n; }

}  // namespace

uint32_t ProposalLength::best(uint32_t n_max) const {
  uint32_t best_n = 0;
  double best_rate = 0;
  double n_token = 1, p_reached = 1;  // expected tokens of a step with n proposals
  for (uint32_t n = 1; n <= n_max; ++n) {
    p_reached *= p_accept_;
    n_token += p_reached;
    if (n_token / cost(n) <= best_rate) break;  // it has one maximum
    best_rate = n_token / cost(n);
    best_n = n;
  }
  return best_n;
}

void ProposalLength::observe(uint32_t n_proposed, uint32_t n_accepted) {
  for (uint32_t i = 0; i < std::min(n_proposed, n_accepted + 1); ++i) {
    const double right = i < n_accepted ? 1 : 0;
    p_accept_ += kNewest * (right - p_accept_);
  }
}

}  // namespace headstart::plan
