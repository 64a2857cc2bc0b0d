#include "plan/prefill_plan.h"

#include <algorithm>

#include "base/check.h"

namespace headstart::plan {

PrefillPlan plan_prefill(const PrefillQuestion& q) {
  HS_CHECK(q.n_prompt > 0 && q.grain > 0 && q.n_slice_max >= q.grain, "an empty prompt or slice");
  HS_CHECK(q.n_match_strict <= q.n_match, "strict tokens are a part of the match");
  PrefillPlan plan;
  const bool rounded = q.n_match > q.n_match_strict;
  plan.n_reuse = std::min(q.n_match, q.n_prompt - 1);
  if (!rounded || plan.n_reuse <= q.n_match_strict) plan.n_reuse -= plan.n_reuse % q.grain;
  for (uint32_t first = plan.n_reuse; first < q.n_prompt; first = plan.slices.back().end) {
    const uint32_t end = first + q.n_slice_max;
    plan.slices.push_back({first, std::min(q.n_prompt, end - end % q.grain)});
  }
  plan.n_strict =
      plan.n_reuse > q.n_match_strict ? q.n_match_strict : q.n_prompt - q.n_prompt % q.grain;
  return plan;
}

}  // namespace headstart::plan
