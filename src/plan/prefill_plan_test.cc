// Proves what plan_prefill() promises: the last token is always computed, slices cover the rest,
// strict reuse ends at a grain's edge, rounded reuse is marked. To add a case, add a TEST.
#include "plan/prefill_plan.h"

#include <gtest/gtest.h>

namespace headstart::plan {
namespace {

TEST(PrefillPlan, ColdPromptIsSlicedFromZero) {
  const auto plan = plan_prefill({.n_prompt = 1100});
  EXPECT_EQ(plan.n_reuse, 0u);
  EXPECT_EQ(plan.slices, (std::vector<Slice>{{0, 512}, {512, 1024}, {1024, 1100}}));
  EXPECT_EQ(plan.n_strict, 1100u);
}

TEST(PrefillPlan, IdenticalPromptComputesOneToken) {
  const auto plan = plan_prefill({.n_prompt = 700, .n_match = 700, .n_match_strict = 700});
  EXPECT_EQ(plan.n_reuse, 699u);
  EXPECT_EQ(plan.slices, (std::vector<Slice>{{699, 700}}));
  EXPECT_EQ(plan.n_strict, 700u);
}

TEST(PrefillPlan, OneTokenPromptIsComputed) {
  const auto plan = plan_prefill({.n_prompt = 1, .n_match = 1, .n_match_strict = 1});
  EXPECT_EQ(plan.slices, (std::vector<Slice>{{0, 1}}));
}

TEST(PrefillPlan, RoundedReuseEndsStrictness) {
  const auto plan = plan_prefill({.n_prompt = 300, .n_match = 200, .n_match_strict = 150});
  EXPECT_EQ(plan.n_reuse, 200u);
  EXPECT_EQ(plan.n_strict, 150u);
}

TEST(PrefillPlan, GrainedReuseEndsAtAnEdge) {
  const auto plan = plan_prefill({.n_prompt = 1300,
                                  .n_match = 1250,
                                  .n_match_strict = 1250,
                                  .grain = 512,
                                  .n_slice_max = 512});
  EXPECT_EQ(plan.n_reuse, 1024u);
  EXPECT_EQ(plan.slices, (std::vector<Slice>{{1024, 1300}}));
  EXPECT_EQ(plan.n_strict, 1024u);
}

TEST(PrefillPlan, GrainedColdSlicesAreTheOnesOfAWarmRun) {
  const auto cold = plan_prefill({.n_prompt = 1300, .grain = 512, .n_slice_max = 512});
  const auto warm = plan_prefill(
      {.n_prompt = 1300, .n_match = 900, .n_match_strict = 900, .grain = 512, .n_slice_max = 512});
  EXPECT_EQ(std::vector<Slice>(cold.slices.begin() + 1, cold.slices.end()), warm.slices);
}

TEST(PrefillPlan, GrainedSlicesEndAtEdges) {
  const auto cold = plan_prefill({.n_prompt = 700, .grain = 128, .n_slice_max = 300});
  EXPECT_EQ(cold.slices, (std::vector<Slice>{{0, 256}, {256, 512}, {512, 700}}));
  EXPECT_EQ(cold.n_strict, 640u);
  const auto rounded = plan_prefill(
      {.n_prompt = 700, .n_match = 130, .n_match_strict = 128, .grain = 128, .n_slice_max = 300});
  EXPECT_EQ(rounded.slices, (std::vector<Slice>{{130, 384}, {384, 640}, {640, 700}}));
}

}  // namespace
}  // namespace headstart::plan
