// Proves who waits for whom: a later request for the longest common beginning that an earlier one
// still computes, no longer than until its chunks are there or it leaves. To add a case, add a
// TEST.
#include "exec/prefill_sharing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <thread>

namespace headstart::exec {
namespace {

std::vector<Token> prompt(uint32_t n, Token last) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 0);
  tokens.back() = last;
  return tokens;
}

// A request on a thread of its own that waits.
class Follower {
 public:
  Follower(PrefillSharing& sharing, std::vector<Token> tokens, uint32_t n_match,
           std::string salt = "")
      : tokens_(std::move(tokens)), entry_(sharing, tokens_, std::move(salt)) {
    thread_ = std::thread([this, n_match] {
      again_ = entry_.wait(n_match, cancel_.get_token());
      done_ = true;
    });
  }
  ~Follower() {
    cancel();
    if (thread_.joinable()) thread_.join();
  }
  void cancel() { cancel_.request_stop(); }
  bool done() const { return done_; }
  // Whether the store is to be asked again.
  bool result() {
    thread_.join();
    return again_;
  }

 private:
  std::vector<Token> tokens_;
  PrefillSharing::Entry entry_;
  std::stop_source cancel_;
  std::atomic<bool> done_ = false;
  bool again_ = false;
  std::thread thread_;
};

void until_awaited(const PrefillSharing::Entry& entry) {
  while (!entry.awaited()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(PrefillSharing, WaitsUntilTheCommonBeginningIsStored) {
  PrefillSharing sharing;
  const auto first = prompt(1000, -1);
  PrefillSharing::Entry leader(sharing, first, "");
  Follower follower(sharing, prompt(900, -2), 0);
  until_awaited(leader);
  leader.stored(898);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(follower.done());
  leader.stored(899);
  EXPECT_TRUE(follower.result());
}

TEST(PrefillSharing, GoesOnWhereTheLeaderLeaves) {
  PrefillSharing sharing;
  const auto first = prompt(1000, -1);
  std::optional<PrefillSharing::Entry> leader;
  leader.emplace(sharing, first, "");
  Follower follower(sharing, prompt(900, -2), 0);
  until_awaited(*leader);
  leader.reset();
  EXPECT_TRUE(follower.result());
}

TEST(PrefillSharing, CancellingEndsTheWait) {
  PrefillSharing sharing;
  const auto first = prompt(1000, -1);
  PrefillSharing::Entry leader(sharing, first, "");
  Follower follower(sharing, prompt(900, -2), 0);
  until_awaited(leader);
  follower.cancel();
  EXPECT_FALSE(follower.result());
  EXPECT_FALSE(leader.awaited());
}

TEST(PrefillSharing, NobodyWaitsForWhatIsNotWorthIt) {
  PrefillSharing sharing;
  const auto first = prompt(1000, -1);
  PrefillSharing::Entry leader(sharing, first, "");
  const uint32_t n_close = 899 - PrefillSharing::kWorthTokens + 1;
  EXPECT_FALSE(Follower(sharing, prompt(900, -2), n_close).result()) << "the store has it";
  EXPECT_FALSE(Follower(sharing, prompt(900, -2), 0, "other").result()) << "another salt";
  auto different = prompt(900, -2);
  different.front() = -3;
  EXPECT_FALSE(Follower(sharing, different, 0).result()) << "nothing in common";
}

TEST(PrefillSharing, TheEarlierNeverWaitsForTheLater) {
  PrefillSharing sharing;
  const auto first = prompt(1000, -1), second = prompt(1000, -2);
  PrefillSharing::Entry leader(sharing, first, "");
  PrefillSharing::Entry later(sharing, second, "");
  EXPECT_FALSE(leader.wait(0, {}));
}

}  // namespace
}  // namespace headstart::exec
