// Proves the tile's products against f64 sums, that an element's bits depend on its row of A and
// column of B alone, and that nothing beside the operands is read or written: what lies in the gaps
// of A and after k is NaN, what lies in the gaps of C are canaries, and buffers end where their
// allocation ends. For every instruction set and operand type of this machine. To add a case, add
// a Shape.
#include "kernels/tile.h"

#include <map>
#include <memory>
#include <ostream>

#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

struct Shape {
  size_t m = 1, k = 1, n_col = kColumnPad;
  size_t k_more = 0;            // rows that the panel has after k
  size_t a_gap = 0, c_gap = 0;  // values between rows
  bool partial = false, add = false;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "m " << s.m << " k " << s.k << "+" << s.k_more << " n_col " << s.n_col << " gaps "
             << s.a_gap << " " << s.c_gap << (s.partial ? " partial" : "") << (s.add ? " add" : "");
}

struct Sum {
  double value = 0, size = 0;  // size: the magnitudes' sum
};

// 64-byte aligned, ends with its last value.
class Panel {
 public:
  Panel(const TileOps& ops, size_t k, size_t n_col)
      : n_byte_(k * n_col * ops.operand.n_byte),
        bytes_(static_cast<std::byte*>(std::aligned_alloc(64, n_byte_))) {
    std::memset(data(), 0xFF, n_byte_);
  }
  std::byte* data() const { return bytes_.get(); }
  bool operator==(const Panel& b) const {
    return n_byte_ == b.n_byte_ && std::memcmp(data(), b.data(), n_byte_) == 0;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  size_t n_byte_;
  std::unique_ptr<std::byte[], Free> bytes_;
};

// Dense values of A, B, C before, and the partial sums.
struct Problem {
  Problem(const Shape& s, std::mt19937& random)
      : shape(s),
        a(random_floats(random, s.m * s.k)),
        b(random_floats(random, s.k * s.n_col)),
        c(random_floats(random, s.m * s.n_col)),
        partial(random_floats(random, s.m * s.n_col, 4)) {}

  // Rows from `row` and columns from `column` on, all of k.
  Problem part(size_t row, size_t m, size_t column, size_t n_col) const {
    Problem p = *this;
    p.shape.m = m;
    p.shape.n_col = n_col;
    p.a.assign(a.begin() + row * shape.k, a.begin() + (row + m) * shape.k);
    p.b = columns_of(b, 0, shape.k, column, n_col);
    p.c = columns_of(c, row, m, column, n_col);
    p.partial = columns_of(partial, row, m, column, n_col);
    return p;
  }

  // k in [first, first + n), going on from `sums`.
  Problem depth(size_t first, size_t n, const std::vector<float>& sums) const {
    Problem p = *this;
    p.shape.k = n;
    p.a.clear();
    for (size_t i = 0; i < shape.m; ++i) {
      const auto row = a.begin() + i * shape.k + first;
      p.a.insert(p.a.end(), row, row + n);
    }
    p.b.assign(b.begin() + first * shape.n_col, b.begin() + (first + n) * shape.n_col);
    p.shape.partial = first > 0;
    p.partial = sums;
    return p;
  }

  std::vector<float> columns_of(const std::vector<float>& in, size_t row, size_t m, size_t column,
                                size_t n_col) const {
    std::vector<float> out;
    for (size_t i = row; i < row + m; ++i) {
      const auto at = in.begin() + i * shape.n_col + column;
      out.insert(out.end(), at, at + n_col);
    }
    return out;
  }

  Shape shape;
  std::vector<float> a, b, c, partial;
};

std::vector<Sum> reference(const Problem& p, size_t operand_bytes) {
  const Shape& s = p.shape;
  std::vector<double> a(p.a.size()), b(p.b.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] = as_operand(operand_bytes, p.a[i]);
  for (size_t i = 0; i < b.size(); ++i) b[i] = as_operand(operand_bytes, p.b[i]);
  std::vector<Sum> want(s.m * s.n_col);
  for (size_t i = 0; i < want.size(); ++i) {
    want[i].value = (s.partial ? p.partial[i] : 0.0) + (s.add ? p.c[i] : 0.0);
    want[i].size = (s.partial ? std::abs(p.partial[i]) : 0.0) + (s.add ? std::abs(p.c[i]) : 0.0);
  }
  for (size_t i = 0; i < s.m; ++i) {
    for (size_t k = 0; k < s.k; ++k) {
      for (size_t j = 0; j < s.n_col; ++j) {
        const double product = a[i * s.k + k] * b[k * s.n_col + j];
        want[i * s.n_col + j].value += product;
        want[i * s.n_col + j].size += std::abs(product);
      }
    }
  }
  return want;
}

// [rows, columns] with `gap` values between rows and none after the last.
std::vector<float> spread(const std::vector<float>& dense, size_t n_col, size_t gap, float filler) {
  const size_t n_row = dense.size() / n_col;
  std::vector<float> out(n_row * (n_col + gap) - gap, filler);
  for (size_t i = 0; i < n_row; ++i) {
    std::copy_n(dense.begin() + i * n_col, n_col, out.begin() + i * (n_col + gap));
  }
  return out;
}

// A panel of B whose rows after k are NaN.
Panel packed(const TileOps& ops, const Problem& p) {
  const Shape& s = p.shape;
  std::vector<float> b = p.b;
  b.resize((s.k + s.k_more) * s.n_col, kNan);
  Panel panel(ops, s.k + s.k_more, s.n_col);
  ops.pack(b.data(), s.n_col, s.k + s.k_more, s.n_col, panel.data());
  return panel;
}

// C, dense.
std::vector<float> product(const TileOps& ops, const Problem& p, const Panel& panel) {
  const Shape& s = p.shape;
  const std::vector<float> a = spread(p.a, s.k, s.a_gap, kNan);
  std::vector<std::byte> operands(a.size() * ops.operand.n_byte);
  ops.to_operand(a.data(), a.size(), operands.data());
  const std::vector<float> partial = spread(p.partial, s.n_col, s.a_gap, kNan);
  std::vector<float> c =
      spread(s.add ? p.c : std::vector<float>(p.c.size(), kNan), s.n_col, s.c_gap, kCanary);
  TileProduct t;
  t.a = operands.data();
  t.a_stride = (s.k + s.a_gap) * ops.operand.n_byte;
  t.m = s.m;
  t.panel = panel.data();
  t.k_packed = s.k + s.k_more;
  t.k = s.k;
  t.n_col = s.n_col;
  t.c = c.data();
  t.c_stride = s.n_col + s.c_gap;
  if (s.partial) {
    t.partial = partial.data();
    t.partial_stride = s.n_col + s.a_gap;
  }
  t.add = s.add;
  ops.multiply(t);

  std::vector<float> dense;
  for (size_t i = 0; i < s.m; ++i) {
    const auto row = c.begin() + i * t.c_stride;
    dense.insert(dense.end(), row, row + s.n_col);
    for (size_t g = 0; g < s.c_gap && i + 1 < s.m; ++g) {
      EXPECT_EQ(row[s.n_col + g], kCanary) << "written in the gap after row " << i;
    }
  }
  return dense;
}

std::vector<float> product(const TileOps& ops, const Problem& p) {
  return product(ops, p, packed(ops, p));
}

void expect_right(const Problem& p, const std::vector<float>& got, const std::vector<Sum>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::abs(got[i] - want[i].value) <= sum_error(p.shape.k) * want[i].size) continue;
    FAIL() << got[i] << " for " << want[i].value << ", row " << i / p.shape.n_col << " column "
           << i % p.shape.n_col << " of " << p.shape;
  }
}

// For operand types of any width: k and the panel's depth must be whole.
Shape rounded(Shape s, size_t operand_bytes) {
  s.k = round_depth(operand_bytes, s.k);
  s.k_more = round_depth(operand_bytes, s.k_more);
  return s;
}

void expect_right_on_every_tile(const Shape& shape, std::mt19937& random) {
  const auto seed = static_cast<uint32_t>(random());
  std::map<size_t, std::pair<Problem, std::vector<Sum>>> cases;  // by operand bytes
  on_every_tile([&](const TileOps& ops) {
    auto it = cases.find(ops.operand.n_byte);
    if (it == cases.end()) {
      std::mt19937 values(seed);
      const Problem p(rounded(shape, ops.operand.n_byte), values);
      it = cases.emplace(ops.operand.n_byte, std::pair{p, reference(p, ops.operand.n_byte)}).first;
    }
    const auto& [problem, want] = it->second;
    expect_right(problem, product(ops, problem), want);
  });
}

TEST(Tile, MultipliesEveryShape) {
  std::mt19937 random(1);
  constexpr size_t kDepths[] = {1, 2, 3, 8, 15, 16, 31, 64};
  size_t n = 0;
  for (size_t m = 1; m <= 13; ++m) {
    for (size_t n_col = 16; n_col <= 256; n_col += 16, ++n) {
      Shape s{m, kDepths[random_below(random, std::size(kDepths))], n_col};
      s.k_more = n % 3 == 0 ? 1 + n % 5 : 0;
      s.a_gap = n % 4;
      s.c_gap = n % 7;
      s.partial = n % 5 < 2;
      s.add = n % 2 == 0;
      expect_right_on_every_tile(s, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Tile, MultipliesEveryDepthAndOption) {
  std::mt19937 random(2);
  for (const size_t k : {1, 2, 3, 4, 5, 17, 64, 127, 256, 1023, 1024}) {
    for (size_t option = 0; option < 16; ++option) {
      Shape s{7, k, 80};
      s.partial = option & 1;
      s.add = option & 2;
      s.k_more = option & 4 ? 3 : 0;
      s.a_gap = s.c_gap = option & 8 ? 5 : 0;
      expect_right_on_every_tile(s, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Tile, MultipliesRandomShapes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 60; ++i) {
    Shape s{1 + random_below(random, 20), 1 + random_below(random, 300),
            kColumnPad * (1 + random_below(random, 20))};
    s.k_more = random_below(random, 20);
    s.a_gap = random_below(random, 20);
    s.c_gap = random_below(random, 20);
    s.partial = random_below(random, 2);
    s.add = random_below(random, 2);
    expect_right_on_every_tile(s, random);
    if (HasFatalFailure()) return;
  }
}

TEST(Tile, ARowDependsOnNoOther) {
  std::mt19937 random(3);
  const Problem whole({13, 70, 112}, random);
  on_every_tile([&](const TileOps& ops) {
    const std::vector<float> want = product(ops, whole);
    for (size_t m = 1; m <= 13; ++m) {
      for (size_t row = 0; row + m <= 13; ++row) {
        const Problem part = whole.part(row, m, 0, 112);
        ASSERT_TRUE(same_bits(product(ops, part), whole.columns_of(want, row, m, 0, 112)))
            << "rows " << row << " + " << m;
      }
    }
  });
}

TEST(Tile, AColumnDependsOnNoOther) {
  std::mt19937 random(4);
  const Problem whole({7, 34, 256}, random);
  on_every_tile([&](const TileOps& ops) {
    const std::vector<float> want = product(ops, whole);
    for (size_t n = 16; n <= 256; n += 16) {
      for (size_t column = 0; column + n <= 256; column += 48) {
        const Problem part = whole.part(0, 7, column, n);
        ASSERT_TRUE(same_bits(product(ops, part), whole.columns_of(want, 0, 7, column, n)))
            << "columns " << column << " + " << n;
      }
    }
  });
}

// Attention packs a whole step of keys and multiplies with those that a row may see.
TEST(Tile, AWidePanelServesItsFirstColumns) {
  std::mt19937 random(11);
  const Problem whole({7, 34, 256}, random);
  on_every_tile([&](const TileOps& ops) {
    const Panel wide = packed(ops, whole);
    for (const size_t n : {64, 128, 192}) {
      const Problem part = whole.part(0, 7, 0, n);
      ASSERT_TRUE(same_bits(product(ops, part, wide), product(ops, part))) << n << " columns";
    }
  });
}

TEST(Tile, CuttingTheDepthChangesNoBit) {
  std::mt19937 random(5);
  for (const size_t k : {2, 50, 301, 2048}) {
    const Problem even({13, round_depth(2, k), 80}, random), whole({13, k, 80}, random);
    on_every_tile([&](const TileOps& ops) {
      const Problem& p = ops.operand.n_byte == 2 ? even : whole;
      const std::vector<float> want = product(ops, p);
      for (const size_t piece : {1, 2, 7, 64, 1024}) {
        const size_t step = round_depth(ops.operand.n_byte, piece);
        if (p.shape.k / step > 50) continue;
        std::vector<float> sums;
        for (size_t at = 0; at < p.shape.k; at += step) {
          sums = product(ops, p.depth(at, std::min(step, p.shape.k - at), sums));
        }
        ASSERT_TRUE(same_bits(sums, want)) << "k " << k << " in pieces of " << step;
      }
    });
  }
}

TEST(Tile, PartialSumsMayBeTheResult) {
  std::mt19937 random(6);
  Shape s{11, 40, 96};
  s.partial = true;
  const Problem p(s, random);
  on_every_tile([&](const TileOps& ops) {
    const Panel panel = packed(ops, p);
    std::vector<float> c = p.partial;
    std::vector<std::byte> a(p.a.size() * ops.operand.n_byte);
    ops.to_operand(p.a.data(), p.a.size(), a.data());
    TileProduct t{a.data(), 40 * ops.operand.n_byte, 11, panel.data(), 40, 40, 96, c.data(), 96};
    t.partial = c.data();
    t.partial_stride = 96;
    ops.multiply(t);
    ASSERT_TRUE(same_bits(c, product(ops, p, panel)));
  });
}

TEST(Tile, FusedTargetsAgreeToTheBit) {
  std::mt19937 random(7);
  for (const size_t k : {1, 17, 300}) {
    const Problem p({13, k, 144}, random);
    std::vector<float> want;
    on_every_target([&](int64_t target) {
      for (const TileOps* ops : all_tile_ops()) {
        if (!has_fma(target) || ops->operand.n_byte != sizeof(float)) continue;
        const std::vector<float> got = product(*ops, p);
        if (want.empty()) want = got;
        ASSERT_TRUE(same_bits(got, want)) << "k " << k;
      }
    });
  }
}

// Strips of columns that come as rows of Bᵀ, and B itself: the same panel.
StripRows f32_rows(const std::vector<float>& rows, size_t stride, size_t n_valid) {
  return {WeightType::kF32, reinterpret_cast<const std::byte*>(rows.data()), stride * sizeof(float),
          0, n_valid};
}

TEST(Tile, PacksTransposedTheSame) {
  std::mt19937 random(8);
  for (const size_t k_any : {1, 2, 3, 5, 16, 18, 30, 47, 64, 129}) {
    for (size_t n_col = 16; n_col <= 160; n_col += 16) {
      on_every_tile([&](const TileOps& ops) {
        const size_t k = round_depth(ops.operand.n_byte, k_any), gap = n_col % 3;
        const std::vector<float> b = random_floats(random, k * n_col);
        Panel want(ops, k, n_col), got(ops, k, n_col);
        ops.pack(spread(b, n_col, gap, kNan).data(), n_col + gap, k, n_col, want.data());
        for (size_t strip = n_col; strip > 0; strip -= kStrip) {  // any order
          const size_t first = strip - kStrip;
          std::vector<float> rows;
          for (size_t c = first; c < strip; ++c) {
            for (size_t i = 0; i < k; ++i) rows.push_back(b[i * n_col + c]);
          }
          const std::vector<float> apart = spread(rows, k, gap, kNan);
          ops.pack_weights(f32_rows(apart, k + gap, kStrip), k, first, n_col, got.data());
        }
        ASSERT_EQ(got, want) << "k " << k << " n_col " << n_col;
      });
    }
  }
}

TEST(Tile, ColumnsThatAreNotThereAreZero) {
  std::mt19937 random(9);
  for (const size_t k_any : {1, 2, 7, 16, 33, 64}) {
    for (size_t n_valid = 0; n_valid <= kStrip; ++n_valid) {
      on_every_tile([&](const TileOps& ops) {
        const size_t k = round_depth(ops.operand.n_byte, k_any);
        const std::vector<float> rows = random_floats(random, n_valid * k);
        std::vector<float> b(k * kStrip);  // zero where no row is
        for (size_t c = 0; c < n_valid; ++c) {
          for (size_t i = 0; i < k; ++i) b[i * kStrip + c] = rows[c * k + i];
        }
        Panel want(ops, k, kStrip), got(ops, k, kStrip);
        ops.pack(b.data(), kStrip, k, kStrip, want.data());
        ops.pack_weights(f32_rows(rows, k, n_valid), k, 0, kStrip, got.data());
        ASSERT_EQ(got, want) << n_valid << " rows, k " << k;
      });
    }
  }
}

TEST(Tile, OperandsRoundToNearestEven) {
  std::mt19937 random(10);
  std::vector<float> in = random_floats(random, 101, 1e4f);
  for (const float x : {0.0f, -0.0f, 1.0f, 1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1.01p-8f, -1e-30f}) {
    in.push_back(x);
  }
  on_every_tile([&](const TileOps& ops) {
    for (size_t n = 1; n <= in.size(); n += n < 40 ? 1 : 7) {
      std::vector<std::byte> out(n * ops.operand.n_byte);
      ops.to_operand(in.data() + in.size() - n, n, out.data());
      for (size_t i = 0; i < n; ++i) {
        const float got = operand_at(ops.operand.n_byte, out.data() + i * ops.operand.n_byte);
        ASSERT_EQ(bits(got), bits(as_operand(ops.operand.n_byte, in[in.size() - n + i])))
            << i << " of " << n;
      }
    }
  });
}

}  // namespace
}  // namespace headstart::kernels
