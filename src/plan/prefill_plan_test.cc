// Proves what plan_prefill() promises: the last token is always computed, slices cover the rest,
// strict reuse ends at a grain's edge, rounded reuse is marked. To add a case, add a TEST.
#include "plan/prefill_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace headstart::plan {
namespace {

struct Slice {
  uint32_t first, end;
  bool operator==(const Slice&) const = default;
};

// Of what the plan does not reuse.
std::vector<Slice> slices(const PrefillQuestion& q, uint32_t n_slice_max = 512) {
  std::vector<Slice> all;
  for (uint32_t first = plan_prefill(q).n_reuse; first < q.n_prompt; first = all.back().end) {
    all.push_back({first, slice_end(first, q.n_prompt, q.grain, n_slice_max)});
  }
  return all;
}

TEST(PrefillPlan, ColdPromptIsSlicedFromZero) {
  const auto plan = plan_prefill({.n_prompt = 1100});
  EXPECT_EQ(plan.n_reuse, 0u);
  EXPECT_EQ(slices({.n_prompt = 1100}), (std::vector<Slice>{{0, 512}, {512, 1024}, {1024, 1100}}));
  EXPECT_EQ(plan.n_strict, 1100u);
}

TEST(PrefillPlan, IdenticalPromptComputesOneToken) {
  const auto plan = plan_prefill({.n_prompt = 700, .n_match = 700, .n_match_strict = 700});
  EXPECT_EQ(plan.n_reuse, 699u);
  EXPECT_EQ(plan.n_strict, 700u);
}

TEST(PrefillPlan, OneTokenPromptIsComputed) {
  const auto plan = plan_prefill({.n_prompt = 1, .n_match = 1, .n_match_strict = 1});
  EXPECT_EQ(plan.n_reuse, 0u);
}

TEST(PrefillPlan, RoundedReuseEndsStrictness) {
  const auto plan = plan_prefill({.n_prompt = 300, .n_match = 200, .n_match_strict = 150});
  EXPECT_EQ(plan.n_reuse, 200u);
  EXPECT_EQ(plan.n_strict, 150u);
}

TEST(PrefillPlan, GrainedReuseEndsAtAnEdge) {
  const auto plan =
      plan_prefill({.n_prompt = 1300, .n_match = 1250, .n_match_strict = 1250, .grain = 512});
  EXPECT_EQ(plan.n_reuse, 1024u);
  EXPECT_EQ(plan.n_strict, 1024u);
}

TEST(PrefillPlan, GrainedColdSlicesAreTheOnesOfAWarmRun) {
  const auto cold = slices({.n_prompt = 1300, .grain = 512});
  const auto warm = slices({.n_prompt = 1300, .n_match = 900, .n_match_strict = 900, .grain = 512});
  EXPECT_EQ(std::vector<Slice>(cold.begin() + 1, cold.end()), warm);
}

TEST(PrefillPlan, GrainedSlicesEndAtEdges) {
  EXPECT_EQ(slices({.n_prompt = 700, .grain = 128}, 300),
            (std::vector<Slice>{{0, 256}, {256, 512}, {512, 700}}));
  EXPECT_EQ(plan_prefill({.n_prompt = 700, .grain = 128}).n_strict, 640u);
  EXPECT_EQ(slices({.n_prompt = 700, .n_match = 130, .n_match_strict = 128, .grain = 128}, 300),
            (std::vector<Slice>{{130, 384}, {384, 640}, {640, 700}}));
}

TEST(PrefillPlan, AShortSliceHasAWholeGrain) {
  EXPECT_EQ(slices({.n_prompt = 300, .grain = 128}, 16),
            (std::vector<Slice>{{0, 128}, {128, 256}, {256, 300}}));
}

}  // namespace
}  // namespace headstart::plan
