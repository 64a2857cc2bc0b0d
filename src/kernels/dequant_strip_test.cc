// Proves strips of every type against dequantize_row, to the bit, on every instruction set of this
// machine, for every number of rows. Rows end where their allocation ends, so that AddressSanitizer
// sees a read beyond. A new type is found by itself.
#include "kernels/dequant_strip.h"

#include <memory>

#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

// Random bytes that make finite weights.
void fill_block(WeightType type, std::mt19937& random, std::byte* block) {
  const WeightBlock size = block_of(type);
  std::vector<float> weights(size.n_value);
  do {
    std::generate_n(block, size.n_byte, [&] { return static_cast<std::byte>(random()); });
    dequantize_row(type, block, size.n_value, weights.data());
  } while (!std::all_of(weights.begin(), weights.end(), [](float w) { return std::isfinite(w); }));
}

// Rows of n weights, `gap` bytes apart, in an allocation that ends with the last.
struct Strip {
  Strip(WeightType type, size_t n_weight, size_t n_valid, size_t gap, std::mt19937& random)
      : n(n_weight) {
    const WeightBlock block = block_of(type);
    const size_t n_byte = row_bytes(type, n), stride = n_byte + gap;
    bytes = std::make_unique<std::byte[]>(n_valid == 0 ? 0 : (n_valid - 1) * stride + n_byte);
    rows = {type, bytes.get(), stride, 0, n_valid};
    for (size_t r = 0; r < n_valid; ++r) {
      for (size_t at = 0; at < n_byte; at += block.n_byte) {
        fill_block(type, random, bytes.get() + r * stride + at);
      }
    }
  }

  // [kStrip, n]
  std::vector<float> dequantized_by_row() const {
    std::vector<float> out(kStrip * n);
    for (size_t r = rows.begin; r < rows.end; ++r) {
      dequantize_row(rows.type, rows.first + r * rows.stride, n, out.data() + r * n);
    }
    return out;
  }

  size_t n;
  std::unique_ptr<std::byte[]> bytes;
  StripRows rows;
};

// Compares bits: a zero has a sign.
void expect_right(const Strip& strip, size_t out_stride) {
  const std::vector<float> want = strip.dequantized_by_row();
  std::vector<float> out((strip.n + 1) * out_stride + 1, kCanary);
  dequantize_strip(strip.rows, strip.n, out.data() + 1, out_stride);
  for (size_t at = 0; at < out.size(); ++at) {
    const bool inside =
        at >= 1 && (at - 1) / out_stride < strip.n && (at - 1) % out_stride < kStrip;
    const size_t i = at == 0 ? 0 : (at - 1) / out_stride, r = at == 0 ? 0 : (at - 1) % out_stride;
    const float right = inside ? want[r * strip.n + i] : kCanary;
    ASSERT_EQ(bits(out[at]), bits(right))
        << out[at] << " for " << right << ", weight " << i << " of row " << r;
  }
}

void expect_right_on_all_targets(const Strip& strip, size_t out_stride) {
  SCOPED_TRACE(std::string(to_string(strip.rows.type)) + ", rows " +
               std::to_string(strip.rows.begin) + " to " + std::to_string(strip.rows.end) + " of " +
               std::to_string(strip.n));
  on_every_target([&](int64_t) { expect_right(strip, out_stride); });
}

TEST(DequantStrip, HasTheBitsOfRowsOnEveryTarget) {
  std::mt19937 random(1);
  for (const WeightType type : all_types()) {
    // Of types without blocks also what fills no vector.
    for (const size_t n_block : {1, 2, 3, 5, 8, 31, 64}) {
      for (const size_t gap : {0, 1, 6}) {
        const Strip strip(type, n_block * block_of(type).n_value, kStrip, gap, random);
        expect_right_on_all_targets(strip, kStrip + gap);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DequantStrip, RowsThatDoNotExistAreZero) {
  std::mt19937 random(2);
  for (const WeightType type : all_types()) {
    for (size_t n_valid = 0; n_valid < kStrip; ++n_valid) {
      const size_t n = std::max<size_t>(block_of(type).n_value, 20);
      Strip strip(type, n, n_valid, n_valid % 3, random);
      for (strip.rows.begin = 0; strip.rows.begin <= n_valid; strip.rows.begin += 3) {
        expect_right_on_all_targets(strip, 64);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DequantStrip, GoesOnFromAWeight) {
  std::mt19937 random(3);
  const Strip strip(WeightType::kQ4_1, 96, kStrip, 5, random);
  std::vector<float> whole(96 * kStrip), part(32 * kStrip);
  dequantize_strip(strip.rows, 96, whole.data(), kStrip);
  dequantize_strip(strip.rows.from(64), 32, part.data(), kStrip);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 64 * kStrip));
}

TEST(DequantStrip, NoWeightsTouchNothing) {
  for (const WeightType type : all_types()) {
    float out = 1.0f;
    dequantize_strip({type, nullptr, 0}, 0, &out, kStrip);
    EXPECT_EQ(out, 1.0f) << to_string(type);
  }
}

// Of weights with levels on targets that have them: the file's integers and scales, which are exact
// in f64, round to the bits of rows.
void expect_levels(const Strip& strip) {
  const std::vector<float> want = strip.dequantized_by_row();
  std::vector<std::byte> level(strip.n * kStrip);
  std::vector<float> scale(strip.n / kScaleSpan * kStrip), offset(scale.size());
  strip_levels(strip.rows, strip.n, {level.data(), scale.data(), offset.data()});
  for (size_t i = 0; i < strip.n; ++i) {
    for (size_t r = 0; r < kStrip; ++r) {
      const size_t at = i / kScaleSpan * kStrip + r;
      const auto q = static_cast<double>(level[i / 4 * 4 * kStrip + 4 * r + i % 4]);
      const auto got = static_cast<float>(q * scale[at] + offset[at]);
      ASSERT_EQ(got, want[r * strip.n + i]) << "weight " << i << " of row " << r;
    }
  }
}

TEST(DequantStrip, LevelsAreTheWeightsOnEveryTarget) {
  std::mt19937 random(7);
  for (const WeightType type : all_types()) {
    for (const size_t n_block : {1, 3, 8}) {
      for (const size_t n_valid : {kStrip, size_t{5}, size_t{0}}) {
        const Strip strip(type, n_block * std::max<size_t>(block_of(type).n_value, 32), n_valid, 3,
                          random);
        SCOPED_TRACE(std::string(to_string(type)) + ", rows " + std::to_string(n_valid));
        on_every_target([&](int64_t) {
          if (has_levels(type)) expect_levels(strip);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace headstart::kernels
