// Proves that the loop of multiply-adds says how many it did, that time grows with them, so that
// they were done, and that an emulated tile has none.
#include "kernels/peak.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "kernels/tile_bf16.h"

namespace headstart::kernels {
namespace {

double seconds(const TileOps& ops, uint64_t n_round) {
  const double begin_s = process_cpu_s();
  EXPECT_GT(multiply_in_registers(ops, n_round), 0u);
  return process_cpu_s() - begin_s;
}

TEST(Peak, CountsWhatItDoes) {
  for (const TileOps* ops : all_tile_ops()) {
    const uint64_t one = multiply_in_registers(*ops, 1);
    EXPECT_EQ(multiply_in_registers(*ops, 1000), 1000 * one) << ops->name;
    EXPECT_EQ(one == 0, ops == tile_ops_avx512bf16_emulated()) << ops->name;
  }
}

TEST(Peak, DoesWhatItCounts) {
  const TileOps& ops = tile_ops();
  seconds(ops, 1 << 18);
  EXPECT_GT(seconds(ops, 1 << 21), 2 * seconds(ops, 1 << 18)) << ops.name;
}

}  // namespace
}  // namespace headstart::kernels
