// Proves that requests at once get what each gets alone: text, tokens and counts, greedy and
// sampled, with proposals, on native kernels and on ggml's; that one leaving leaves the others
// alone; and that a common beginning is computed once. To add a case, add requests to
// mixed_requests().
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "exec/engine.h"
#include "tests/support/models.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::test {
namespace {

using exec::Completion;
using exec::CompletionRequest;
using exec::Engine;

class Parallel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { write_tiny_gguf(tiny_model("qwen2"), dir_ / "tiny.gguf"); }

  std::unique_ptr<Engine> open(uint32_t n_parallel, bool store) {
    exec::EngineOptions o;
    o.model_path = dir_ / "tiny.gguf";
    o.n_threads = GetParam() == "native" ? 2 : 1;  // ggml's threads spin while others want the core
    o.n_batch = 64;
    o.n_parallel = n_parallel;
    o.kernels = GetParam();
    o.reuse = store ? store::ReuseMode::kStrict : store::ReuseMode::kOff;
    if (store) o.ram_budget_bytes = 64 << 20;
    auto engine = Engine::open(o);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    return *std::move(engine);
  }

  static std::vector<CompletionRequest> mixed_requests() {
    std::vector<CompletionRequest> requests;
    for (uint32_t i = 0; i < 12; ++i) {
      CompletionRequest r;
      r.tokens = tiny_prompt(5 + 37 * i, i);
      r.n_predict = 40 - 3 * (i % 5);
      r.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
      r.sampling.seed = i;
      r.n_propose_max = i % 2 == 0 ? 0 : 5;
      requests.push_back(std::move(r));
    }
    return requests;
  }

  static std::vector<Result<Completion>> at_once(Engine& engine,
                                                 const std::vector<CompletionRequest>& requests) {
    std::vector<Result<Completion>> results(requests.size(), Completion{});
    std::vector<std::thread> threads;
    for (size_t i = 0; i < requests.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = engine.complete(requests[i]); });
    }
    for (std::thread& t : threads) t.join();
    return results;
  }

  TempDir dir_;
};

TEST_P(Parallel, EachAnswerIsTheOneThatItGetsAlone) {
  const auto requests = mixed_requests();
  const auto alone = open(1, /*store=*/false);
  for (const bool store : {false, true}) {
    const auto together = open(5, store);
    const auto results = at_once(*together, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto want = alone->complete(requests[i]);
      ASSERT_TRUE(want.ok() && results[i].ok()) << i;
      EXPECT_EQ(results[i]->tokens, want->tokens) << "request " << i << (store ? ", store" : "");
      EXPECT_EQ(results[i]->text, want->text);
      EXPECT_EQ(results[i]->finish, want->finish);
    }
  }
}

TEST_P(Parallel, LeavingLeavesTheOthersAlone) {
  auto requests = mixed_requests();
  const auto alone = open(1, false);
  const auto together = open(4, true);
  std::vector<std::stop_source> stops(requests.size());
  std::atomic<int> n_piece = 0;
  for (size_t i = 0; i < requests.size(); i += 3) {
    requests[i].cancel = stops[i].get_token();
    requests[i].on_text = [&, i](std::string_view) {
      if (++n_piece % 4 == 0) stops[i].request_stop();
      return true;
    };
  }
  stops[3].request_stop();  // before it begins
  const auto results = at_once(*together, requests);
  EXPECT_EQ(results[3].error().code, Code::kCancelled);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 == 0) continue;
    const auto want = alone->complete(requests[i]);
    ASSERT_TRUE(results[i].ok()) << results[i].error().message;
    EXPECT_EQ(results[i]->tokens, want->tokens) << "request " << i;
  }
  CompletionRequest after = mixed_requests()[5];
  EXPECT_EQ(together->complete(after)->tokens, alone->complete(after)->tokens);
}

// The others wait for the first to compute what they have in common, and no longer.
TEST_P(Parallel, ACommonBeginningIsComputedOnce) {
  const auto alone = open(1, false);
  const auto together = open(8, true);
  const auto common = tiny_prompt(700, 1);
  std::vector<CompletionRequest> requests(8);
  for (uint32_t i = 0; i < 8; ++i) {
    requests[i].tokens = common;
    const auto rest = tiny_prompt(20, 100 + i);
    requests[i].tokens.insert(requests[i].tokens.end(), rest.begin() + 1, rest.end());
    requests[i].n_predict = 8;
  }
  const auto results = at_once(*together, requests);
  uint32_t n_computed = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(results[i].ok()) << results[i].error().message;
    EXPECT_EQ(results[i]->tokens, alone->complete(requests[i])->tokens) << i;
    n_computed += results[i]->n_prompt - results[i]->n_cached;
  }
  const uint32_t grain_loss = GetParam() == "ggml" ? 64 : 0;
  EXPECT_LE(n_computed, 700 + 8 * (19 + grain_loss)) << "of 8 prompts of 719 tokens";
}

TEST_P(Parallel, WaitsForASlotAndSaysSo) {
  const auto engine = open(1, false);
  std::vector<CompletionRequest> requests(2);
  for (auto& r : requests) {
    r.tokens = tiny_prompt(300, 3);
    r.n_predict = 20;
  }
  std::atomic<bool> held = false, called = false;
  requests[0].on_text = [&](std::string_view) {
    if (held.exchange(true)) return true;
    while (!called) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the other waits
    return true;
  };
  std::vector<Result<Completion>> results(2, Completion{});
  std::thread first([&] { results[0] = engine->complete(requests[0]); });
  while (!held) std::this_thread::yield();
  called = true;
  results[1] = engine->complete(requests[1]);
  first.join();
  EXPECT_GT(results[1]->wait_ms, 0.5);
  for (const auto& r : results) {
    EXPECT_GE(r->ttft_ms, r->wait_ms + r->lookup_ms + r->load_ms + r->compute_ms - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Parallel, testing::Values("native", "ggml"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace headstart::test
