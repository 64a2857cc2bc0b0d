// Proves that a pool computes every item of every job once, whatever the order in which its threads
// wake, and that threads that wake late leave a job alone.
//
// To add a case: a pool, jobs, and what their items must have left behind.
#include "exec/compute_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace headstart::exec {
namespace {

TEST(ComputePool, RunsEveryItemOnce) {
  for (const uint32_t n_thread : {1u, 2u, 3u, 8u}) {
    ComputePool pool(n_thread);
    ASSERT_EQ(pool.n_thread(), n_thread);
    for (uint32_t n_item = 0; n_item < 200; ++n_item) {
      std::vector<uint32_t> runs(n_item);  // not atomic: a second run of an item would be a race
      pool.run(n_item, [&](uint32_t item, uint32_t thread) {
        ASSERT_LT(thread, n_thread);
        ++runs[item];
      });
      EXPECT_EQ(runs, std::vector<uint32_t>(n_item, 1)) << n_thread;
    }
  }
}

TEST(ComputePool, WhatAJobWroteIsSeenByTheNext) {
  ComputePool pool(4);
  std::vector<uint64_t> values(64, 1);
  for (int job = 0; job < 2000; ++job) {
    const std::vector<uint64_t> before = values;
    pool.run(64, [&](uint32_t item, uint32_t) { values[item] = before[item] + before[63 - item]; });
    for (uint64_t& v : values) v %= 1000003;
  }
  EXPECT_EQ(std::count(values.begin(), values.end(), values[0]), 64);
}

TEST(ComputePool, NoTwoThreadsShareANumber) {
  ComputePool pool(4);
  std::vector<std::atomic<uint32_t>> inside(4);
  std::atomic<bool> shared = false;
  for (int job = 0; job < 500; ++job) {
    pool.run(16, [&](uint32_t, uint32_t thread) {
      if (inside[thread].fetch_add(1) != 0) shared = true;
      inside[thread].fetch_sub(1);
    });
  }
  EXPECT_FALSE(shared);
}

// Most of these threads wake when their job is long over, and must touch nothing of it.
TEST(ComputePool, ThreadsThatWakeLateTouchNothing) {
  ComputePool pool(64);
  std::atomic<uint64_t> sum = 0;
  std::atomic<uint32_t> late = 0;
  std::atomic<int> running = -1;
  for (int job = 0; job < 1000; ++job) {
    running = job;
    pool.run(2, [&, job](uint32_t item, uint32_t) {
      if (running != job) ++late;
      sum += item;
    });
    running = -1;
  }
  EXPECT_EQ(sum, 1000u);
  EXPECT_EQ(late, 0u);
}

TEST(ComputePool, StopsWhileItsThreadsWakeOrSleep) {
  for (int i = 0; i < 200; ++i) {
    ComputePool pool(3);
    if (i % 2 == 0) pool.run(5, [](uint32_t, uint32_t) {});
  }
}

}  // namespace
}  // namespace headstart::exec
