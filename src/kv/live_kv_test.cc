// Proves the live cache: rows lie where attention looks for them, types convert, memory comes with
// use and goes with release(). The capture window slides without losing rows.
#include "kv/live_kv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "kv/capture.h"

namespace headstart::kv {
namespace {

constexpr KvShape kShape{.n_layer = 3, .n_head_kv = 2, .d_head_k = 64, .d_head_v = 64};

std::vector<Half> row_of(uint32_t seed) {
  std::vector<float> wide(128);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = std::sin(static_cast<float>(seed * 131 + i));
  std::vector<Half> row(wide.size());
  kernels::to_half(wide, row.data());
  return row;
}

uint64_t resident_kib() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    if (word == "VmRSS:") {
      uint64_t kib;
      return in >> kib ? kib : 0;
    }
  }
  return 0;
}

TEST(LiveKv, RowsAreContiguousByToken) {
  const auto kv = LiveKv::open(kShape, LiveType::kF16, LiveType::kF16, 1000);
  ASSERT_TRUE(kv.ok());
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (Part part : {Part::kKey, Part::kValue}) {
      EXPECT_EQ((*kv)->row(layer, part, 999) - (*kv)->row(layer, part, 0), 999 * 256);
    }
  }
  const auto row = row_of(7);
  (*kv)->write(2, Part::kValue, 999, row);
  EXPECT_EQ(std::memcmp((*kv)->row(2, Part::kValue, 999), row.data(), 256), 0);
}

TEST(LiveKv, Q8RowsAreWithinAQuantum) {
  const auto kv = LiveKv::open(kShape, LiveType::kQ8_0, LiveType::kF16, 16);
  ASSERT_TRUE(kv.ok());
  const auto row = row_of(3);
  (*kv)->write(1, Part::kKey, 5, row);
  std::vector<float> want(row.size());
  kernels::to_float(row, want.data());
  const std::byte* block = (*kv)->row(1, Part::kKey, 5);
  for (size_t b = 0; b < 4; ++b, block += 34) {  // f16 scale, 32 x int8
    Half scale_bits;
    std::memcpy(&scale_bits, block, 2);
    float scale;
    kernels::to_float({&scale_bits, 1}, &scale);
    for (size_t i = 0; i < 32; ++i) {
      const auto q = static_cast<int8_t>(block[2 + i]);
      EXPECT_NEAR(static_cast<float>(q) * scale, want[b * 32 + i],
                  scale * 0.6f  // half a quantum, and the scale is f16
      );
    }
  }
}

TEST(LiveKv, RefusesQ8ForOddHeads) {
  KvShape shape = kShape;
  shape.d_head_k = shape.d_head_v = 40;
  const auto kv = LiveKv::open(shape, LiveType::kQ8_0, LiveType::kQ8_0, 16);
  ASSERT_FALSE(kv.ok());
  EXPECT_EQ(kv.error().code, Code::kUnsupported);
}

TEST(LiveKv, MemoryComesWithUseAndGoesWithRelease) {
  const KvShape shape{.n_layer = 32, .n_head_kv = 8, .d_head_k = 128, .d_head_v = 128};
  const uint64_t before_kib = resident_kib();
  const auto kv = LiveKv::open(shape, LiveType::kF16, LiveType::kF16, 1 << 20);  // 128 GiB if used
  ASSERT_TRUE(kv.ok());
  EXPECT_LT(resident_kib(), before_kib + 4096);
  const std::vector<Half> row(1024, Half{0x3C00});
  for (uint32_t layer = 0; layer < 32; ++layer) {
    for (uint32_t pos = 0; pos < 256; ++pos) {
      (*kv)->write(layer, Part::kKey, pos, row);
      (*kv)->write(layer, Part::kValue, pos, row);
    }
  }
  EXPECT_GT(resident_kib(), before_kib + 30 * 1024);
  (*kv)->release(16);
#ifndef __SANITIZE_THREAD__  // which keeps notes of its own on every page that was written
  EXPECT_LT(resident_kib(), before_kib + 6 * 1024);
#endif
  EXPECT_EQ(std::memcmp((*kv)->row(3, Part::kKey, 15), row.data(), 2048), 0);
}

TEST(Capture, SlidesAndCopiesOut) {
  Capture capture(kShape, 10);
  capture.set_start(100);
  for (uint32_t pos = 100; pos < 110; ++pos) {
    for (uint32_t layer = 0; layer < 3; ++layer) {
      for (Part part : {Part::kKey, Part::kValue}) {
        const auto row = row_of(pos * 10 + layer * 2 + static_cast<uint32_t>(part));
        std::memcpy(capture.row(layer, part, pos), row.data(), 256);
      }
    }
  }
  EXPECT_FALSE(capture.holds(110));
  ChunkMeta meta;
  meta.shape = kShape;
  meta.tokens = {1, 2, 3, 4};
  meta.prefix_key = extend_prefix(meta.parent_key, meta.tokens);
  ChunkBuilder chunk(meta);
  capture.copy_to(chunk);
  capture.drop_front(4, 110);
  EXPECT_EQ(capture.pos_first(), 104u);
  EXPECT_TRUE(capture.holds(113));
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (Part part : {Part::kKey, Part::kValue}) {
      const uint32_t salt = layer * 2 + static_cast<uint32_t>(part);
      for (uint32_t i = 0; i < 4; ++i) {
        EXPECT_EQ(std::memcmp(chunk.cell(layer, part).data() + i * 128,
                              row_of((100 + i) * 10 + salt).data(), 256),
                  0);
      }
      for (uint32_t pos = 104; pos < 110; ++pos) {
        EXPECT_EQ(std::memcmp(capture.row(layer, part, pos), row_of(pos * 10 + salt).data(), 256),
                  0);
      }
    }
  }
}

}  // namespace
}  // namespace headstart::kv
