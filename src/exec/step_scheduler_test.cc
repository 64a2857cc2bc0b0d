// Proves how steps of several requests meet on one executor: answers share steps, prompts come in
// slices between them, everybody gets his own logits, cancelling and errors reach those that they
// concern. The executor is one that a test holds and that writes down what it was asked. To add a
// case, add a TEST.
#include "exec/step_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

namespace headstart::exec {
namespace {

constexpr uint32_t kVocab = 3, kLayers = 8;

model::ModelParams small_params() {
  model::ModelParams p;
  p.n_layer = kLayers;
  p.n_vocab = kVocab;
  p.d_model = 2;
  return p;
}

class RecordingExecutor final : public LayerExecutor {
 public:
  struct Step {
    bool decode;
    std::vector<Token> tokens;
    std::vector<uint32_t> positions;
    size_t n_sequence;
    uint32_t layer_first, layer_end;
  };

  std::string identity() const override { return "recording"; }
  uint32_t grain() const override { return 1; }
  uint32_t n_token_max() const override { return 512; }
  uint32_t n_decode_max() const override { return 4; }
  // The logits of a token are its id, three times.
  Result<void> run(const LayerStep& step) override {
    ++n_begun_;
    while (held_ && !step.cancel.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (step.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
    if (throws_ || step.layer_first >= throws_from_layer_) throw std::bad_alloc();
    if (on_step_) on_step_(step);
    steps_.push_back({step.numeric_class == NumericClass::kDecode,
                      {step.tokens.begin(), step.tokens.end()},
                      {step.positions.begin(), step.positions.end()},
                      step.sequences.size(),
                      step.layer_first,
                      step.layer_end});
    for (const uint32_t pos : step.positions) {
      if (step.layer_first > 0) {
        EXPECT_EQ(step.hidden->row(pos)[1], float(step.layer_first + pos));
      }
      if (step.layer_end < kLayers) step.hidden->row(pos)[1] = float(step.layer_end + pos);
    }
    if (step.want_logits == WantLogits::kNone) return {};
    const auto tokens = step.want_logits == WantLogits::kAll ? step.tokens : step.tokens.last(1);
    step.logits->clear();
    for (const Token t : tokens) step.logits->insert(step.logits->end(), kVocab, float(t));
    return {};
  }

  std::vector<Step> steps_;  // read while nothing runs
  std::function<void(const LayerStep&)> on_step_ = {};
  std::atomic<uint32_t> throws_from_layer_ = kLayers;
  std::atomic<int> n_begun_ = 0;
  std::atomic<bool> held_ = false, throws_ = false;
};

// Its time passes by hand, so nobody waits in vain; TimedBed's by itself.
template <class ClockT>
struct BedWith {
  RecordingExecutor executor;
  ClockT clock;
  StepScheduler scheduler{executor, clock, small_params()};

  Result<StepResult> run(NumericClass numeric_class, const std::vector<Token>& tokens,
                         std::vector<float>& logits, std::stop_token cancel = {},
                         std::optional<uint64_t> order = {}) {
    StepRequest r;
    r.numeric_class = numeric_class;
    r.tokens = tokens;
    r.pos = 10;
    r.want_logits = true;
    r.logits = &logits;
    r.cancel = std::move(cancel);
    r.order = order;
    return scheduler.run(r);
  }
  void until_begun(int n) {
    while (executor.n_begun_ < n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

using Bed = BedWith<FakeClock>;
using TimedBed = BedWith<SystemClock>;

// An answer that asks for token after token.
class EndlessAnswer {
 public:
  explicit EndlessAnswer(Bed& bed)
      : answering_(bed.scheduler), running_([this, &bed] {
          std::vector<float> logits;
          while (!enough_) EXPECT_TRUE(bed.run(NumericClass::kDecode, {1}, logits).ok());
        }) {}
  ~EndlessAnswer() {
    enough_ = true;
    running_.join();
  }

 private:
  std::atomic<bool> enough_ = false;
  StepScheduler::Answering answering_;
  std::thread running_;
};

TEST(StepScheduler, AnswersShareAStepAndGetTheirOwnLogits) {
  Bed bed;
  std::vector<std::vector<float>> logits(3);
  const std::vector<std::vector<Token>> tokens = {{1}, {2, 3}, {4}};
  {
    std::vector<std::unique_ptr<StepScheduler::Answering>> answering;
    for (int i = 0; i < 3; ++i) {
      answering.push_back(std::make_unique<StepScheduler::Answering>(bed.scheduler));
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        const auto done = bed.run(NumericClass::kDecode, tokens[i], logits[i]);
        EXPECT_TRUE(done.ok());
        EXPECT_EQ(done->n_token, tokens[i].size());
      });
    }
    for (std::thread& t : threads) t.join();
  }
  ASSERT_EQ(bed.executor.steps_.size(), 1u) << "each waited for the others";
  EXPECT_EQ(bed.executor.steps_[0].n_sequence, 3u);
  EXPECT_EQ(bed.executor.steps_[0].tokens.size(), 4u);
  EXPECT_EQ(logits[0], (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(logits[1], (std::vector<float>{2, 2, 2, 3, 3, 3}));
  EXPECT_EQ(logits[2], (std::vector<float>{4, 4, 4}));
}

TEST(StepScheduler, AnAnswerThatStaysAwayDelaysTheOthersOnlyAMoment) {
  TimedBed bed;
  const StepScheduler::Answering one(bed.scheduler), never_comes(bed.scheduler);
  std::vector<float> logits;
  const auto done = bed.run(NumericClass::kDecode, {1}, logits);
  ASSERT_TRUE(done.ok());
  EXPECT_GT(done->wait_s, 0.01);
  EXPECT_LT(done->wait_s, 1.0);
}

TEST(StepScheduler, APromptAloneIsComputedInTheLargestSlices) {
  Bed bed;
  std::vector<Token> tokens(700, 5);
  std::vector<float> logits;
  const auto first = bed.run(NumericClass::kPrefill, tokens, logits);
  EXPECT_EQ(first->n_token, 512u);
  EXPECT_TRUE(logits.empty()) << "of a slice in the middle";
  tokens.resize(188);
  EXPECT_EQ(bed.run(NumericClass::kPrefill, tokens, logits)->n_token, 188u);
  EXPECT_EQ(logits.size(), kVocab);
}

TEST(StepScheduler, APromptKeepsItsPlaceFromSliceToSlice) {
  Bed bed;
  std::vector<Token> tokens(700, 5);
  std::vector<float> logits;
  const auto first = bed.run(NumericClass::kPrefill, tokens, logits);
  ASSERT_TRUE(bed.run(NumericClass::kPrefill, std::vector<Token>(300, 6), logits).ok());
  tokens.resize(188);
  EXPECT_EQ(bed.run(NumericClass::kPrefill, tokens, logits, {}, first->order)->order, first->order);
  EXPECT_GT(bed.run(NumericClass::kPrefill, tokens, logits)->order, first->order);
}

TEST(StepScheduler, APromptBesideAnAnswerIsComputedInShortSlices) {
  TimedBed bed;
  const StepScheduler::Answering answering(bed.scheduler);
  const std::vector<Token> tokens(700, 5);
  std::vector<float> logits;
  EXPECT_LT(bed.run(NumericClass::kPrefill, tokens, logits)->n_token, 512u);
}

TEST(StepScheduler, AnswersHaveTheirTurnBetweenTheLayersOfASlice) {
  Bed bed;
  std::vector<float> logits;
  {
    const EndlessAnswer answer(bed);
    EXPECT_EQ(bed.run(NumericClass::kPrefill, std::vector<Token>(100, 5), logits)->n_token, 100u);
  }
  EXPECT_EQ(logits, (std::vector<float>{5, 5, 5}));
  uint32_t layer = 0;
  bool was_prompt = false;
  for (const auto& step : bed.executor.steps_) {
    EXPECT_FALSE(was_prompt && !step.decode) << "the answer waited for two in a row";
    was_prompt = !step.decode;
    if (step.decode) continue;
    EXPECT_EQ(step.tokens.size(), 100u);
    EXPECT_EQ(step.layer_first, layer);
    EXPECT_LT(step.layer_end, layer + kLayers);
    layer = step.layer_end;
  }
  EXPECT_EQ(layer, kLayers);
}

TEST(StepScheduler, ASliceGoesOnAtOnceWhenAnswersEnd) {
  Bed bed;
  std::vector<float> logits;
  auto answering = std::make_unique<StepScheduler::Answering>(bed.scheduler);
  std::thread prompt([&] {
    EXPECT_TRUE(bed.run(NumericClass::kPrefill, std::vector<Token>(100, 5), logits).ok());
  });
  bed.until_begun(1);
  answering.reset();
  prompt.join();
  ASSERT_EQ(bed.executor.steps_.size(), 2u);
  EXPECT_EQ(bed.executor.steps_[1].layer_first, bed.executor.steps_[0].layer_end);
  EXPECT_EQ(bed.executor.steps_[1].layer_end, kLayers);
}

TEST(StepScheduler, AShortPromptOvertakesBetweenTheLayersOfASlice) {
  Bed bed;
  std::vector<float> long_logits, short_logits, logits;
  std::atomic<int> n_done = 0;
  auto answering = std::make_unique<StepScheduler::Answering>(bed.scheduler);
  std::thread one([&] {
    EXPECT_TRUE(bed.run(NumericClass::kPrefill, std::vector<Token>(5000, 5), long_logits).ok());
    ++n_done;
  });
  bed.until_begun(1);  // and no more: the answer has not asked yet
  std::thread two([&] {
    EXPECT_TRUE(bed.run(NumericClass::kPrefill, {6, 7}, short_logits).ok());
    ++n_done;
  });
  while (bed.scheduler.n_waiting() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  while (n_done < 2) EXPECT_TRUE(bed.run(NumericClass::kDecode, {1}, logits).ok());
  one.join();
  two.join();
  EXPECT_EQ(short_logits, (std::vector<float>{7, 7, 7}));
  std::vector<size_t> n_token;
  for (const auto& step : bed.executor.steps_) {
    if (!step.decode) n_token.push_back(step.tokens.size());
  }
  EXPECT_TRUE(std::ranges::is_sorted(n_token.begin() + 1, n_token.end())) << "the short one first";
  EXPECT_EQ(n_token[1], 2u);
  EXPECT_GT(n_token.front(), 2u);
  EXPECT_GT(n_token.back(), 2u);
}

TEST(StepScheduler, ASliceIsCancelledBetweenItsLayers) {
  Bed bed;
  std::vector<float> logits;
  std::stop_source cancel;
  auto answering = std::make_unique<StepScheduler::Answering>(bed.scheduler);  // and never asks
  Result<StepResult> done = StepResult{};
  std::thread prompt([&] {
    done = bed.run(NumericClass::kPrefill, std::vector<Token>(100, 5), logits, cancel.get_token());
  });
  bed.until_begun(1);
  cancel.request_stop();
  prompt.join();
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Code::kCancelled);
  EXPECT_LE(bed.executor.n_begun_, 1);
  answering.reset();
  EXPECT_TRUE(bed.run(NumericClass::kPrefill, {1}, logits).ok()) << "nothing of it is left";
}

TEST(StepScheduler, AFailureInALaterLayerEndsTheSlice) {
  Bed bed;
  std::vector<float> logits;
  bed.executor.throws_from_layer_ = 2;
  {
    const EndlessAnswer answer(bed);
    const auto done = bed.run(NumericClass::kPrefill, std::vector<Token>(100, 5), logits);
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, Code::kExhausted);
    bed.executor.throws_from_layer_ = kLayers;
    EXPECT_TRUE(bed.run(NumericClass::kPrefill, std::vector<Token>(100, 5), logits).ok());
  }
}

// A layer takes 1.5 ms and 80 us a token, its K and V alone a tenth; a decode step 10 ms.
TEST(StepScheduler, NoStepOfAPromptTakesLongerThanItMay) {
  constexpr double kDecodeS = 10e-3, kMayS = plan::SliceSize::kGapSteps * kDecodeS;
  Bed bed;
  std::vector<double> prompt_s;
  bed.executor.on_step_ = [&](const LayerStep& step) {
    if (step.numeric_class == NumericClass::kDecode) return bed.clock.advance(kDecodeS);
    double layers = step.layer_end - step.layer_first;
    if (step.layer_end == kLayers && step.want_logits == WantLogits::kNone) layers -= 0.9;
    prompt_s.push_back(layers * (1.5e-3 + 80e-6 * static_cast<double>(step.tokens.size())));
    bed.clock.advance(prompt_s.back());
  };
  std::vector<float> logits;
  const auto prefill = [&](size_t n_token) {
    std::optional<uint64_t> order;
    double compute_s = 0, wait_s = 0;
    for (size_t left = n_token; left > 0;) {
      const auto done =
          bed.run(NumericClass::kPrefill, std::vector<Token>(left, 5), logits, {}, order);
      ASSERT_TRUE(done.ok());
      order = done->order;
      left -= done->n_token;
      compute_s += done->compute_s;
      wait_s += done->wait_s;
    }
    EXPECT_NEAR(compute_s, std::accumulate(prompt_s.begin(), prompt_s.end(), 0.0), 1e-3);
    if (n_token > 1000) {
      EXPECT_GT(wait_s, kDecodeS) << "decode steps lay between";
    }
  };
  {
    const EndlessAnswer answer(bed);
    std::vector<float> first;
    ASSERT_TRUE(bed.run(NumericClass::kDecode, {1}, first).ok());  // decoding is known
    prefill(4000);
    for (size_t i = 8; i < prompt_s.size(); ++i) EXPECT_LE(prompt_s[i], 1.2 * kMayS) << i;
    EXPECT_GT(std::accumulate(prompt_s.begin(), prompt_s.end(), 0.0) / double(prompt_s.size()),
              0.7 * kMayS);
    for (const size_t n_token : {3u, 40u, 500u}) {
      prompt_s.clear();
      prefill(n_token);
      for (const double s : prompt_s) EXPECT_LE(s, 1.2 * kMayS) << n_token;
    }
  }
}

TEST(StepScheduler, CancellingEndsWhatRunsAndWhatWaits) {
  Bed bed;
  bed.executor.held_ = true;
  std::stop_source running, waiting;
  std::vector<float> a, b;
  Result<StepResult> first = StepResult{}, second = StepResult{};
  std::thread one([&] { first = bed.run(NumericClass::kPrefill, {1, 2}, a, running.get_token()); });
  bed.until_begun(1);
  std::thread two([&] {
    second = bed.run(NumericClass::kPrefill, {3, 4}, b, waiting.get_token());
  });
  waiting.request_stop();
  two.join();
  EXPECT_EQ(second.error().code, Code::kCancelled) << "although another one is being computed";
  running.request_stop();
  one.join();
  EXPECT_EQ(first.error().code, Code::kCancelled);
  bed.executor.held_ = false;
  EXPECT_TRUE(bed.run(NumericClass::kPrefill, {1}, a).ok()) << "the next one is computed";
}

TEST(StepScheduler, AFailureIsAnAnswerAndNotTheEnd) {
  Bed bed;
  bed.executor.throws_ = true;
  std::vector<float> logits;
  EXPECT_EQ(bed.run(NumericClass::kPrefill, {1}, logits).error().code, Code::kExhausted);
  bed.executor.throws_ = false;
  EXPECT_TRUE(bed.run(NumericClass::kPrefill, {1}, logits).ok());
}

}  // namespace
}  // namespace headstart::exec
