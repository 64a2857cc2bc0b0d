// Proves products of int8 rows with weights of every type that has levels against f64 sums of the
// rounded rows and the dequantised weights (dequant_test.cc proves those), that the instruction
// set's bits are the portable ones, and that a row's bits depend on no other row and on no other
// column. What lies in gaps is 0xFF or a canary; buffers end where their allocation ends. To add a
// case, add a Shape.
#include "kernels/tile_int8.h"

#include "kernels/gemm.h"
#include "kernels/rope.h"
#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

constexpr size_t kGapBytes = 7;

std::vector<const PanelOps*> all_int8() {
  std::vector<const PanelOps*> all;
  for (const PanelOps* ops : {panel_ops_int8(), panel_ops_int8_portable()}) {
    if (ops != nullptr) all.push_back(ops);
  }
  return all;
}

std::vector<WeightType> types_with_levels() {
  std::vector<WeightType> types = all_types();
  std::erase_if(types, [](WeightType type) { return !has_levels(type); });
  return types;
}

struct Weights {
  Weights(WeightType t, uint32_t rows, uint32_t cols, std::mt19937& random)
      : type(t), n_row(rows), n_col(cols), bytes(rows * row_bytes(t, cols)) {
    const WeightBlock block = block_of(type);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    for (size_t at = 0; at < bytes.size(); at += block.n_byte) {
      for (const size_t half_at : halves_of(type)) {
        Half half;
        to_half(random_floats(random, 1, 0.05f), &half);
        std::memcpy(bytes.data() + at + half_at, &half, sizeof(half));
      }
    }
  }
  WeightMatrix matrix() const { return {type, bytes.data(), row_bytes(type, n_col), n_row, n_col}; }
  std::vector<float> row(uint32_t i) const {
    std::vector<float> out(n_col);
    dequantize_row(type, bytes.data() + i * row_bytes(type, n_col), n_col, out.data());
    return out;
  }

  WeightType type;
  uint32_t n_row, n_col;
  std::vector<std::byte> bytes;
};

// Rows as the header says that they are rounded.
std::vector<double> rounded(const std::vector<float>& x) {
  std::vector<double> out;
  for (size_t b = 0; b < x.size(); b += 32) {
    double largest = 0;
    for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(double{x[b + i]}));
    for (size_t i = 0; i < 32; ++i) {
      const double unit = largest / 127;
      out.push_back(largest == 0 ? 0 : std::nearbyint(x[b + i] / unit) * unit);
    }
  }
  return out;
}

// Random multiples of 1/127 of the largest of each 32, so that no value lies between two integers
// where f32 and f64 may differ.
std::vector<float> random_rows(std::mt19937& random, size_t n) {
  std::vector<float> x(n);
  for (size_t b = 0; b < n; b += 32) {
    const float unit = std::abs(random_floats(random, 1)[0]) + 0.01f;
    for (size_t i = 0; i < 32; ++i) {
      x[b + i] = unit * (static_cast<float>(random_below(random, 255)) - 127.0f + 0.2f);
    }
    x[b + random_below(random, 32)] = 127 * unit;
  }
  return x;
}

std::vector<float> multiply(const PanelOps& ops, const std::vector<float>& x, const Weights& w) {
  const uint32_t m = static_cast<uint32_t>(x.size() / w.n_col);
  const size_t stride = ops.operand_bytes(w.n_col) + kGapBytes;
  std::vector<std::byte> a(m * stride - kGapBytes, std::byte{0xFF});
  for (uint32_t i = 0; i < m; ++i) {
    ops.to_operand(x.data() + i * w.n_col, w.n_col, a.data() + i * stride);
  }
  std::vector<float> out(m * (w.n_row + 3) - 3, kCanary);
  Gemm g;
  g.x = a.data();
  g.x_stride = stride;
  g.m = m;
  g.w = w.matrix();
  g.out = out.data();
  g.out_stride = w.n_row + 3;
  GemmScratch scratch;
  for (uint32_t panel = n_panel(g); panel-- > 0;) multiply_panel(ops, g, panel, scratch);
  std::vector<float> dense;
  for (uint32_t i = 0; i < m; ++i) {
    const auto row = out.begin() + i * (w.n_row + 3);
    dense.insert(dense.end(), row, row + w.n_row);
    for (size_t gap = 0; gap < 3 && i + 1 < m; ++gap) EXPECT_EQ(row[w.n_row + gap], kCanary);
  }
  return dense;
}

void expect_right(const std::vector<float>& got, const std::vector<float>& x, const Weights& w) {
  const std::vector<double> rows = rounded(x);
  for (uint32_t j = 0; j < w.n_row; ++j) {
    const std::vector<float> weights = w.row(j);
    double largest = 0;
    for (const float v : weights) largest = std::max(largest, std::abs(double{v}));
    for (size_t i = 0; i < x.size() / w.n_col; ++i) {
      double want = 0, size = 0;
      for (uint32_t k = 0; k < w.n_col; ++k) {
        want += rows[i * w.n_col + k] * weights[k];
        size += std::abs(rows[i * w.n_col + k]);
      }
      // A level is up to 16 times as far from zero as its weight.
      ASSERT_NEAR(got[i * w.n_row + j], want, sum_error(w.n_col) * 32 * largest * size)
          << "row " << i << " output " << j;
    }
  }
}

struct Shape {
  uint32_t m, n_row, n_col;
};

TEST(TileInt8, MultipliesEveryTypeThatHasLevels) {
  std::mt19937 random(1);
  for (const WeightType type : types_with_levels()) {
    for (const Shape& s : {Shape{1, 1, 256}, {7, 65, 512}, {13, 130, 768}, {6, 32, 2816}}) {
      SCOPED_TRACE(std::string(to_string(type)) + " m " + std::to_string(s.m));
      const Weights w(type, s.n_row, s.n_col, random);
      const std::vector<float> x = random_rows(random, size_t{s.m} * s.n_col);
      for (const PanelOps* ops : all_int8()) {
        SCOPED_TRACE(ops->name);
        expect_right(multiply(*ops, x, w), x, w);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TileInt8, EveryInstructionSetHasThePortableBits) {
  if (panel_ops_int8() == nullptr) GTEST_SKIP() << "this CPU has no int8 products";
  std::mt19937 random(2);
  for (const WeightType type : types_with_levels()) {
    for (uint32_t m = 1; m <= 13; ++m) {
      const auto n_row = static_cast<uint32_t>(1 + random_below(random, 70));
      const auto n_col = static_cast<uint32_t>(256 * (1 + random_below(random, 3)));
      const Weights w(type, n_row, n_col, random);
      const std::vector<float> x = random_floats(random, m * w.n_col, 3);
      ASSERT_TRUE(
          same_bits(multiply(*panel_ops_int8(), x, w), multiply(*panel_ops_int8_portable(), x, w)))
          << to_string(type) << " m " << m;
    }
  }
}

// Of weights with one scale for 32 and with two, side by side in a panel.
TEST(TileInt8, GatesWithTheBitsOfItsProducts) {
  std::mt19937 random(3);
  for (const uint32_t m : {1u, 9u}) {
    for (const uint32_t n_row : {32u, 96u, 160u}) {
      const Weights gate(WeightType::kQ4_K, n_row, 512, random);
      const Weights up(WeightType::kQ6_K, n_row, 512, random);
      const std::vector<float> x = random_floats(random, m * 512, 0.1f);
      for (const PanelOps* ops : all_int8()) {
        std::vector<std::byte> a(m * ops->operand_bytes(512)), out(m * ops->operand_bytes(n_row));
        for (uint32_t i = 0; i < m; ++i) {
          ops->to_operand(x.data() + i * 512, 512, a.data() + i * ops->operand_bytes(512));
        }
        GatedGemm g;
        g.x = a.data();
        g.x_stride = ops->operand_bytes(512);
        g.m = m;
        g.gate = gate.matrix();
        g.up = up.matrix();
        g.out = out.data();
        g.out_stride = ops->operand_bytes(n_row);
        GemmScratch scratch;
        for (uint32_t panel = 0; panel < n_panel(g); ++panel)
          multiply_panel(*ops, g, panel, scratch);

        std::vector<float> gates = multiply(*ops, x, gate), ups = multiply(*ops, x, up);
        kernels::gate(Activation::kSilu, gates.data(), ups.data(), gates.size(), gates.data());
        std::vector<std::byte> want(out.size());
        for (uint32_t i = 0; i < m; ++i) {
          ops->to_operand(gates.data() + i * n_row, n_row, want.data() + i * g.out_stride);
        }
        ASSERT_TRUE(out == want) << ops->name << " m " << m << " n_row " << n_row;
      }
    }
  }
}

TEST(TileInt8, ARowDependsOnNoOther) {
  std::mt19937 random(4);
  const Weights w(WeightType::kQ5_K, 100, 1280, random);
  const std::vector<float> x = random_floats(random, 13 * w.n_col);
  for (const PanelOps* ops : all_int8()) {
    const std::vector<float> all = multiply(*ops, x, w);
    for (uint32_t i = 0; i < 13; ++i) {
      const std::vector<float> row(x.begin() + i * w.n_col, x.begin() + (i + 1) * w.n_col);
      const std::vector<float> want(all.begin() + i * w.n_row, all.begin() + (i + 1) * w.n_row);
      ASSERT_TRUE(same_bits(multiply(*ops, row, w), want)) << ops->name << " row " << i;
    }
  }
}

TEST(TileInt8, RoundsRowsTheSameOnEveryInstructionSet) {
  std::mt19937 random(5);
  std::vector<float> x = random_floats(random, 32 * 6, 5);
  std::fill_n(x.begin() + 32, 32, 0.0f);
  x[64] = kNan;
  x[97] = std::numeric_limits<float>::infinity();
  std::fill_n(x.begin() + 128, 32, 1e-38f);
  x[160] = 1e30f;
  std::vector<std::byte> want;
  for (const PanelOps* ops : all_int8()) {
    std::vector<std::byte> got(ops->operand_bytes(x.size()));
    ops->to_operand(x.data(), x.size(), got.data());
    if (want.empty()) want = got;
    EXPECT_TRUE(got == want) << ops->name;
  }
}

// A NaN in the input is seen in the output, and only in its row.
TEST(TileInt8, ShowsNan) {
  std::mt19937 random(6);
  const Weights w(WeightType::kQ4_0, 20, 256, random);
  std::vector<float> x = random_floats(random, 2 * 256);
  x[70] = kNan;
  for (const PanelOps* ops : all_int8()) {
    const std::vector<float> out = multiply(*ops, x, w);
    for (uint32_t j = 0; j < 20; ++j) {
      EXPECT_TRUE(std::isnan(out[j])) << ops->name;
      EXPECT_TRUE(std::isfinite(out[20 + j])) << ops->name;
    }
  }
}

}  // namespace
}  // namespace headstart::kernels
