// The contract of store/tier.h, which every tier passes, also behind a wrapper that injects faults
// (here with none armed: a wrapper must not change what it wraps).
// To add a tier: one factory in the list at the end.
#include <gtest/gtest.h>

#include <thread>

#include "store/disk_tier.h"
#include "store/ram_tier.h"
#include "tests/contract/sample_chunks.h"
#include "tests/fault/faulty_disk.h"
#include "tests/support/temp_dir.h"

namespace headstart::store {
namespace {

using samples::CheckingSink;
using samples::Sample;
using samples::tokens_from;
using test::TempDir;

// A tier and whatever it needs to live.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual Tier& tier() = 0;
};

struct Maker {
  const char* name;
  std::unique_ptr<Subject> (*make)(uint64_t budget_bytes);
};

class TierContract : public testing::TestWithParam<Maker> {
 protected:
  void SetUp() override { make(1 << 20); }
  void make(uint64_t budget_bytes) {
    subject_ = nullptr;
    subject_ = GetParam().make(budget_bytes);
  }
  Tier& tier() { return subject_->tier(); }

  Result<void> put(const Sample& sample) { return tier().put(samples::sealed(sample)); }
  Result<void> get(const Sample& sample) {
    CheckingSink sink;
    auto got = tier().get(samples::id_of(sample), samples::all_layers(), sink, kNoDeadline);
    EXPECT_EQ(sink.n_wrong, 0u);
    if (got.ok()) {
      EXPECT_EQ(sink.n_cell, 2 * samples::kShape.n_layer);
      EXPECT_EQ(sink.header().meta.tokens, sample.tokens);
    }
    return got;
  }
  bool holds(const Sample& sample) {
    auto got = get(sample);
    EXPECT_TRUE(got.ok() || got.error().code == Code::kNotFound) << got.error().message;
    return got.ok();
  }
  // The first tokens of the children that share most with the prompt.
  std::vector<std::vector<Token>> children(const Sample& sample) {
    std::vector<std::vector<Token>> out;
    for (const auto& child : tier().children(sample.parent, sample.tokens)) {
      out.push_back(*child.tokens);
    }
    return out;
  }
  static uint64_t size_of(const Sample& sample) { return samples::build(sample).size_bytes(); }

 private:
  std::unique_ptr<Subject> subject_;
};

TEST_P(TierContract, DeliversWhatWasPut) {
  Sample sample;
  EXPECT_FALSE(holds(sample));
  ASSERT_TRUE(put(sample).ok());
  EXPECT_TRUE(holds(sample));
  auto stats = tier().stats();
  EXPECT_EQ(stats.n_chunk, 1u);
  EXPECT_EQ(stats.size_bytes, size_of(sample));
  EXPECT_EQ(stats.n_put, 1u);
  EXPECT_EQ(stats.n_hit, 1u);
  EXPECT_EQ(stats.n_miss, 1u);
}

TEST_P(TierContract, DeliversOnlyTheLayersThatAreWanted) {
  Sample sample{.shape = {5, 1, 8, 8}};
  ASSERT_TRUE(put(sample).ok());
  CheckingSink sink;
  ASSERT_TRUE(tier().get(samples::id_of(sample), {1, 3}, sink, kNoDeadline).ok());
  EXPECT_EQ(sink.layers, (std::vector<uint32_t>{1, 1, 2, 2}));
  EXPECT_EQ(sink.n_wrong, 0u);
}

TEST_P(TierContract, RefusesLayersThatTheChunkLacks) {
  Sample sample;
  ASSERT_TRUE(put(sample).ok());
  for (CellRange want : {CellRange{0, 3}, CellRange{1, 1}, CellRange{2, 1}, CellRange{7, 9}}) {
    CheckingSink sink;
    auto got = tier().get(samples::id_of(sample), want, sink, kNoDeadline);
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.error().code, Code::kInvalidArgument);
    EXPECT_EQ(sink.n_cell, 0u);
  }
  EXPECT_TRUE(holds(sample));
}

TEST_P(TierContract, HandsBackTheRefusalOfASinkAndKeepsTheChunk) {
  Sample sample;
  ASSERT_TRUE(put(sample).ok());
  CheckingSink sink(samples::digest_of(0x99));
  auto got = tier().get(samples::id_of(sample), samples::all_layers(), sink, kNoDeadline);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().message, "a chunk of another model");
  EXPECT_EQ(sink.n_cell, 0u);
  EXPECT_TRUE(holds(sample));
}

TEST_P(TierContract, GivesUpPastTheDeadline) {
  Sample sample;
  ASSERT_TRUE(put(sample).ok());
  CheckingSink sink;
  auto past = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  auto got = tier().get(samples::id_of(sample), samples::all_layers(), sink, past);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, Code::kUnavailable);
  EXPECT_TRUE(holds(sample));
}

TEST_P(TierContract, ReadsWholeChunksWithoutCountingAUse) {
  Sample sample;
  ASSERT_TRUE(put(sample).ok());
  auto chunk = tier().read(samples::id_of(sample));
  ASSERT_TRUE(chunk.ok());
  auto original = samples::sealed(sample);
  EXPECT_TRUE(std::ranges::equal((*chunk)->bytes(), original->bytes()));
  EXPECT_EQ(tier().stats().n_hit, 0u);
  EXPECT_EQ(tier().read(samples::id_of({.tokens = {1}})).error().code, Code::kNotFound);
}

TEST_P(TierContract, ListsTheChildrenOfAKeyWithThoseThatShareMostFirst) {
  Sample near{.tokens = {1, 2, 3, 4}}, nearer{.tokens = {1, 2, 3, 5, 6}}, far{.tokens = {1, 9}};
  Sample other{.tokens = {8, 8}}, below{.parent = samples::digest_of(3), .tokens = {1, 2, 3}};
  for (const Sample& sample : {near, far, other, below, nearer}) ASSERT_TRUE(put(sample).ok());
  EXPECT_EQ(children({.tokens = {1, 2, 3, 5, 7}}),
            (std::vector{nearer.tokens, near.tokens, far.tokens}));
  EXPECT_EQ(children({.tokens = {7}}).size(), 0u);
  EXPECT_EQ(children({.parent = samples::digest_of(4), .tokens = {1}}).size(), 0u);
}

TEST_P(TierContract, BoundsHowManyChildrenItListsAndKeepsTheBest) {
  for (Token t = 0; t < 40; ++t) ASSERT_TRUE(put({.tokens = {1, 2, t}}).ok());
  auto listed = children({.tokens = {1, 2, 20, 21}});
  EXPECT_EQ(listed.size(), kChildrenMax);
  EXPECT_EQ(listed.front(), (std::vector<Token>{1, 2, 20}));
}

TEST_P(TierContract, KeepsChunksOfEveryNumericIdentity) {
  Sample mine, theirs{.numeric = samples::digest_of(0x33)};
  ASSERT_TRUE(put(mine).ok());
  ASSERT_TRUE(put(theirs).ok());
  EXPECT_TRUE(holds(mine));
  EXPECT_TRUE(holds(theirs));
  EXPECT_EQ(children(mine).size(), 2u);
}

TEST_P(TierContract, ReplacesATailByALongerOne) {
  Sample tail{.tokens = {1, 2, 3}, .flags = kv::kFlagTail};
  Sample longer{.tokens = {1, 2, 3, 4}, .flags = kv::kFlagTail};
  Sample full{.tokens = {1, 2, 3, 4, 5}};
  ASSERT_TRUE(put(tail).ok());
  ASSERT_TRUE(put(longer).ok());
  EXPECT_FALSE(holds(tail));
  EXPECT_TRUE(holds(longer));
  ASSERT_TRUE(put(full).ok());
  EXPECT_FALSE(holds(longer));
  EXPECT_TRUE(holds(full));
  EXPECT_EQ(tier().stats().n_chunk, 1u);
  EXPECT_EQ(tier().stats().size_bytes, size_of(full));
}

TEST_P(TierContract, IgnoresATailThatALongerChunkCovers) {
  Sample full{.tokens = {1, 2, 3, 4}}, tail{.tokens = {1, 2}, .flags = kv::kFlagTail};
  ASSERT_TRUE(put(full).ok());
  ASSERT_TRUE(put(tail).ok());
  EXPECT_FALSE(holds(tail));
  EXPECT_EQ(tier().stats().n_put, 1u);
}

TEST_P(TierContract, KeepsATailThatIsStricterThanWhatIsLonger) {
  Sample tail{.tokens = {1, 2, 3}, .flags = kv::kFlagTail};
  Sample loose{.tokens = {1, 2, 3, 4}, .flags = kv::kFlagTail, .n_strict = 1};
  ASSERT_TRUE(put(tail).ok());
  ASSERT_TRUE(put(loose).ok());
  EXPECT_TRUE(holds(tail));
  EXPECT_TRUE(holds(loose));
}

TEST_P(TierContract, NeverReplacesFullChunksTailsOfOthersOrBranches) {
  Sample full{.tokens = {1, 2}};
  Sample theirs{.tokens = {1, 2}, .numeric = samples::digest_of(0x33), .flags = kv::kFlagTail};
  Sample branch{.tokens = {1, 7}, .flags = kv::kFlagTail};
  for (const Sample& sample : {full, theirs, branch, Sample{.tokens = {1, 2, 3}}}) {
    ASSERT_TRUE(put(sample).ok());
  }
  EXPECT_TRUE(holds(full));
  EXPECT_TRUE(holds(theirs));
  EXPECT_TRUE(holds(branch));
}

TEST_P(TierContract, ReplacesFewerStrictTokensByMore) {
  Sample loose{.n_strict = 2}, strict{.n_strict = 6};
  ASSERT_TRUE(put(loose).ok());
  ASSERT_TRUE(put(strict).ok());
  EXPECT_EQ(tier().children(loose.parent, loose.tokens).at(0).n_strict, 6u);
  ASSERT_TRUE(put(loose).ok());
  CheckingSink sink;
  ASSERT_TRUE(tier().get(samples::id_of(loose), samples::all_layers(), sink, kNoDeadline).ok());
  EXPECT_EQ(sink.header().meta.n_strict, 6u);
  EXPECT_EQ(tier().stats().n_chunk, 1u);
  EXPECT_EQ(tier().stats().size_bytes, size_of(loose));
}

TEST_P(TierContract, StaysWithinItsBudgetAndEvictsLeavesFirst) {
  const uint64_t size = size_of({});
  make(4 * size);
  std::vector<Sample> chain(1);
  for (int i = 0; i < 9; ++i) {
    chain.push_back(samples::after(chain.back()));
  }
  for (const Sample& sample : chain) {
    ASSERT_TRUE(put(sample).ok());
    EXPECT_LE(tier().stats().size_bytes, 4 * size);
  }
  // What is left is a run from the root: nothing unreachable was kept.
  size_t n_held = 0;
  while (n_held < chain.size() && holds(chain[n_held])) ++n_held;
  EXPECT_EQ(n_held, 4u);
  EXPECT_EQ(tier().stats().n_chunk, n_held);
  EXPECT_EQ(tier().stats().n_evicted, 6u);
}

TEST_P(TierContract, RefusesWhatIsLargerThanItsBudget) {
  Sample sample;
  make(size_of(sample) - 1);
  auto stored = put(sample);
  ASSERT_FALSE(stored.ok());
  EXPECT_EQ(stored.error().code, Code::kExhausted);
  EXPECT_EQ(tier().stats().n_chunk, 0u);
  EXPECT_EQ(tier().stats().n_put_failed, 1u);
}

TEST_P(TierContract, KeepsWhatIsUsedOverWhatIsNot) {
  make(8 * size_of({}));
  Sample used{.tokens = tokens_from(1000, 8)};
  ASSERT_TRUE(put(used).ok());
  for (Token i = 0; i < 40; ++i) {
    ASSERT_TRUE(put({.tokens = tokens_from(2000 + i, 8)}).ok());
    tier().note_use(samples::id_of(used));
  }
  EXPECT_TRUE(holds(used));
}

TEST_P(TierContract, ErasesOneAndClearsAll) {
  Sample a{.tokens = {1}}, b{.tokens = {2}}, c{.tokens = {3}};
  for (const Sample& sample : {a, b, c}) ASSERT_TRUE(put(sample).ok());
  ASSERT_TRUE(tier().erase(samples::id_of(a)).ok());
  ASSERT_TRUE(tier().erase(samples::id_of(a)).ok());  // absent is success
  EXPECT_FALSE(holds(a));
  EXPECT_TRUE(holds(b));
  ASSERT_TRUE(tier().clear().ok());
  EXPECT_FALSE(holds(b));
  EXPECT_EQ(tier().stats().n_chunk, 0u);
  EXPECT_EQ(tier().stats().size_bytes, 0u);
  EXPECT_TRUE(children(c).empty());
  ASSERT_TRUE(put(c).ok());
  EXPECT_TRUE(holds(c));
}

TEST_P(TierContract, VerifiesEverything) {
  for (Token t = 1; t <= 5; ++t) ASSERT_TRUE(put({.tokens = {t}}).ok());
  auto report = tier().verify();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->n_ok, 5u);
  EXPECT_EQ(report->n_corrupt, 0u);
}

// Meant for ThreadSanitizer: every method at once, with evictions; whatever is delivered is right.
TEST_P(TierContract, HoldsWhenEveryMethodIsCalledAtOnce) {
  make(12 * size_of({}));
  auto sample_of = [](Token t) { return Sample{.tokens = tokens_from(t * 100, 8)}; };
  std::atomic<size_t> n_hit = 0;
  std::vector<std::thread> threads;
  for (Token thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (Token i = 0; i < 150; ++i) {
        const Sample sample = sample_of((i * 7 + thread) % 20);
        CheckingSink sink;
        if (thread % 2 == 0) {
          EXPECT_TRUE(put(sample).ok());
        } else if (i % 50 == 49) {
          EXPECT_TRUE(tier().verify().ok());
          EXPECT_TRUE(tier().erase(samples::id_of(sample)).ok());
        }
        tier().children(sample.parent, sample.tokens);
        auto got = tier().get(samples::id_of(sample), samples::all_layers(), sink, kNoDeadline);
        EXPECT_EQ(sink.n_wrong, 0u);
        EXPECT_TRUE(got.ok() || got.error().code == Code::kNotFound);
        n_hit += got.ok();
        tier().stats();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(n_hit, 0u);
  EXPECT_LE(tier().stats().size_bytes, tier().stats().budget_bytes);
  EXPECT_EQ(tier().stats().n_corrupt, 0u);
}

class RamSubject final : public Subject {
 public:
  explicit RamSubject(uint64_t budget_bytes) : tier_(budget_bytes) {}
  Tier& tier() override { return tier_; }

 private:
  RamTier tier_;
};

class DiskSubject final : public Subject {
 public:
  DiskSubject(uint64_t budget_bytes, bool wrapped) : faulty_(posix_) {
    Disk& disk = wrapped ? static_cast<Disk&>(faulty_) : posix_;
    tier_ = *DiskTier::open(dir_.path() / "kv", budget_bytes, disk, clock_);
  }
  Tier& tier() override { return *tier_; }

 private:
  TempDir dir_;
  PosixDisk posix_;
  faults::FaultyDisk faulty_;
  SystemClock clock_;
  std::unique_ptr<DiskTier> tier_;
};

template <class T, auto... args>
std::unique_ptr<Subject> made(uint64_t budget_bytes) {
  return std::make_unique<T>(budget_bytes, args...);
}

INSTANTIATE_TEST_SUITE_P(, TierContract,
                         testing::Values(Maker{"Ram", made<RamSubject>},
                                         Maker{"Disk", made<DiskSubject, false>},
                                         Maker{"DiskBehindFaults", made<DiskSubject, true>}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace headstart::store
