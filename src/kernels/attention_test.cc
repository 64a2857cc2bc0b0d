// Proves attention against a softmax in f64 over all visible keys at once, for every instruction
// set and operand type of this machine, and that a query's bits depend on its own position and
// visible keys alone. Rows of K,V that no query may need (before the first window, in the gaps
// between rows) are NaN, those after the last position are not there; gaps of the output hold
// canaries. To add a case, add a Case.
#include "kernels/attention.h"

#include <array>
#include <map>
#include <numeric>
#include <ostream>

#include "kernels/decode_attention.h"
#include "kernels/rope.h"
#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

struct Case {
  uint32_t d_head_k = 64, d_head_v = 64, n_group = 1;
  std::vector<uint32_t> positions = {};
  uint32_t n_window = 0;
  float soft_cap = 0;
  WeightType type_k = WeightType::kF16, type_v = WeightType::kF16;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "heads of " << c.d_head_k << "/" << c.d_head_v << " group " << c.n_group << " "
             << to_string(c.type_k) << "/" << to_string(c.type_v) << " window " << c.n_window
             << " soft cap " << c.soft_cap << ", " << c.positions.size() << " positions "
             << c.positions.front() << " to " << c.positions.back();
}

constexpr size_t kGap = 6;  // values or bytes between rows

// Stands for the attention of decoding, which needs no tile.
constexpr TileOps kDecodeAttention = {
    {"decode", {1, sizeof(float)}, 0, nullptr, nullptr, nullptr, nullptr}, nullptr};

template <class F>
void on_every_attention(const F& f) {
  on_every_tile(f);
  on_every_target([&](int64_t) { f(kDecodeAttention); });
}

uint32_t first_visible(uint32_t position, uint32_t n_window) {
  return n_window != 0 && position + 1 > n_window ? position + 1 - n_window : 0;
}

// K or V for positions up to the last one.
class Cache {
 public:
  Cache(WeightType type, uint32_t d_head, uint32_t first, uint32_t last, std::mt19937& random)
      : type_(type), d_head_(d_head) {
    bytes_.resize((last + 1) * stride() - kGap, std::byte{0xFF});  // NaN in both types
    for (uint32_t p = first; p <= last; ++p) {
      // Keys of some steps are larger, so that the maximum moves up and down.
      set(p, random_floats(random, d_head, p / 100 % 3 == 1 ? 2.0f : 1.0f));
    }
  }

  void set(uint32_t p, const std::vector<float>& values) {
    std::byte* const to = bytes_.data() + p * stride();
    const uint32_t n_value = block_of(type_).n_value;
    for (uint32_t b = 0; b < d_head_ / n_value; ++b) {
      std::byte* const block = to + b * block_of(type_).n_byte;
      const std::span<const float> in(values.data() + b * n_value, n_value);
      const float unit = type_ == WeightType::kF16 ? in[0] : 2.0f / 127;
      Half half;
      to_half({&unit, 1}, &half);
      std::memcpy(block, &half, sizeof(half));
      for (uint32_t i = 0; type_ == WeightType::kQ8_0 && i < n_value; ++i) {
        block[2 + i] = static_cast<std::byte>(static_cast<int>(in[i] / unit));
      }
    }
  }

  size_t stride() const { return row_bytes(type_, d_head_) + kGap; }
  KvRows rows() const { return {type_, bytes_.data(), stride()}; }
  std::vector<double> row(uint32_t p, size_t operand_bytes) const {
    std::vector<float> values(d_head_);
    dequantize_row(type_, bytes_.data() + p * stride(), d_head_, values.data());
    std::vector<double> out;
    for (const float x : values) out.push_back(as_operand(operand_bytes, x));
    return out;
  }

 private:
  WeightType type_;
  uint32_t d_head_;
  std::vector<std::byte> bytes_;
};

// A case with its data.
struct Problem {
  Problem(const Case& c_in, std::mt19937& random)
      : c(c_in),
        k(c.type_k, c.d_head_k, first(), c.positions.back(), random),
        v(c.type_v, c.d_head_v, first(), c.positions.back(), random),
        q(random_floats(random, c.positions.size() * c.n_group * c.d_head_k, 3)) {}

  uint32_t first() const { return first_visible(c.positions.front(), c.n_window); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c.d_head_k)); }

  Case c;
  Cache k, v;
  std::vector<float> q;  // [n_query, n_group, d_head_k]
};

// Queries [query, query + n) and heads [head, head + n_group) of a problem.
struct Part {
  size_t query, n;
  uint32_t head, n_group;
};

void attend_decode(const Attention& a, AttentionScratch& scratch) {
  const SegmentRange range = segments(a);
  std::vector<float> parts((range.end - range.first) * segment_values(a), kNan);
  for (uint32_t s = range.end; s-- > range.first;) {  // any order
    attend_segment(a, s, parts.data() + (s - range.first) * segment_values(a), scratch);
  }
  join_segments(a, range.end - range.first, parts.data(), reinterpret_cast<float*>(a.out),
                a.out_stride / sizeof(float));
}

// Operands as bytes, [n, n_group, d_head_v].
std::vector<std::byte> attend(const TileOps& ops, const Problem& p, const Part& part,
                              AttentionScratch& scratch) {
  const Case& c = p.c;
  const size_t d_k = c.d_head_k;
  std::vector<float> q(part.n * (part.n_group * d_k + kGap) - kGap, kNan);
  for (size_t i = 0; i < part.n; ++i) {
    std::copy_n(p.q.begin() + ((part.query + i) * c.n_group + part.head) * d_k, part.n_group * d_k,
                q.begin() + i * (part.n_group * d_k + kGap));
  }
  // Exactly these queries: the next one's position is not to be read.
  const std::vector<uint32_t> positions(c.positions.begin() + part.query,
                                        c.positions.begin() + part.query + part.n);
  const size_t n_byte = part.n_group * c.d_head_v * ops.operand.n_byte;
  std::vector<std::byte> out(part.n * (n_byte + kGap * 4) - kGap * 4, std::byte{0x5A});
  Attention a;
  a.n_group = part.n_group;
  a.d_head_k = c.d_head_k;
  a.d_head_v = c.d_head_v;
  a.n_window = c.n_window;
  a.scale = p.scale();
  a.soft_cap = c.soft_cap;
  a.k = p.k.rows();
  a.v = p.v.rows();
  a.positions = positions;
  a.q = q.data();
  a.q_stride = part.n_group * d_k + kGap;
  a.out = out.data();
  a.out_stride = n_byte + kGap * 4;
  if (&ops == &kDecodeAttention) {
    attend_decode(a, scratch);
  } else {
    attend(ops, a, scratch);
  }

  std::vector<std::byte> dense;
  for (size_t i = 0; i < part.n; ++i) {
    const auto row = out.begin() + i * a.out_stride;
    dense.insert(dense.end(), row, row + n_byte);
    for (size_t g = 0; g < kGap * 4 && i + 1 < part.n; ++g) {
      EXPECT_EQ(row[n_byte + g], std::byte{0x5A}) << "written in the gap after query " << i;
    }
  }
  return dense;
}

std::vector<std::byte> attend(const TileOps& ops, const Problem& p) {
  AttentionScratch scratch;
  return attend(ops, p, {0, p.c.positions.size(), 0, p.c.n_group}, scratch);
}

struct Value {
  double value, error;
};

// What one head of one query gives, from rows of operands.
void reference_head(const Problem& p, size_t operand_bytes, size_t query, const float* q,
                    const std::vector<std::vector<double>>& keys,
                    const std::vector<std::vector<double>>& values, std::vector<Value>& out) {
  const Case& c = p.c;
  const uint32_t position = c.positions[query];
  const uint32_t begin = first_visible(position, c.n_window);
  // The scale goes into the query before that becomes an operand; it makes log2's of e's.
  const double unit = c.soft_cap == 0 ? M_LN2 : 1;
  const float factor = c.soft_cap == 0 ? p.scale() * static_cast<float>(M_LOG2E) : p.scale();
  std::vector<double> scores, scaled;
  for (uint32_t d = 0; d < c.d_head_k; ++d) {
    scaled.push_back(unit * double{as_operand(operand_bytes, q[d] * factor)});
  }
  double largest = -INFINITY, size = 0;
  for (uint32_t key = begin; key <= position; ++key) {
    double score = 0, magnitude = 0;
    const double* const row = keys[key].data();
    for (uint32_t d = 0; d < c.d_head_k; ++d) {
      score += scaled[d] * row[d];
      magnitude += std::abs(scaled[d] * row[d]);
    }
    if (c.soft_cap != 0) score = c.soft_cap * std::tanh(score / c.soft_cap);
    scores.push_back(score);
    largest = std::max(largest, score);
    size = std::max(size, magnitude);
  }
  double total = 0;
  for (double& s : scores) total += s = std::exp(s - largest);
  // A score's error is a weight's relative error: of the sum, of tanh, of 2^x and the rescaling.
  const double weight_error = 2 * sum_error(c.d_head_k) * size + 1e-6 * c.soft_cap + 3e-6 +
                              sum_error(scores.size()) + operand_error(operand_bytes);
  std::vector<double> sums(c.d_head_v), magnitudes(c.d_head_v);
  for (size_t i = 0; i < scores.size(); ++i) {
    const double* const row = values[begin + i].data();
    for (uint32_t d = 0; d < c.d_head_v; ++d) {
      sums[d] += scores[i] / total * row[d];
      magnitudes[d] += std::abs(scores[i] / total * row[d]);
    }
  }
  for (uint32_t d = 0; d < c.d_head_v; ++d) {
    out.push_back(
        {sums[d], weight_error * magnitudes[d] + operand_error(operand_bytes) * std::abs(sums[d])});
  }
}

std::vector<Value> reference(const Problem& p, size_t operand_bytes) {
  std::vector<std::vector<double>> keys(p.first()), values(p.first());
  for (uint32_t i = p.first(); i <= p.c.positions.back(); ++i) {
    keys.push_back(p.k.row(i, operand_bytes));
    values.push_back(p.v.row(i, operand_bytes));
  }
  std::vector<Value> out;
  for (size_t row = 0; row < p.c.positions.size() * p.c.n_group; ++row) {
    reference_head(p, operand_bytes, row / p.c.n_group, p.q.data() + row * p.c.d_head_k, keys,
                   values, out);
  }
  return out;
}

void expect_right(const TileOps& ops, const Problem& p, const std::vector<std::byte>& got,
                  const std::vector<Value>& want) {
  ASSERT_EQ(got.size(), want.size() * ops.operand.n_byte);
  for (size_t i = 0; i < want.size(); ++i) {
    const double value = operand_at(ops.operand.n_byte, got.data() + i * ops.operand.n_byte);
    if (std::abs(value - want[i].value) <= want[i].error) continue;
    FAIL() << value << " for " << want[i].value << " ± " << want[i].error << ", dimension "
           << i % p.c.d_head_v << " of query " << i / p.c.d_head_v / p.c.n_group << " of " << p.c;
  }
}

void expect_right_everywhere(const Case& c, std::mt19937& random) {
  const Problem p(c, random);
  std::map<size_t, std::vector<Value>> references;  // by operand bytes
  on_every_attention([&](const TileOps& ops) {
    std::vector<Value>& want = references[ops.operand.n_byte];
    if (want.empty()) want = reference(p, ops.operand.n_byte);
    expect_right(ops, p, attend(ops, p), want);
  });
}

std::vector<uint32_t> consecutive(uint32_t first, uint32_t n) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}

// n different ones below `end`, of which the last is end - 1.
std::vector<uint32_t> scattered(std::mt19937& random, uint32_t n, uint32_t end) {
  std::vector<uint32_t> all = consecutive(0, end - 1), out;
  std::sample(all.begin(), all.end(), std::back_inserter(out), n - 1, random);
  out.push_back(end - 1);
  return out;
}

TEST(Attention, HeadsOfEverySize) {
  std::mt19937 random(1);
  for (const auto& [d_k, d_v] : {std::pair{16, 16},
                                 {32, 32},
                                 {64, 64},
                                 {80, 80},
                                 {96, 96},
                                 {128, 128},
                                 {256, 256},
                                 {192, 128},
                                 {16, 80},
                                 {96, 32}}) {
    for (const uint32_t n_group : {1, 3, 4, 7}) {
      Case c{static_cast<uint32_t>(d_k), static_cast<uint32_t>(d_v), n_group};
      c.positions = consecutive(250 + n_group, 9);
      expect_right_everywhere(c, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Attention, PositionsOfEveryKind) {
  std::mt19937 random(2);
  for (const std::vector<uint32_t>& positions : {consecutive(0, 1),
                                                 consecutive(0, 70),
                                                 consecutive(317, 21),
                                                 consecutive(513, 1),
                                                 scattered(random, 13, 600),
                                                 scattered(random, 40, 130),
                                                 {0u, 255u, 256u, 511u, 512u}}) {
    for (const uint32_t n_window : {0, 1, 5, 64, 100, 256, 300, 1000}) {
      expect_right_everywhere({32, 48, 3, positions, n_window}, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Attention, KeyCountsAroundTheSteps) {
  std::mt19937 random(3);
  for (const uint32_t step : {16, 64, 128, 192, 256, 320, 512, 768, 1024, 2048}) {
    for (uint32_t last = step - 2; last <= step + 1; ++last) {
      for (const uint32_t n_window : {0, 16, 256}) {
        expect_right_everywhere({16, 16, 2, {last / 2, last}, n_window}, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Attention, CachesOfEveryType) {
  std::mt19937 random(4);
  constexpr WeightType kTypes[] = {WeightType::kF16, WeightType::kQ8_0};
  for (const WeightType k : kTypes) {
    for (const WeightType v : kTypes) {
      for (const uint32_t n_window : {0, 70}) {
        for (const uint32_t d_head : {32, 64, 128, 256}) {
          expect_right_everywhere({d_head, d_head, 4, consecutive(301, 5), n_window, 0, k, v},
                                  random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Attention, CapsScores) {
  std::mt19937 random(5);
  for (const float soft_cap : {0.5f, 5.0f, 50.0f}) {
    for (const uint32_t n_window : {0, 33}) {
      expect_right_everywhere({64, 64, 3, consecutive(255, 4), n_window, soft_cap}, random);
      expect_right_everywhere({128, 64, 1, scattered(random, 9, 300), n_window, soft_cap}, random);
      if (HasFatalFailure()) return;
    }
  }
}

Case random_case(std::mt19937& random) {
  Case c;
  const bool q8 = random_below(random, 2);
  const uint32_t unit = q8 ? 32 : 16;
  c.d_head_k = unit * static_cast<uint32_t>(1 + random_below(random, 256 / unit));
  c.d_head_v = unit * static_cast<uint32_t>(1 + random_below(random, 256 / unit));
  c.n_group = static_cast<uint32_t>(1 + random_below(random, 8));
  if (q8) c.type_k = c.type_v = WeightType::kQ8_0;
  const auto n = static_cast<uint32_t>(1 + random_below(random, 12));
  const auto end = n + static_cast<uint32_t>(random_below(random, 600));
  c.positions = random_below(random, 2) ? consecutive(end - n, n) : scattered(random, n, end);
  if (random_below(random, 2)) c.n_window = static_cast<uint32_t>(1 + random_below(random, 400));
  if (random_below(random, 4) == 0) c.soft_cap = 20;
  return c;
}

// Queries alone and in slices, heads alone, one scratch for all.
void expect_bits_of_their_own(const TileOps& ops, const Problem& p, std::mt19937& random) {
  const size_t n_query = p.c.positions.size();
  const uint32_t n_group = p.c.n_group;
  const size_t n_byte = p.c.d_head_v * ops.operand.n_byte;
  const std::vector<std::byte> all = attend(ops, p);
  std::vector<Part> parts;
  for (size_t i = 0; i < n_query; ++i) {
    parts.push_back({i, 1, 0, n_group});
    if (i % 4 == 0) parts.push_back({i, n_query - i, static_cast<uint32_t>(i / 4) % n_group, 1});
  }
  for (size_t i = 0; i < n_query;) {
    const size_t n = 1 + random_below(random, n_query - i);
    parts.push_back({i, n, 0, n_group});
    i += n;
  }
  AttentionScratch scratch;
  for (const Part& part : parts) {
    std::vector<std::byte> want;
    for (size_t i = part.query; i < part.query + part.n; ++i) {
      const auto at = all.begin() + (i * n_group + part.head) * n_byte;
      want.insert(want.end(), at, at + part.n_group * n_byte);
    }
    ASSERT_TRUE(same_bits(attend(ops, p, part, scratch), want))
        << "queries " << part.query << " + " << part.n << " heads " << part.head << " + "
        << part.n_group << " of " << p.c;
  }
}

TEST(Attention, AQueryDependsOnNoOther) {
  std::mt19937 random(6);
  for (const uint32_t n_window : {0, 7, 64, 300}) {
    for (const uint32_t n_group : {1, 3, 4}) {
      for (const std::vector<uint32_t>& positions :
           {consecutive(0, 14), consecutive(249, 14), scattered(random, 14, 530)}) {
        const Problem p({32, 16, n_group, positions, n_window, n_group == 3 ? 10.0f : 0.0f},
                        random);
        on_every_attention([&](const TileOps& ops) { expect_bits_of_their_own(ops, p, random); });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Attention, RandomShapes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 12; ++i) {
    const Case c = random_case(random);
    expect_right_everywhere(c, random);
    const Problem p(c, random);
    on_every_attention([&](const TileOps& ops) { expect_bits_of_their_own(ops, p, random); });
    if (HasFatalFailure()) return;
  }
}

TEST(Attention, TheOnlyKeyGivesItsValue) {
  std::mt19937 random(7);
  const Problem p({64, 64, 3, {0}}, random);
  on_every_attention([&](const TileOps& ops) {
    const std::vector<std::byte> got = attend(ops, p);
    for (size_t i = 0; i < 3 * 64; ++i) {
      ASSERT_EQ(operand_at(ops.operand.n_byte, got.data() + i * ops.operand.n_byte),
                p.v.row(0, ops.operand.n_byte)[i % 64]);
    }
  });
}

// Scores of ±30000: all weight on the highest, no infinities.
TEST(Attention, LargeScoresStayFinite) {
  std::mt19937 random(8);
  for (const uint32_t top : {0u, 100u, 256u, 400u}) {
    Problem p({32, 32, 2, {400, 401}}, random);
    for (uint32_t i = 0; i <= 401; ++i) p.k.set(i, std::vector<float>(32, i == top ? 50 : -50));
    std::fill(p.q.begin(), p.q.end(), 100.0f);
    on_every_attention([&](const TileOps& ops) {
      const std::vector<std::byte> got = attend(ops, p);
      for (size_t i = 0; i < 2 * 2 * 32; ++i) {
        ASSERT_EQ(operand_at(ops.operand.n_byte, got.data() + i * ops.operand.n_byte),
                  p.v.row(top, ops.operand.n_byte)[i % 32])
            << "highest at " << top;
      }
    });
  }
}

}  // namespace
}  // namespace headstart::kernels
