// plan/prefill_plan.h: which prompt tokens are reused and in which slices the others are computed.
//
//   units    tokens
//   threads  pure: values in, a plan out
#pragma once

#include <cstdint>
#include <vector>

namespace headstart::plan {

struct PrefillQuestion {
  uint32_t n_prompt = 0;        // at least 1
  uint32_t n_match = 0;         // leading tokens whose K,V are known
  uint32_t n_match_strict = 0;  // of these, the leading ones with the bits of a cold run
  uint32_t grain = 1;           // slices of prefill must start at multiples of this
  uint32_t n_slice_max = 512;   // at least a grain
};

struct Slice {
  uint32_t first = 0;
  uint32_t end = 0;  // one past the last
  bool operator==(const Slice&) const = default;
};

struct PrefillPlan {
  uint32_t n_reuse = 0;
  std::vector<Slice> slices;  // in order, from n_reuse to n_prompt; never empty
  // K,V below this position have the bits that a cold run of any longer prompt gives.
  uint32_t n_strict = 0;
};

// The last prompt token is always computed. Tokens that are only equal up to rounding are reused
// whole; strict ones end at a grain's edge, so that what follows is computed as in a cold run.
PrefillPlan plan_prefill(const PrefillQuestion& question);

}  // namespace headstart::plan
