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

TEST(SliceLength, FindsTheLengthThatTakesTwoDecodeSteps) {
  SliceLength length;
  // A slice takes 5 ms and half a millisecond a token, a decode step 10 ms.
  for (int i = 0; i < 20; ++i) {
    const uint32_t n = length.n_token();
    length.observe(n, 5e-3 + n * 0.5e-3, 10e-3);
  }
  EXPECT_NEAR(length.n_token(), 30, 2);
}

TEST(SliceLength, StaysWithinItsBounds) {
  SliceLength length;
  for (int i = 0; i < 20; ++i) length.observe(length.n_token(), 1, 1e-3);
  EXPECT_EQ(length.n_token(), SliceLength::kShortest);
  for (int i = 0; i < 20; ++i) length.observe(length.n_token(), 1e-6, 1);
  EXPECT_EQ(length.n_token(), SliceLength::kLongest);
}

}  // namespace
}  // namespace headstart::plan
