// Proves products with weights of every GGUF type against f64 sums of the dequantised weights
// (dequant_test.cc proves those), for every instruction set and operand type of this machine, and
// that a row's bits depend neither on the other rows nor on the order of the panels nor on what a
// scratch held before. Weights lie at odd addresses and end where their allocation ends; what lies
// in the gaps of x and of the weights is NaN, in those of the result a canary. To add a case, add a
// Shape.
#include "kernels/gemm.h"

#include <map>
#include <numeric>
#include <ostream>

#include "kernels/rope.h"
#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

struct Shape {
  uint32_t m, n_row, n_col;
  bool add = false;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "m " << s.m << " n_row " << s.n_row << " n_col " << s.n_col
             << (s.add ? " add" : "");
}

constexpr uint32_t kGap = 3;  // values or bytes between rows

// Random bytes but for the scales, which are small numbers.
void fill_block(WeightType type, std::mt19937& random, std::byte* p) {
  if (type == WeightType::kF32 || type == WeightType::kBf16) {
    const float x = random_floats(random, 1)[0];
    const size_t n_byte = block_of(type).n_byte;
    std::memcpy(p, reinterpret_cast<const char*>(&x) + sizeof(x) - n_byte, n_byte);
    return;
  }
  for (size_t i = 0; i < block_of(type).n_byte; ++i) p[i] = static_cast<std::byte>(random());
  for (const size_t at : halves_of(type)) {
    Half half;
    to_half(random_floats(random, 1, 0.05f), &half);
    std::memcpy(p + at, &half, sizeof(half));
  }
}

class Weights {
 public:
  Weights(WeightType type, uint32_t n_row, uint32_t n_col, std::mt19937& random)
      : type_(type), n_row_(n_row), n_col_(n_col), start_(1 + random_below(random, 7)) {
    bytes_.resize(start_ + n_row * (row_bytes(type, n_col) + kGap) - kGap, std::byte{0xFF});
    for (uint32_t i = 0; i < n_row; ++i) {
      std::byte* const row = bytes_.data() + start_ + i * matrix().row_bytes;
      for (size_t b = 0; b < n_col / block_of(type).n_value; ++b) {
        fill_block(type, random, row + b * block_of(type).n_byte);
      }
    }
  }
  WeightMatrix matrix() const {
    return {type_, bytes_.data() + start_, row_bytes(type_, n_col_) + kGap, n_row_, n_col_};
  }
  std::vector<float> row(size_t i) const {
    std::vector<float> out(n_col_);
    dequantize_row(type_, matrix().data + i * matrix().row_bytes, n_col_, out.data());
    return out;
  }

 private:
  WeightType type_;
  uint32_t n_row_, n_col_;
  size_t start_;
  std::vector<std::byte> bytes_;
};

struct Sum {
  double value = 0, size = 0;  // size: the magnitudes' sum
};

// x Wᵀ of operands, [m, n_row]
std::vector<Sum> reference(const Shape& s, const std::vector<float>& x, const Weights& weights,
                           size_t operand_bytes) {
  std::vector<double> x64;
  for (const float v : x) x64.push_back(as_operand(operand_bytes, v));
  std::vector<Sum> out(size_t{s.m} * s.n_row);
  for (uint32_t j = 0; j < s.n_row; ++j) {
    std::vector<float> w = weights.row(j);
    for (float& v : w) v = as_operand(operand_bytes, v);
    for (uint32_t i = 0; i < s.m; ++i) {
      Sum& sum = out[size_t{i} * s.n_row + j];
      for (uint32_t k = 0; k < s.n_col; ++k) {
        const double product = x64[size_t{i} * s.n_col + k] * double{w[k]};
        sum.value += product;
        sum.size += std::abs(product);
      }
    }
  }
  return out;
}

// Operands of x, rows kGap values apart.
std::vector<std::byte> operands(const TileOps& ops, const std::vector<float>& x, size_t n_col) {
  const size_t m = x.size() / n_col, stride = (n_col + kGap) * ops.operand.n_byte;
  std::vector<std::byte> out(m * stride - kGap * ops.operand.n_byte, std::byte{0xFF});
  for (size_t i = 0; i < m; ++i) {
    ops.to_operand(x.data() + i * n_col, n_col, out.data() + i * stride);
  }
  return out;
}

std::vector<uint32_t> in_order(uint32_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// What another product may have left behind.
void soil(GemmScratch& scratch) {
  std::fill_n(scratch.sums.get(1000), 1000, kNan);
  std::fill_n(scratch.panel.get(4000), 4000, std::byte{0xFF});
}

// [m, n_row] without gaps, from rows kGap apart.
template <class T>
std::vector<T> without_gaps(const std::vector<T>& in, size_t m, size_t n, size_t gap, T canary) {
  std::vector<T> out;
  for (size_t i = 0; i < m; ++i) {
    const auto row = in.begin() + i * (n + gap);
    out.insert(out.end(), row, row + n);
    for (size_t g = 0; g < gap && i + 1 < m; ++g) {
      EXPECT_EQ(row[n + g], canary) << "written in the gap after row " << i;
    }
  }
  return out;
}

constexpr float kBefore = 0.75f;  // in the result, where it is added to

std::vector<float> multiply(const TileOps& ops, const Shape& s, const std::vector<float>& x,
                            const Weights& w, std::vector<uint32_t> order = {}) {
  const std::vector<std::byte> a = operands(ops, x, s.n_col);
  std::vector<float> out(s.m * (s.n_row + kGap) - kGap, kCanary);
  for (uint32_t i = 0; i < s.m; ++i) {
    std::fill_n(out.begin() + i * (s.n_row + kGap), s.n_row, s.add ? kBefore : kNan);
  }
  Gemm g;
  g.x = a.data();
  g.x_stride = (s.n_col + kGap) * ops.operand.n_byte;
  g.m = s.m;
  g.w = w.matrix();
  g.out = out.data();
  g.out_stride = s.n_row + kGap;
  g.add = s.add;
  GemmScratch scratch;
  soil(scratch);
  if (order.empty()) order = in_order(n_panel(g));
  for (const uint32_t panel : order) multiply_panel(ops, g, panel, scratch);
  return without_gaps(out, s.m, s.n_row, kGap, kCanary);
}

// Operands as bytes, [m, n_row].
std::vector<std::byte> multiply_gated(const TileOps& ops, const Shape& s, Activation activation,
                                      const std::vector<float>& x, const Weights& gate,
                                      const Weights& up, std::vector<uint32_t> order = {}) {
  const std::vector<std::byte> a = operands(ops, x, s.n_col);
  const size_t n_byte = s.n_row * ops.operand.n_byte, gap = kGap * ops.operand.n_byte;
  std::vector<std::byte> out(s.m * (n_byte + gap) - gap, std::byte{0x5A});
  GatedGemm g;
  g.x = a.data();
  g.x_stride = (s.n_col + kGap) * ops.operand.n_byte;
  g.m = s.m;
  g.gate = gate.matrix();
  g.up = up.matrix();
  g.activation = activation;
  g.out = out.data();
  g.out_stride = n_byte + gap;
  GemmScratch scratch;
  soil(scratch);
  if (order.empty()) order = in_order(n_panel(g));
  for (const uint32_t panel : order) multiply_panel(ops, g, panel, scratch);
  return without_gaps(out, s.m, n_byte, gap, std::byte{0x5A});
}

void expect_right(const Shape& s, const std::vector<float>& got, const std::vector<Sum>& want) {
  const double before = s.add ? kBefore : 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double right = want[i].value + before;
    if (std::abs(got[i] - right) <= sum_error(s.n_col) * (want[i].size + before)) continue;
    FAIL() << got[i] << " for " << right << ", row " << i / s.n_row << " column " << i % s.n_row
           << " of " << s;
  }
}

void expect_right_on_every_tile(WeightType type, const Shape& s, std::mt19937& random) {
  SCOPED_TRACE(to_string(type));
  const Weights w(type, s.n_row, s.n_col, random);
  const std::vector<float> x = random_floats(random, size_t{s.m} * s.n_col);
  std::map<size_t, std::vector<Sum>> references;  // by operand bytes
  on_every_tile([&](const TileOps& ops) {
    std::vector<Sum>& want = references[ops.operand.n_byte];
    if (want.empty()) want = reference(s, x, w, ops.operand.n_byte);
    expect_right(s, multiply(ops, s, x, w), want);
  });
}

double activated(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1 + std::exp(-x));
  return x / 2 * (1 + std::tanh(std::sqrt(M_2_PI) * (x + 0.044715 * x * x * x)));
}

void expect_gated(const TileOps& ops, const Shape& s, Activation activation,
                  const std::vector<std::byte>& got, const std::vector<Sum>& gate,
                  const std::vector<Sum>& up) {
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = activated(activation, gate[i].value), want = g * up[i].value;
    const double value = operand_at(ops.operand.n_byte, got.data() + i * ops.operand.n_byte);
    // The slope of both is below 1.13; layer_ops_test.cc proves the activation alone.
    const double error = sum_error(s.n_col) * (1.2 * gate[i].size * std::abs(up[i].value) +
                                               std::abs(g) * up[i].size) +
                         (2e-6 + operand_error(ops.operand.n_byte)) * std::abs(want) + 1e-6;
    if (std::abs(value - want) <= error) continue;
    FAIL() << value << " for " << want << ", row " << i / s.n_row << " column " << i % s.n_row
           << " of " << s;
  }
}

void expect_gated_on_every_tile(WeightType type, const Shape& s, std::mt19937& random) {
  SCOPED_TRACE(to_string(type));
  const Weights gate(type, s.n_row, s.n_col, random), up(type, s.n_row, s.n_col, random);
  // So that the gate is about 1: else one branch of the activation is all that is seen.
  const std::vector<float> row = gate.row(0);
  const float largest = std::abs(*std::max_element(row.begin(), row.end()));
  const float size = 2 / (largest + 0.01f) / std::sqrt(static_cast<float>(s.n_col));
  const std::vector<float> x = random_floats(random, size_t{s.m} * s.n_col, size);
  std::map<size_t, std::pair<std::vector<Sum>, std::vector<Sum>>> references;
  on_every_tile([&](const TileOps& ops) {
    auto& [want_gate, want_up] = references[ops.operand.n_byte];
    if (want_gate.empty()) {
      want_gate = reference(s, x, gate, ops.operand.n_byte);
      want_up = reference(s, x, up, ops.operand.n_byte);
    }
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      expect_gated(ops, s, activation, multiply_gated(ops, s, activation, x, gate, up), want_gate,
                   want_up);
    }
  });
}

// n columns, or as few more as make whole blocks and whole depths.
uint32_t whole_columns(WeightType type, uint32_t n) {
  const uint32_t unit = std::max<uint32_t>(block_of(type).n_value, kDepthPad);
  return (n + unit - 1) / unit * unit;
}

TEST(Gemm, MultipliesEveryTypeOfWeights) {
  std::mt19937 random(1);
  for (const WeightType type : all_types()) {
    for (const Shape& s : {Shape{1, 1, 1},
                           {5, 15, 32},
                           {7, 64, 96},
                           {3, 65, 260, true},
                           {6, 130, 300},
                           {2, 33, 1025},
                           {13, 80, 1056, true},
                           {1, 63, 2049},
                           {8, 128, 1024, true}}) {
      expect_right_on_every_tile(type, {s.m, s.n_row, whole_columns(type, s.n_col), s.add}, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Gemm, GatesEveryTypeOfWeights) {
  std::mt19937 random(2);
  for (const WeightType type : all_types()) {
    for (const Shape& s :
         {Shape{1, 1, 1}, {5, 31, 32}, {7, 64, 96}, {2, 33, 1025}, {13, 47, 260}}) {
      expect_gated_on_every_tile(type, {s.m, s.n_row, whole_columns(type, s.n_col)}, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Gemm, MultipliesRandomShapes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 30; ++i) {
    const auto type = static_cast<WeightType>(random_below(random, kWeightTypes));
    Shape s{static_cast<uint32_t>(1 + random_below(random, 20)),
            static_cast<uint32_t>(1 + random_below(random, 200)),
            whole_columns(type, static_cast<uint32_t>(1 + random_below(random, 1500)))};
    s.add = random_below(random, 2);
    expect_right_on_every_tile(type, s, random);
    s.add = false;
    if (i % 3 == 0) expect_gated_on_every_tile(type, s, random);
    if (HasFatalFailure()) return;
  }
}

TEST(Gemm, OddDepthsOfWideOperands) {
  std::mt19937 random(3);
  const Weights w(WeightType::kF16, 70, 1037, random);
  const Shape s{7, 70, 1037};
  const std::vector<float> x = random_floats(random, s.m * s.n_col);
  const std::vector<Sum> want = reference(s, x, w, sizeof(float));
  on_every_tile([&](const TileOps& ops) {
    if (ops.operand.n_byte == sizeof(float)) expect_right(s, multiply(ops, s, x, w), want);
  });
}

TEST(Gemm, PanelsInAnyOrderGiveTheSameBits) {
  std::mt19937 random(4);
  const Shape s{7, 300, 1280};
  const Weights w(WeightType::kQ4_K, s.n_row, s.n_col, random);
  const Weights up(WeightType::kQ6_K, s.n_row, s.n_col, random);
  const std::vector<float> x = random_floats(random, s.m * s.n_col, 0.01f);
  std::vector<uint32_t> order = in_order((s.n_row - 1) / kPanelColumns + 1);
  std::vector<uint32_t> gated = in_order((s.n_row - 1) / (kPanelColumns / 2) + 1);
  std::shuffle(order.begin(), order.end(), random);
  std::shuffle(gated.begin(), gated.end(), random);
  on_every_tile([&](const TileOps& ops) {
    ASSERT_TRUE(same_bits(multiply(ops, s, x, w, order), multiply(ops, s, x, w)));
    ASSERT_TRUE(same_bits(multiply_gated(ops, s, Activation::kSilu, x, w, up, gated),
                          multiply_gated(ops, s, Activation::kSilu, x, w, up)));
  });
}

TEST(Gemm, ARowDependsOnNoOther) {
  std::mt19937 random(5);
  const Shape s{13, 100, 1120};
  const Weights w(WeightType::kQ5_1, s.n_row, s.n_col, random);
  const Weights up(WeightType::kQ8_0, s.n_row, s.n_col, random);
  const std::vector<float> x = random_floats(random, s.m * s.n_col, 0.1f);
  on_every_tile([&](const TileOps& ops) {
    const std::vector<float> all = multiply(ops, s, x, w);
    const std::vector<std::byte> all_gated =
        multiply_gated(ops, s, Activation::kGeluTanh, x, w, up);
    const size_t n_byte = s.n_row * ops.operand.n_byte;
    for (const auto& [first, m] : {std::pair{0, 1}, {4, 1}, {12, 1}, {1, 6}, {3, 7}, {5, 8}}) {
      const Shape part{static_cast<uint32_t>(m), s.n_row, s.n_col};
      const std::vector<float> rows(x.begin() + first * s.n_col, x.begin() + (first + m) * s.n_col);
      const std::vector<float> want(all.begin() + first * s.n_row,
                                    all.begin() + (first + m) * s.n_row);
      const std::vector<std::byte> want_gated(all_gated.begin() + first * n_byte,
                                              all_gated.begin() + (first + m) * n_byte);
      ASSERT_TRUE(same_bits(multiply(ops, part, rows, w), want)) << "rows " << first << " + " << m;
      ASSERT_TRUE(
          same_bits(multiply_gated(ops, part, Activation::kGeluTanh, rows, w, up), want_gated))
          << "gated rows " << first << " + " << m;
    }
  });
}

// An output's bits depend on its own row of weights alone.
TEST(Gemm, AnOutputDependsOnNoOther) {
  std::mt19937 random(6);
  const Shape s{7, 150, 1088};
  const Weights w(WeightType::kIq4Nl, s.n_row, s.n_col, random);
  const std::vector<float> x = random_floats(random, s.m * s.n_col);
  on_every_tile([&](const TileOps& ops) {
    const std::vector<float> all = multiply(ops, s, x, w);
    const std::vector<std::byte> a = operands(ops, x, s.n_col);
    for (const uint32_t row : {0u, 1u, 63u, 64u, 149u}) {
      Gemm g{a.data(), (s.n_col + kGap) * ops.operand.n_byte, s.m, w.matrix()};
      g.w.data += row * g.w.row_bytes;
      g.w.n_row = 1;
      std::vector<float> out(s.m);
      g.out = out.data();
      g.out_stride = 1;
      GemmScratch scratch;
      multiply_panel(ops, g, 0, scratch);
      for (uint32_t i = 0; i < s.m; ++i) {
        ASSERT_EQ(bits(out[i]), bits(all[i * s.n_row + row])) << "row " << i << " output " << row;
      }
    }
  });
}

}  // namespace
}  // namespace headstart::kernels
