// Proves who is computed next: answers together, prompts between them, none forgotten. To add a
// case, add a TEST.
#include "plan/step_choice.h"

#include <gtest/gtest.h>

namespace headstart::plan {
namespace {

using Chosen = std::vector<uint32_t>;

WaitingStep decode(uint32_t n_token, uint64_t order) { return {true, n_token, order}; }
WaitingStep prompt(uint64_t order) { return {false, 0, order}; }

Chosen choose(const std::vector<WaitingStep>& waiting, StepQuestion q) {
  q.waiting = waiting;
  return choose_steps(q);
}

TEST(StepChoice, AnswersGoTogetherInTheOrderInWhichTheyCame) {
  EXPECT_EQ(
      choose({decode(1, 7), decode(1, 3), decode(1, 5)}, {.n_decoding = 3, .n_decode_max = 8}),
      (Chosen{1, 2, 0}));
}

TEST(StepChoice, WaitsForAnswersThatAreAboutToCome) {
  const std::vector<WaitingStep> one = {decode(1, 1)};
  EXPECT_EQ(choose(one, {.n_decoding = 2, .n_decode_max = 8}), Chosen{});
  EXPECT_EQ(choose(one, {.n_decoding = 2, .waited_enough = true, .n_decode_max = 8}), Chosen{0});
}

TEST(StepChoice, TakesNoMoreThanFit) {
  EXPECT_EQ(
      choose({decode(4, 1), decode(5, 2), decode(4, 3)}, {.n_decoding = 3, .n_decode_max = 8}),
      (Chosen{0, 2}));
  EXPECT_EQ(choose({decode(9, 1)}, {.n_decoding = 1, .n_decode_max = 8}), Chosen{0});
}

TEST(StepChoice, PromptsAndAnswersTakeTurns) {
  const std::vector<WaitingStep> both = {decode(1, 1), prompt(9)};
  EXPECT_EQ(choose(both, {.n_decoding = 1, .after_prefill = false}), Chosen{1});
  EXPECT_EQ(choose(both, {.n_decoding = 1, .after_prefill = true}), Chosen{0});
}

TEST(StepChoice, NoSecondSliceBeforeTheAnswersCameBack) {
  const std::vector<WaitingStep> only_prompt = {prompt(9)};
  EXPECT_EQ(choose(only_prompt, {.n_decoding = 1, .after_prefill = true}), Chosen{});
  EXPECT_EQ(choose(only_prompt, {.n_decoding = 1, .waited_enough = true, .after_prefill = true}),
            Chosen{0});
  EXPECT_EQ(choose(only_prompt, {.n_decoding = 0, .after_prefill = true}), Chosen{0});
}

TEST(StepChoice, AShortPromptOvertakesButNoneWaitsForEver) {
  const uint64_t long_one = prompt_order(1000, 8000);
  EXPECT_EQ(choose({prompt(long_one), prompt(prompt_order(1500, 100))}, {}), Chosen{1});
  // After 8000 tokens of others the long one's turn has come.
  EXPECT_EQ(choose({prompt(long_one), prompt(prompt_order(9000, 100))}, {}), Chosen{0});
}

// Seconds of a slice: 1.5 ms a layer, and 80 us a token of it.
double seconds(uint32_t n_token, uint32_t n_layer) { return n_layer * (1.5e-3 + n_token * 80e-6); }

TEST(SliceSize, FindsWhatTakesItsShareOfDecodeSteps) {
  SliceSize size;
  for (int i = 0; i < 40; ++i) {
    const uint32_t n = size.n_token(2048), layers = size.n_layer(n);
    size.observe(n, layers, seconds(n, layers), 10e-3);
  }
  const uint32_t n = size.n_token(2048);
  EXPECT_EQ(size.n_layer(n), 1u) << "more tokens come before more layers";
  EXPECT_NEAR(seconds(n, 1), SliceSize::kGapSteps * 10e-3, 1e-3);
}

TEST(SliceSize, TakesMoreLayersWhereTokensAreNoLongerAdded) {
  SliceSize size;
  for (int i = 0; i < 40; ++i) {
    const uint32_t n = size.n_token(64), layers = size.n_layer(n);
    size.observe(n, layers, seconds(n, layers), 100e-3);
  }
  EXPECT_EQ(size.n_token(64), 64u);
  EXPECT_NEAR(seconds(64, size.n_layer(64)), SliceSize::kGapSteps * 100e-3, 9e-3);
  // Few tokens are no cheaper than they are: preparing a layer costs as much as some of them.
  for (const uint32_t n : {1u, 8u, 40u}) {
    EXPECT_NEAR(seconds(n, size.n_layer(n)), SliceSize::kGapSteps * 100e-3, 25e-3) << n;
  }
}

TEST(SliceSize, StaysWithinItsBounds) {
  SliceSize size;
  for (int i = 0; i < 40; ++i) size.observe(size.n_token(512), 1, 1, 1e-3);
  EXPECT_EQ(size.n_token(512), SliceSize::kTokensMin);
  EXPECT_EQ(size.n_token(8), 8u);
  EXPECT_EQ(size.n_layer(8), 1u);
  for (int i = 0; i < 80; ++i) size.observe(512, size.n_layer(512), 1e-6, 1);
  EXPECT_EQ(size.n_token(512), 512u);
  EXPECT_GT(size.n_layer(512), 1000u);
  size.observe(0, 1, 1, 1);
  size.observe(1, 1, 0, 1);
  size.observe(1, 1, 1, 0);
  EXPECT_EQ(size.n_token(512), 512u) << "what was not measured changes nothing";
}

}  // namespace
}  // namespace headstart::plan
