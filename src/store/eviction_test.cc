// store/eviction: what a full tier gives up first. Costs, sizes and uses are chosen by each test;
// nothing is measured, no time passes but by chunks that arrive.
// To add a case: drive Tier below as a tier would, then look at what it still holds.
#include "store/eviction.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

namespace headstart::store {
namespace {

Digest key(uint64_t n) {
  Digest digest{};
  std::memcpy(digest.data(), &n, sizeof(n));
  return digest;
}

constexpr uint64_t kRoot = ~uint64_t{0};

// A tier without chunks: it evicts as soon as the budget is passed.
class Tier {
 public:
  explicit Tier(uint64_t budget_bytes) : budget_bytes_(budget_bytes), policy_(budget_bytes) {}

  static kv::ChunkId id(uint64_t n, uint64_t numeric = 0) { return {key(n), key(numeric)}; }
  void add(uint64_t n, uint64_t parent = kRoot, double compute_s = 1, uint64_t size_bytes = 1) {
    policy_.add({id(n), key(parent), size_bytes, compute_s, parent == kRoot});
    shrink();
  }
  void shrink() {
    while (policy_.size_bytes() > budget_bytes_) policy_.evict();
  }
  // As a request does: what is there of the run is used, the rest is computed and added.
  // Returns how many leading chunks were there.
  uint64_t request(uint64_t first, uint64_t n_chunk, double growth = 0) {
    uint64_t n_hit = 0;
    while (n_hit < n_chunk && has(first + n_hit)) policy_.use(id(first + n_hit++));
    for (uint64_t i = n_hit; i < n_chunk; ++i) {
      const double compute_s = 1 + growth * static_cast<double>(i);
      if (has(first + i)) {
        policy_.use(id(first + i));
      } else {
        add(first + i, i == 0 ? kRoot : first + i - 1, compute_s);
      }
    }
    return n_hit;
  }
  bool has(uint64_t n) const { return policy_.contains(id(n)); }
  Eviction& policy() { return policy_; }

 private:
  uint64_t budget_bytes_;
  Eviction policy_;
};

TEST(Eviction, TakesTheOldestOfEqualChunks) {
  Tier tier(3);
  for (uint64_t n = 0; n < 4; ++n) tier.add(n);
  EXPECT_FALSE(tier.has(0));
  EXPECT_TRUE(tier.has(1) && tier.has(2) && tier.has(3));
}

TEST(Eviction, KeepsWhatSavesMoreComputeSecondsForItsBytes) {
  Tier tier(30);
  tier.add(1, kRoot, /*compute_s=*/8, /*size_bytes=*/10);
  tier.add(2, kRoot, /*compute_s=*/4, /*size_bytes=*/10);
  tier.add(3, kRoot, /*compute_s=*/4, /*size_bytes=*/5);  // as dense as chunk 1
  tier.add(4, kRoot, /*compute_s=*/8, /*size_bytes=*/10);
  EXPECT_FALSE(tier.has(2));
  EXPECT_TRUE(tier.has(1) && tier.has(3) && tier.has(4));
}

TEST(Eviction, ForgetsAnExpensiveChunkThatIsNeverUsed) {
  Tier tier(10);
  tier.add(1, kRoot, /*compute_s=*/16);
  uint64_t n = 2;
  while (tier.has(1) && n < 1000) tier.add(n++);
  // 16 times the worth is four half-lives of half a budget.
  EXPECT_GT(n, 20u);
  EXPECT_LT(n, 60u);
}

TEST(Eviction, EvictsLeavesBeforeTheirParents) {
  Tier tier(4);
  tier.request(0, 4);
  tier.add(10);
  EXPECT_TRUE(tier.has(0) && tier.has(1) && tier.has(2) && tier.has(10));
  EXPECT_FALSE(tier.has(3));
}

TEST(Eviction, NeverKeepsAChunkThatCannotBeReached) {
  // Random runs that share prefixes, in a tier that is always full.
  std::mt19937 random(7);
  Tier tier(20);
  std::set<std::pair<uint64_t, uint64_t>> links;  // child, parent
  for (int round = 0; round < 2000; ++round) {
    uint64_t parent = kRoot, node = 1;
    for (int depth = 0; depth < 6; ++depth) {
      node = node * 3 + random() % 3;
      links.insert({node, parent});
      if (tier.has(node)) {
        tier.policy().use(Tier::id(node));
      } else {
        tier.add(node, parent);
      }
      parent = node;
    }
    for (auto [child, above] : links) {
      ASSERT_TRUE(!tier.has(child) || above == kRoot || tier.has(above)) << "round " << round;
    }
  }
}

TEST(Eviction, GivesUpOrphansFirst) {
  Tier tier(4);
  tier.request(0, 3);
  tier.add(20, /*parent=*/19, /*compute_s=*/100);
  EXPECT_TRUE(tier.has(20)) << "there was room";
  tier.add(30);
  EXPECT_FALSE(tier.has(20));
  EXPECT_TRUE(tier.has(2));
  // One whose parent arrives later is no orphan any more.
  Tier other(3);
  other.add(20, 19);
  other.add(19);
  other.add(30);
  other.add(31);
  EXPECT_TRUE(other.has(19));
  EXPECT_FALSE(other.has(20)) << "the oldest leaf";
}

TEST(Eviction, MayDropOneOfTwoIdentitiesOfAParent) {
  Tier tier(3);
  Eviction& policy = tier.policy();
  policy.add({Tier::id(1, 1), key(kRoot), 1, 1, true});
  policy.add({Tier::id(1, 2), key(kRoot), 1, 1, true});
  policy.add({Tier::id(2, 2), key(1), 1, 1, false});
  policy.use(Tier::id(2, 2));
  EXPECT_EQ(policy.evict(), Tier::id(1, 1));
  EXPECT_EQ(policy.evict(), Tier::id(2, 2)) << "the last copy of a parent stays with its child";
}

TEST(Eviction, ErasesWithoutRemembering) {
  Tier tier(3);
  tier.add(1);
  tier.policy().erase(Tier::id(1));
  tier.policy().erase(Tier::id(1));
  tier.policy().use(Tier::id(1));
  EXPECT_EQ(tier.policy().n_chunk(), 0u);
  EXPECT_EQ(tier.policy().size_bytes(), 0u);
  EXPECT_EQ(tier.policy().n_ghost(), 0u);
  EXPECT_EQ(tier.policy().evict(), std::nullopt);
}

TEST(Eviction, BoundsItsGhosts) {
  Eviction policy(10, {.ghost_budgets = 4, .n_ghost_max = 25});
  for (uint64_t n = 0; n < 500; ++n) {
    policy.add({Tier::id(n), key(kRoot), 1, 1, true});
    while (policy.size_bytes() > 10) policy.evict();
    EXPECT_LE(policy.n_ghost(), 25u);
  }
  Tier bytes(10);
  for (uint64_t n = 0; n < 500; ++n) bytes.add(n, kRoot, 1, 2);
  EXPECT_LE(bytes.policy().n_ghost(), 20u);
}

TEST(Eviction, PrefersAChunkThatCameBackToOneThatDidNot) {
  Tier tier(4);
  for (uint64_t n = 0; n < 8; ++n) tier.add(n);  // 0 to 3 are ghosts now
  tier.add(0);
  for (uint64_t n = 20; n < 24; ++n) tier.add(n);
  EXPECT_TRUE(tier.has(0)) << "it was wanted twice";
}

TEST(Eviction, LetsALongerChunkInheritTheUsesOfTheTailItReplaces) {
  Tier tier(4);
  tier.add(1);
  for (int i = 0; i < 5; ++i) tier.policy().use(Tier::id(1));
  const kv::ChunkId tail = Tier::id(1);
  tier.policy().add({Tier::id(2), key(kRoot), 1, 1, true}, std::span(&tail, 1));
  tier.policy().erase(tail);
  for (uint64_t n = 10; n < 18; ++n) tier.add(n);
  EXPECT_TRUE(tier.has(2));
}

// Case 10 of the public bug reports: an agent's short side calls between two long turns.
TEST(Eviction, KeepsTheLongConversationThroughShortSideCalls) {
  // The tier holds little more than the conversation, every side call is new, and three of them
  // follow each turn. A side call may take no more than its own size, and from the second turn on,
  // when the conversation is known to be one, no more than the newest turn.
  constexpr uint64_t kSideCall = 15, kTurn = 4;
  Tier tier(110);
  uint64_t side = 10'000;
  for (uint64_t turn = 0; turn < 8; ++turn) {
    const uint64_t n_known = turn == 0 ? 0 : 70 + kTurn * (turn - 1);
    const uint64_t n_lost = n_known - tier.request(0, 70 + kTurn * turn);
    EXPECT_LE(n_lost, turn < 2 ? kSideCall : kTurn) << "turn " << turn;
    for (int call = 0; call < 3; ++call) {
      tier.request(side, kSideCall);
      side += 1000;
    }
  }
}

TEST(Eviction, KeepsTheLongConversationBecauseItsLaterChunksCostMore) {
  // Attention makes each further chunk dearer: even before the second turn a side call does not
  // displace what took much longer to compute.
  Tier tier(100);
  tier.request(0, 95, /*growth=*/0.05);
  tier.request(10'000, 20);
  EXPECT_EQ(tier.request(0, 95, 0.05), 95u);
}

TEST(Eviction, SurvivesAScanOfChunksThatAreNeverUsedAgain) {
  Tier tier(100);
  for (int turn = 0; turn < 4; ++turn) tier.request(0, 50);
  for (uint64_t n = 0; n < 12; ++n) tier.request(10'000 + 1000 * n, 10);
  EXPECT_EQ(tier.request(0, 50), 50u);
}

}  // namespace
}  // namespace headstart::store
