#include "plan/proposal_length.h"

#include <algorithm>

namespace headstart::plan {
namespace {

constexpr double kNewest = 0.2;  // share of the newest observation: quotations begin and end soon
constexpr double kForget = 0.004;

// Of a step with n proposals, in steps of one token, as measured for whole steps
// (docs/decisions/0010-prompt-lookup.md). Where columns are cheaper, a little is left on the table.
double cost(uint32_t n) { return 1 + 0.09 * n + 0.01 * n * n; }

// Before anything is known.
double prior(uint32_t n_match) { return 1 - 1.5 / (n_match + 1); }

}  // namespace

ProposalLength::ProposalLength() {
  for (uint32_t n = 0; n <= kMatchMax; ++n) p_accept_[n] = prior(n);
}

double& ProposalLength::p_accept(uint32_t n_match) {
  return p_accept_[std::min(n_match, kMatchMax)];
}

uint32_t ProposalLength::best(uint32_t n_match, uint32_t n_max) const {
  uint32_t best_n = 0;
  double best_rate = 1;
  double n_token = 1, p_reached = 1;  // expected tokens of a step with n proposals
  for (uint32_t n = 1; n <= n_max; ++n) {
    p_reached *= p_accept_[std::min(n_match + n - 1, kMatchMax)];
    n_token += p_reached;
    if (n_token / cost(n) > best_rate) {
      best_rate = n_token / cost(n);
      best_n = n;
    }
  }
  return best_n;
}

void ProposalLength::observe(uint32_t n_match, uint32_t n_proposed, uint32_t n_accepted) {
  if (n_proposed == 0) p_accept(n_match) += kForget * (prior(n_match) - p_accept(n_match));
  for (uint32_t i = 0; i < std::min(n_proposed, n_accepted + 1); ++i) {
    double& p = p_accept(n_match + i);
    p += kNewest * ((i < n_accepted ? 1 : 0) - p);
  }
}

}  // namespace headstart::plan
