#include "plan/prefill_plan.h"

#include <algorithm>

#include "base/check.h"

namespace headstart::plan {

PrefillPlan plan_prefill(const PrefillQuestion& q) {
  HS_CHECK(q.n_prompt > 0 && q.grain > 0, "an empty prompt");
  HS_CHECK(q.n_match_strict <= q.n_match, "strict tokens are a part of the match");
  PrefillPlan plan;
  const bool rounded = q.n_match > q.n_match_strict;
  plan.n_reuse = std::min(q.n_match, q.n_prompt - 1);
  if (!rounded || plan.n_reuse <= q.n_match_strict) plan.n_reuse -= plan.n_reuse % q.grain;
  plan.n_strict =
      plan.n_reuse > q.n_match_strict ? q.n_match_strict : q.n_prompt - q.n_prompt % q.grain;
  return plan;
}

uint32_t slice_end(uint32_t first, uint32_t n_prompt, uint32_t grain, uint32_t n_slice_max) {
  HS_CHECK(first < n_prompt && grain > 0 && n_slice_max > 0, "an empty slice");
  const uint32_t edge = first - first % grain + grain;  // the next
  const uint32_t most = std::min(n_prompt - first, n_slice_max) + first;
  return most == n_prompt ? n_prompt : std::min(n_prompt, std::max(edge, most - most % grain));
}

}  // namespace headstart::plan
