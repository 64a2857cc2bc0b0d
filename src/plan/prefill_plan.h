// plan/prefill_plan.h: which prompt tokens are reused, and where slices of the others end.
//
//   units    tokens
//   threads  pure: values in, a plan out
#pragma once

#include <cstdint>

namespace headstart::plan {

struct PrefillQuestion {
  uint32_t n_prompt = 0;        // at least 1
  uint32_t n_match = 0;         // leading tokens whose K,V are known
  uint32_t n_match_strict = 0;  // of these, the leading ones with the bits of a cold run
  uint32_t grain = 1;           // slices of prefill must start at multiples of this
};

struct PrefillPlan {
  uint32_t n_reuse = 0;  // below n_prompt
  // K,V below this position have the bits that a cold run of any longer prompt gives.
  uint32_t n_strict = 0;
};

// The last prompt token is always computed. Tokens that are only equal up to rounding are reused
// whole; strict ones end at a grain's edge, so that what follows is computed as in a cold run.
PrefillPlan plan_prefill(const PrefillQuestion& question);

// One past the last token of the slice that begins at `first`: n_slice_max tokens or fewer, so that
// the next one starts at a multiple of the grain; more where a grain has more.
uint32_t slice_end(uint32_t first, uint32_t n_prompt, uint32_t grain, uint32_t n_slice_max);

}  // namespace headstart::plan
