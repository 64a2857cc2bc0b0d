// bench/eviction_bench: the replays count hits as they claim to, on traces small enough to count
// by hand, and the policy beats LRU where LRU is known to fail.
#include "bench/eviction_bench.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace headstart::bench {
namespace {

TEST(ParseTrace, ReadsTheBlocksOfEveryRequest) {
  auto trace = parse_trace(
      "{\"timestamp\": 0, \"hash_ids\": [1, 2,3]}\n\n{\"hash_ids\":[],\"x\":[9]}\n{\"hash_ids\" : "
      "[4]}");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(*trace, (Trace{{1, 2, 3}, {}, {4}}));
}

TEST(ParseTrace, NamesTheLineThatIsWrong) {
  for (const char* line : {"{}", "{\"hash_ids\": 3}", "{\"hash_ids\": [1, x]}", "{\"hash_ids\": [1",
                           "{\"hash_ids\": [-1]}", "{\"hash_ids\": [99999999999999999999]}"}) {
    auto trace = parse_trace(std::string("{\"hash_ids\": []}\n") + line);
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_EQ(trace.error().code, Code::kCorrupt);
    EXPECT_EQ(trace.error().message.find("line 2"), 0u) << trace.error().message;
  }
}

TEST(Replay, CountsOnlyBlocksWhoseWholePrefixHits) {
  // The second request lacks block 2, so its blocks 3 and 4 do not count.
  const Trace trace = {{1, 3, 4}, {1, 2, 3, 4}};
  EXPECT_EQ(hits_lru(trace, 10), 1u);
  EXPECT_EQ(hits_belady(trace, 10), 1u);
  EXPECT_EQ(hits_headstart(trace, 10), 1u);
}

TEST(Replay, LruForgetsTheLeastRecentlyUsed) {
  const Trace trace = {{1}, {2}, {1}, {3}, {2}, {1}};
  EXPECT_EQ(hits_lru(trace, 2), 1u);
  EXPECT_EQ(hits_lru(trace, 3), 3u);
}

TEST(Replay, BeladyKeepsWhatIsAskedForSoonest) {
  const Trace trace = {{1}, {2}, {3}, {1}, {2}, {3}};
  EXPECT_EQ(hits_lru(trace, 2), 0u);
  EXPECT_EQ(hits_belady(trace, 2), 2u);
}

// Ten popular prompts among three times as many that never come back.
Trace popular_among_singles() {
  Trace trace;
  BlockId single = 1000;
  for (int round = 0; round < 60; ++round) {
    for (BlockId popular = 0; popular < 10; ++popular) {
      trace.push_back({popular * 2, popular * 2 + 1});
      for (int i = 0; i < 3; ++i, single += 2) trace.push_back({single, single + 1});
    }
  }
  return trace;
}

TEST(Replay, BeatsLruWherePopularPromptsStandAmongSingles) {
  const Trace trace = popular_among_singles();
  const uint64_t lru = hits_lru(trace, 30), ours = hits_headstart(trace, 30),
                 best = hits_belady(trace, 30);
  EXPECT_EQ(lru, 0u);
  EXPECT_GT(ours, best * 3 / 4);
  EXPECT_LE(ours, best);
}

TEST(BenchEviction, ComparesAtThreeCapacities) {
  test::TempDir dir;
  std::ofstream file(dir / "trace.jsonl");
  for (const auto& request : popular_among_singles()) {
    file << "{\"hash_ids\": [" << request[0] << ", " << request[1] << "]}\n";
  }
  file.close();
  auto rows = bench_eviction(dir / "trace.jsonl");
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  ASSERT_EQ(rows->size(), 6u);
  for (const EvictionRow& row : *rows) {
    EXPECT_EQ(row.n, 60u * 10 * 4 * 2);
    EXPECT_DOUBLE_EQ(row.ratio, row.reference > 0 ? row.value / row.reference : 0);
  }
  EXPECT_EQ(rows->at(0).name, "1 % of the footprint, against lru");
  EXPECT_EQ(bench_eviction(dir / "none").error().code, Code::kNotFound);
}

}  // namespace
}  // namespace headstart::bench
