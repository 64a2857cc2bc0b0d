// store/store: the longest match over all tiers and what still waits, loading with fall-back,
// storing in the background. Tiers are real RAM tiers, or Scripted ones that fail as told.
// To add a case: put chunks with fill(), then look at match() and load().
#include "store/store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>

#include "store/ram_tier.h"
#include "tests/contract/sample_chunks.h"

namespace headstart::store {
namespace {

using samples::after;
using samples::CheckingSink;
using samples::Sample;
using samples::tokens_from;

const Digest kOther = samples::digest_of(0x33);

// A RAM tier whose get() can be made to fail and whose put() can be held up.
class Scripted final : public Tier {
 public:
  explicit Scripted(std::string name, uint64_t budget_bytes = 1 << 20)
      : name_(std::move(name)), tier_(budget_bytes) {}

  std::string_view name() const override { return name_; }
  std::vector<ChunkSummary> children(const Digest& parent_key,
                                     std::span<const Token> tokens) override {
    return tier_.children(parent_key, tokens);
  }
  Result<void> get(const kv::ChunkId& id, CellRange want, CellSink& sink,
                   Deadline deadline) override {
    ++n_get;
    if (!fail_get) return tier_.get(id, want, sink, deadline);
    // Half-way through, as a damaged file would.
    auto chunk = tier_.read(id);
    if (chunk.ok() && sink.begin((*chunk)->header()).ok()) {
      const std::vector<kv::Half> wrong((*chunk)->header().cells[0].size_bytes / 2, 0xdead);
      sink.cell(0, kv::Part::kKey, wrong);
    }
    return Error{Code::kCorrupt, "scripted"};
  }
  Result<kv::ChunkPtr> read(const kv::ChunkId& id) override { return tier_.read(id); }
  void note_use(const kv::ChunkId&) override { ++n_note; }
  Result<void> put(kv::ChunkPtr chunk) override {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !held_; });
    ++*n_put;
    return tier_.put(std::move(chunk));
  }
  Result<void> erase(const kv::ChunkId& id) override { return tier_.erase(id); }
  Result<void> clear() override { return tier_.clear(); }
  Result<VerifyReport> verify() override { return tier_.verify(); }
  TierStats stats() const override { return tier_.stats(); }

  void hold() {
    std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    std::lock_guard lock(mutex_);
    held_ = false;
    released_.notify_all();
  }

  std::atomic<bool> fail_get = false;
  std::atomic<int> n_get = 0, n_note = 0;
  const std::shared_ptr<std::atomic<int>> n_put = std::make_shared<std::atomic<int>>(0);

 private:
  std::string name_;
  RamTier tier_;
  std::mutex mutex_;
  std::condition_variable released_;
  bool held_ = false;
};

class StoreTest : public testing::Test {
 protected:
  StoreTest() {
    std::vector<std::unique_ptr<Tier>> tiers;
    tiers.push_back(std::make_unique<Scripted>("fast"));
    tiers.push_back(std::make_unique<Scripted>("slow"));
    fast = static_cast<Scripted*>(tiers[0].get());
    slow = static_cast<Scripted*>(tiers[1].get());
    store = std::make_unique<Store>(std::move(tiers), 1 << 20);
  }

  static void fill(Tier& tier, std::initializer_list<Sample> chunks) {
    for (const Sample& sample : chunks) ASSERT_TRUE(tier.put(samples::sealed(sample)).ok());
  }
  static MatchQuery query(std::span<const Token> tokens, ReuseMode mode = ReuseMode::kExact) {
    return {.fingerprint = samples::kModel,
            .numeric = samples::kNumeric,
            .shape = samples::kShape,
            .salt = "",
            .tokens = tokens,
            .mode = mode};
  }
  Result<std::string_view> load(const MatchedChunk& matched, CellSink& sink) {
    return store->load(matched, samples::all_layers(), sink, kNoDeadline);
  }
  static std::vector<Token> joined(std::initializer_list<std::vector<Token>> parts) {
    std::vector<Token> out;
    for (const auto& part : parts) out.insert(out.end(), part.begin(), part.end());
    return out;
  }

  Scripted* fast;
  Scripted* slow;
  std::unique_ptr<Store> store;

  // A chain of three chunks of eight tokens.
  const Sample a{.tokens = tokens_from(0, 8)};
  const Sample b = [this] {
    Sample next = after(a);
    next.tokens = tokens_from(8, 8);
    return next;
  }();
  const Sample c = [this] {
    Sample next = after(b);
    next.tokens = tokens_from(16, 8);
    return next;
  }();
};

TEST_F(StoreTest, MatchesTheLongestRunOverAllTiers) {
  fill(*fast, {a, c});
  fill(*slow, {b});
  auto prompt = tokens_from(0, 30);
  Match match = store->match(query(prompt));
  EXPECT_EQ(match.n_token, 24u);
  EXPECT_EQ(match.n_strict, 24u);
  ASSERT_EQ(match.chunks.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(match.chunks[i].pos_first, 8 * i);
    EXPECT_EQ(match.chunks[i].n_use, 8u);
    CheckingSink sink;
    EXPECT_TRUE(load(match.chunks[i], sink).ok());
    EXPECT_EQ(sink.n_wrong, 0u);
  }
}

TEST_F(StoreTest, UsesOnlyTheLastChunkInPart) {
  fill(*fast, {a, b, c});
  auto prompt = tokens_from(0, 12);
  prompt.push_back(99);
  prompt.push_back(100);
  Match match = store->match(query(prompt));
  EXPECT_EQ(match.n_token, 12u);
  ASSERT_EQ(match.chunks.size(), 2u);
  EXPECT_EQ(match.chunks[1].n_use, 4u);
}

TEST_F(StoreTest, MatchesNoMoreTokensThanAsked) {
  fill(*fast, {a, b});
  for (uint32_t n = 0; n <= 16; ++n) {
    EXPECT_EQ(store->match(query(tokens_from(0, n))).n_token, n);
  }
}

TEST_F(StoreTest, MatchesNothingOfAnotherModelSaltShapeOrPrompt) {
  fill(*fast, {a, b});
  auto prompt = tokens_from(0, 16);
  MatchQuery wrong = query(prompt);
  wrong.fingerprint = kOther;
  EXPECT_EQ(store->match(wrong).n_token, 0u);
  wrong = query(prompt);
  wrong.salt = "someone else";
  EXPECT_EQ(store->match(wrong).n_token, 0u);
  wrong = query(prompt);
  wrong.shape.n_head_kv = 2;
  EXPECT_EQ(store->match(wrong).n_token, 0u);
  EXPECT_EQ(store->match(query(tokens_from(1, 16))).n_token, 0u);
  EXPECT_EQ(store->match(query(prompt, ReuseMode::kOff)).n_token, 0u);
}

// Case 6: tokens are compared, never hashes alone. A chunk filed under the right parent whose
// header names another model (as after a collision of keys) is not used.
TEST_F(StoreTest, NeverTrustsTheKeyAlone) {
  Sample foreign = a;
  foreign.fingerprint = kOther;
  fill(*fast, {foreign});
  EXPECT_EQ(store->match(query(tokens_from(0, 8))).n_token, 0u);
}

TEST_F(StoreTest, TakesTheWayThatReachesFurthest) {
  // One child shares 12 tokens and ends there; another shares 8 and goes on.
  Sample wide = a;
  wide.tokens = tokens_from(0, 12);
  wide.tokens.push_back(77);
  fill(*fast, {wide, a, b, c});
  Match match = store->match(query(tokens_from(0, 24)));
  EXPECT_EQ(match.n_token, 24u);
  EXPECT_EQ(match.chunks.front().n_use, 8u);
  // Where it does not go on, the wider one wins.
  EXPECT_EQ(store->match(query(joined({tokens_from(0, 12), {50, 51}}))).n_token, 12u);
}

TEST_F(StoreTest, PrefersOwnIdentityThenStrictTokens) {
  Sample theirs = a;
  theirs.numeric = kOther;
  Sample loose = a;
  loose.n_strict = 3;
  fill(*fast, {theirs});
  auto prompt = tokens_from(0, 8);
  Match match = store->match(query(prompt));
  EXPECT_EQ(match.n_token, 8u);
  EXPECT_EQ(match.n_strict, 0u);
  fill(*slow, {loose});
  match = store->match(query(prompt));
  EXPECT_EQ(match.chunks.at(0).chunk.id.numeric, samples::kNumeric);
  EXPECT_EQ(match.n_strict, 3u);
}

TEST_F(StoreTest, StrictModeUsesOnlyWhatHasTheBitsOfAColdRun) {
  Sample theirs = b;
  theirs.numeric = kOther;
  fill(*fast, {a, theirs});
  auto prompt = tokens_from(0, 24);
  EXPECT_EQ(store->match(query(prompt)).n_token, 16u);
  EXPECT_EQ(store->match(query(prompt)).n_strict, 8u);
  EXPECT_EQ(store->match(query(prompt, ReuseMode::kStrict)).n_token, 8u);

  Sample loose = b;  // ours, its last tokens made by decoding
  loose.n_strict = 5;
  fill(*slow, {loose, c});
  Match strict = store->match(query(prompt, ReuseMode::kStrict));
  EXPECT_EQ(strict.n_token, 13u);
  EXPECT_EQ(strict.n_strict, 13u);
  Match exact = store->match(query(prompt));
  EXPECT_EQ(exact.n_token, 24u);
  EXPECT_EQ(exact.n_strict, 13u) << "what stands behind a rounded token is rounded";
}

TEST_F(StoreTest, TakesTheStricterOfTwoCopies) {
  Sample loose = a;
  loose.n_strict = 2;
  fill(*fast, {loose});
  fill(*slow, {a});
  Match match = store->match(query(tokens_from(0, 8), ReuseMode::kStrict));
  EXPECT_EQ(match.n_token, 8u);
  CheckingSink sink;
  ASSERT_TRUE(load(match.chunks.at(0), sink).ok());
  EXPECT_EQ(sink.header().meta.n_strict, 8u) << "the looser copy was refused";
}

TEST_F(StoreTest, FindsAndLoadsChunksThatStillWait) {
  fast->hold();
  ASSERT_TRUE(store->put(samples::build(a)));
  ASSERT_TRUE(store->put(samples::build(b)));
  Match match = store->match(query(tokens_from(0, 16)));
  EXPECT_EQ(match.n_token, 16u);
  for (const auto& matched : match.chunks) {
    CheckingSink sink;
    EXPECT_EQ(*load(matched, sink), kQueueName);
    EXPECT_EQ(sink.n_wrong, 0u);
    EXPECT_EQ(sink.n_cell, 4u);
  }
  EXPECT_EQ(fast->n_get + slow->n_get, 0);
  EXPECT_GT(store->stats().queue_bytes, 0u);
  fast->release();
  store->flush();
  EXPECT_EQ(store->stats().queue_bytes, 0u);
  EXPECT_EQ(fast->stats().n_chunk, 2u);
  EXPECT_EQ(slow->stats().n_chunk, 2u);
  EXPECT_EQ(store->match(query(tokens_from(0, 16))).n_token, 16u);
}

TEST_F(StoreTest, DropsAndCountsWhatTheQueueCannotHold) {
  std::vector<std::unique_ptr<Tier>> tiers;
  tiers.push_back(std::make_unique<Scripted>("only"));
  auto* only = static_cast<Scripted*>(tiers[0].get());
  only->hold();
  Store small(std::move(tiers), 2 * samples::build(a).size_bytes());
  EXPECT_TRUE(small.put(samples::build(a)));
  EXPECT_TRUE(small.put(samples::build(b)));
  EXPECT_FALSE(small.put(samples::build(c)));
  EXPECT_EQ(small.stats().n_queue_dropped, 1u);
  only->release();
  small.flush();
  EXPECT_EQ(only->stats().n_chunk, 2u);
  EXPECT_TRUE(small.put(samples::build(c)));
}

TEST_F(StoreTest, StoresEverythingBeforeItIsDestroyed) {
  for (Token t = 0; t < 50; ++t) ASSERT_TRUE(store->put(samples::build({.tokens = {t, 1}})));
  auto n_put = slow->n_put;
  store = nullptr;
  EXPECT_EQ(*n_put, 50);
}

TEST_F(StoreTest, FallsBackToTheNextTierAndOverwritesWhatTheFirstHandedOver) {
  fill(*fast, {a});
  fill(*slow, {a});
  fast->fail_get = true;
  Match match = store->match(query(tokens_from(0, 8)));
  CheckingSink sink;
  EXPECT_EQ(*load(match.chunks.at(0), sink), slow->name());
  EXPECT_EQ(sink.n_cell, 4u);
  EXPECT_EQ(fast->n_get, 1);
  EXPECT_EQ(slow->n_get, 1);
  slow->fail_get = true;
  auto failed = load(match.chunks.at(0), sink);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::kCorrupt);
}

TEST_F(StoreTest, AsksNoOtherTierWhereTheSinkRefuses) {
  fill(*fast, {a});
  fill(*slow, {a});
  Match match = store->match(query(tokens_from(0, 8)));
  CheckingSink sink(kOther);
  EXPECT_EQ(load(match.chunks.at(0), sink).error().message, "a chunk of another model");
  EXPECT_EQ(slow->n_get, 0);
}

TEST_F(StoreTest, ReportsAChunkThatVanishedSinceItWasMatched) {
  fill(*fast, {a});
  Match match = store->match(query(tokens_from(0, 8)));
  ASSERT_TRUE(fast->erase(samples::id_of(a)).ok());
  CheckingSink sink;
  EXPECT_EQ(load(match.chunks.at(0), sink).error().code, Code::kNotFound);
}

TEST_F(StoreTest, CopiesWholeLoadsToFasterTiersInTheBackground) {
  fill(*slow, {a, b});
  Match match = store->match(query(tokens_from(0, 16)));
  CheckingSink sink;
  ASSERT_TRUE(load(match.chunks.at(0), sink).ok());
  ASSERT_TRUE(store->load(match.chunks.at(1), {0, 1}, sink, kNoDeadline).ok());
  store->flush();
  EXPECT_TRUE(fast->read(samples::id_of(a)).ok());
  EXPECT_FALSE(fast->read(samples::id_of(b)).ok()) << "only part of it was loaded";
  const int n_get = slow->n_get;
  ASSERT_TRUE(load(match.chunks.at(0), sink).ok());
  EXPECT_EQ(slow->n_get, n_get);
  store->flush();
  EXPECT_EQ(slow->n_note, 1) << "the slower tier learns of uses that the faster one served";
}

TEST_F(StoreTest, VerifiesAndClearsEveryTier) {
  fill(*fast, {a});
  fill(*slow, {a, b});
  auto report = store->verify();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->n_ok, 3u);
  ASSERT_TRUE(store->clear().ok());
  EXPECT_EQ(fast->stats().n_chunk + slow->stats().n_chunk, 0u);
  EXPECT_EQ(store->match(query(tokens_from(0, 16))).n_token, 0u);
}

TEST_F(StoreTest, WorksWithoutTiers) {
  Store empty({}, 1 << 20);
  EXPECT_TRUE(empty.put(samples::build(a)));
  empty.flush();
  EXPECT_EQ(empty.match(query(tokens_from(0, 8))).n_token, 0u);
}

// Meant for ThreadSanitizer: prompts that share a beginning, matched, loaded and stored at once.
TEST_F(StoreTest, HoldsWhenManyThreadsMatchLoadAndPut) {
  std::atomic<uint64_t> n_reused = 0;
  std::vector<std::thread> threads;
  for (Token thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (Token round = 0; round < 60; ++round) {
        std::vector<Sample> chain = {a, b};
        Sample own = after(b);
        own.tokens = tokens_from(1000 * (round % 10 + 1) + thread % 2, 8);
        chain.push_back(own);
        auto prompt = joined({a.tokens, b.tokens, own.tokens});
        Match match = store->match(query(prompt));
        uint32_t n_token = 0;
        for (const MatchedChunk& matched : match.chunks) {
          EXPECT_EQ(matched.pos_first, n_token);
          n_token += matched.n_use;
          CheckingSink sink;
          auto loaded = load(matched, sink);
          EXPECT_TRUE(loaded.ok() || loaded.error().code == Code::kNotFound);
          EXPECT_EQ(sink.n_wrong, 0u);
        }
        EXPECT_EQ(n_token, match.n_token);
        n_reused += n_token;
        for (size_t i = match.chunks.size(); i < chain.size(); ++i) {
          store->put(samples::build(chain[i]));
        }
        if (round % 20 == 19) store->flush();
        store->stats();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(n_reused, 0u);
}

}  // namespace
}  // namespace headstart::store
