// Proves decode attention against a softmax in f64, for every instruction set of this machine, and
// that a query's bits do not depend on the other queries. Rows of K,V before the first that a query
// sees are NaN, those after the last position are not there. To add a case, add a Case.
#include "kernels/decode_attention.h"

#include <span>

#include "kernels/rope.h"
#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

struct Case {
  uint32_t d_head_k = 64, d_head_v = 64, n_group = 1;
  std::vector<uint32_t> positions = {};
  uint32_t n_window = 0;
  float soft_cap = 0;
  WeightType type = WeightType::kF16;
};

uint32_t first_visible(uint32_t position, uint32_t n_window) {
  return n_window != 0 && position + 1 > n_window ? position + 1 - n_window : 0;
}

// Rows of random bytes that make finite values, some of them several times larger.
std::vector<std::byte> random_rows(WeightType type, uint32_t d_head, uint32_t first, uint32_t end,
                                   std::mt19937& random) {
  const size_t stride = row_bytes(type, d_head);
  std::vector<std::byte> rows(end * stride, std::byte{0xFF});
  for (uint32_t p = first; p < end; ++p) {
    const auto values = random_floats(random, d_head, p / 100 % 3 == 1 ? 2.0f : 1.0f);
    std::vector<Half> halves(d_head);
    to_half(values, halves.data());
    if (type == WeightType::kF16) {
      std::memcpy(rows.data() + p * stride, halves.data(), stride);
      continue;
    }
    Half unit;
    to_half(std::vector{1.0f / 64}, &unit);
    const WeightBlock block = block_of(type);
    for (size_t i = 0; i < d_head; ++i) {
      std::byte* const to = rows.data() + p * stride + i / block.n_value * block.n_byte;
      std::memcpy(to, &unit, sizeof(unit));
      to[2 + i % block.n_value] = static_cast<std::byte>(static_cast<int>(values[i] * 60));
    }
  }
  return rows;
}

struct Problem {
  Problem(const Case& c_in, std::mt19937& random)
      : c(c_in),
        k(random_rows(c.type, c.d_head_k, first(), c.positions.back() + 1, random)),
        v(random_rows(c.type, c.d_head_v, first(), c.positions.back() + 1, random)),
        q(random_floats(random, c.positions.size() * c.n_group * c.d_head_k, 3)) {}

  uint32_t first() const { return first_visible(c.positions.front(), c.n_window); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c.d_head_k)); }

  Case c;
  std::vector<std::byte> k, v;
  std::vector<float> q;  // [n_query, n_group, d_head_k]
};

// Of queries [query, query + n): [n, n_group, d_head_v].
std::vector<float> attend(const Problem& p, size_t query, size_t n) {
  const Case& c = p.c;
  Attention a;
  a.n_group = c.n_group;
  a.d_head_k = c.d_head_k;
  a.d_head_v = c.d_head_v;
  a.n_window = c.n_window;
  a.scale = p.scale();
  a.soft_cap = c.soft_cap;
  a.k = {c.type, p.k.data(), row_bytes(c.type, c.d_head_k)};
  a.v = {c.type, p.v.data(), row_bytes(c.type, c.d_head_v)};
  a.positions = std::span(c.positions).subspan(query, n);
  a.q_stride = size_t{c.n_group} * c.d_head_k;
  a.q = p.q.data() + query * a.q_stride;

  const SegmentRange range = segments(a);
  const size_t size = segment_values(a);
  std::vector<float> parts((range.end - range.first) * size, kNan);
  AttentionScratch scratch;
  for (uint32_t s = range.first; s < range.end; ++s)
    attend_segment(a, s, parts.data() + (s - range.first) * size, scratch);
  std::vector<float> out(n * c.n_group * c.d_head_v);
  join_segments(a, range.end - range.first, parts.data(), out.data(),
                size_t{c.n_group} * c.d_head_v);
  return out;
}

std::vector<float> row_at(WeightType type, const std::vector<std::byte>& rows, uint32_t d_head,
                          uint32_t p) {
  std::vector<float> out(d_head);
  dequantize_row(type, rows.data() + p * row_bytes(type, d_head), d_head, out.data());
  return out;
}

// One head of one query.
std::vector<double> reference(const Problem& p, uint32_t position, const float* q) {
  const Case& c = p.c;
  std::vector<double> out(c.d_head_v);
  double total = 0;
  for (uint32_t key = first_visible(position, c.n_window); key <= position; ++key) {
    const auto k = row_at(c.type, p.k, c.d_head_k, key), v = row_at(c.type, p.v, c.d_head_v, key);
    double score = 0;
    for (uint32_t d = 0; d < c.d_head_k; ++d) score += double{q[d]} * k[d] * p.scale();
    if (c.soft_cap != 0) score = c.soft_cap * std::tanh(score / c.soft_cap);
    const double weight = std::exp(score);  // scores of these sizes stay far below f64's largest
    total += weight;
    for (uint32_t d = 0; d < c.d_head_v; ++d) out[d] += weight * v[d];
  }
  for (double& x : out) x /= total;
  return out;
}

void expect_right(const Case& c, std::mt19937& random) {
  const Problem p(c, random);
  const size_t n_row = c.positions.size() * c.n_group;
  std::vector<double> want;
  for (size_t row = 0; row < n_row; ++row) {
    const auto values = reference(p, c.positions[row / c.n_group], p.q.data() + row * c.d_head_k);
    want.insert(want.end(), values.begin(), values.end());
  }
  on_every_target([&](int64_t) {
    const std::vector<float> got = attend(p, 0, c.positions.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-4)
          << "heads of " << c.d_head_k << "/" << c.d_head_v << " group " << c.n_group << " window "
          << c.n_window << " value " << i;
    }
    for (size_t query = 0; query < c.positions.size(); ++query) {
      const std::vector<float> alone = attend(p, query, 1);
      const auto first = got.begin() + query * alone.size();
      ASSERT_TRUE(same_bits(alone, std::vector<float>(first, first + alone.size())))
          << "query " << query << " alone";
    }
  });
}

TEST(DecodeAttention, HeadsOfEverySize) {
  std::mt19937 random(1);
  for (const auto& [d_k, d_v] :
       {std::pair{16, 16}, {64, 64}, {80, 80}, {128, 128}, {256, 256}, {192, 128}, {16, 80}}) {
    for (const uint32_t n_group : {1, 3, 4, 7}) {
      expect_right({static_cast<uint32_t>(d_k), static_cast<uint32_t>(d_v), n_group, {255, 256}},
                   random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DecodeAttention, PositionsAroundTheSegmentsAndWindows) {
  std::mt19937 random(2);
  for (const std::vector<uint32_t>& positions :
       {std::vector{0u}, {1023u}, {1024u}, {1022u, 1023u, 1024u, 1025u}, {7u, 300u, 2050u}}) {
    for (const uint32_t n_window : {0, 1, 5, 256, 1000}) {
      expect_right({16, 32, 2, positions, n_window}, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DecodeAttention, QuantisedCachesAndCappedScores) {
  std::mt19937 random(3);
  for (const WeightType type : {WeightType::kF16, WeightType::kQ8_0}) {
    for (const float soft_cap : {0.0f, 5.0f}) {
      for (const uint32_t n_window : {0, 70}) {
        expect_right({64, 96, 3, {100, 101, 102, 103, 104}, n_window, soft_cap, type}, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace headstart::kernels
