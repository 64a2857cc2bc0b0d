// Proves block-sparse attention against f64, for every instruction set and operand type of this
// machine: the chosen key blocks against exact masses of the sampled queries, the result against a
// softmax over the active keys alone. Rows of K,V that no head attends to are NaN in these; those
// after the last position are not there. To add a shape, add it to shapes().
#include "kernels/sparse_attention.h"

#include <functional>
#include <numeric>

#include "kernels/rope.h"
#include "kernels/testing.h"

namespace headstart::kernels {
namespace {

struct Shape {
  uint32_t d_head_k, d_head_v, n_group;
  std::vector<uint32_t> positions;
  float soft_cap = 0;
};

std::vector<uint32_t> consecutive(uint32_t first, uint32_t n) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}

// Whole query blocks, parts of them, a few queries of many blocks, one query.
std::vector<Shape> shapes() {
  return {{64, 64, 3, consecutive(512, 256)},
          {32, 80, 2, consecutive(640, 75)},
          {128, 64, 1, consecutive(700, 140), 20},
          {16, 16, 2, {3, 70, 127, 128, 300, 301, 500, 640, 767, 768, 895}},
          {64, 32, 7, {831}}};
}

// K,V of all positions as f16, queries, and the f64 view of both.
class Problem {
 public:
  Problem(const Shape& shape, std::mt19937& random)
      : s(shape),
        q(random_floats(random, s.positions.size() * s.n_group * s.d_head_k, 3)),
        k_(halves(random, s.d_head_k)),
        v_(halves(random, s.d_head_v)) {}

  uint32_t n_key() const { return s.positions.back() + 1; }

  Attention attention(const TileOps& ops, std::vector<std::byte>& out) const {
    Attention a;
    a.n_group = s.n_group;
    a.d_head_k = s.d_head_k;
    a.d_head_v = s.d_head_v;
    a.scale = scale();
    a.soft_cap = s.soft_cap;
    a.k = rows(k_, s.d_head_k);
    a.v = rows(v_, s.d_head_v);
    a.positions = s.positions;
    a.q = q.data();
    a.q_stride = size_t{s.n_group} * s.d_head_k;
    a.out_stride = s.n_group * s.d_head_v * ops.operand.n_byte;
    out.assign(s.positions.size() * a.out_stride, std::byte{0x5A});
    a.out = out.data();
    return a;
  }

  // log2 of the weight of every key that a query sees, and how far rounding may take it.
  std::vector<double> scores(size_t operand_bytes, size_t query, uint32_t head,
                             double* error) const {
    const float factor = s.soft_cap == 0 ? scale() * static_cast<float>(M_LOG2E) : scale();
    std::vector<double> scores;
    double size = 0;
    for (uint32_t key = 0; key <= s.positions[query]; ++key) {
      double score = 0, magnitude = 0;
      for (uint32_t d = 0; d < s.d_head_k; ++d) {
        const double x =
            as_operand(operand_bytes, q[(query * s.n_group + head) * s.d_head_k + d] * factor);
        const double product = x * at(k_, s.d_head_k, operand_bytes, key, d);
        score += product;
        magnitude += std::abs(product);
      }
      if (s.soft_cap != 0) score = s.soft_cap * std::tanh(score / s.soft_cap) * M_LOG2E;
      scores.push_back(score);
      size = std::max(size, magnitude);
    }
    *error = 2 * sum_error(s.d_head_k) * size + 2e-6 * s.soft_cap + 5e-6;
    return scores;
  }
  double value(size_t operand_bytes, uint32_t key, uint32_t d) const {
    return at(v_, s.d_head_v, operand_bytes, key, d);
  }
  void spoil(uint32_t key_block) {
    for (auto& [halves, d] : {std::pair{&k_, s.d_head_k}, {&v_, s.d_head_v}}) {
      const size_t first = size_t{key_block} * kKeyBlock * d;
      const size_t end = std::min(halves->size(), first + kKeyBlock * d);
      std::fill(halves->begin() + first, halves->begin() + end, Half{0x7E00});
    }
  }

  const Shape s;
  const std::vector<float> q;  // [n_query, n_group, d_head_k]

 private:
  float scale() const { return 1 / std::sqrt(static_cast<float>(s.d_head_k)); }
  // Key blocks differ in size, so that some are heavy.
  std::vector<Half> halves(std::mt19937& random, uint32_t d_head) const {
    std::vector<Half> out(size_t{n_key()} * d_head);
    for (uint32_t key = 0; key < n_key(); ++key) {
      const auto block = static_cast<float>(key / kKeyBlock * 7 % 5);
      const std::vector<float> row = random_floats(random, d_head, 0.2f + block * block / 8);
      to_half(row, out.data() + size_t{key} * d_head);
    }
    return out;
  }
  static KvRows rows(const std::vector<Half>& halves, uint32_t d_head) {
    return {WeightType::kF16, reinterpret_cast<const std::byte*>(halves.data()),
            d_head * sizeof(Half)};
  }
  static double at(const std::vector<Half>& halves, uint32_t d_head, size_t operand_bytes,
                   uint32_t key, uint32_t d) {
    float value;
    dequantize_row(WeightType::kF16,
                   reinterpret_cast<const std::byte*>(&halves[size_t{key} * d_head + d]), 1,
                   &value);
    return as_operand(operand_bytes, value);
  }

  std::vector<Half> k_, v_;  // [n_key, d_head]
};

uint32_t n_key_block(const Shape& s, const QueryBlock& block) {
  return s.positions[block.first + block.n - 1] / kKeyBlock + 1;
}
uint32_t diagonal_of(const Shape& s, const QueryBlock& block) {
  return s.positions[block.first] / kQueryBlock * kQueryBlock / kKeyBlock;
}
bool always_kept(uint32_t block, uint32_t diagonal) { return block == 0 || block + 1 >= diagonal; }

// The fewest blocks that hold the share, by adding up the heaviest.
uint32_t count_holding(const std::vector<double>& mass, uint32_t diagonal, double share) {
  std::vector<double> others;
  double held = 0, all = 0;
  uint32_t n = 0;
  for (uint32_t b = 0; b < mass.size(); ++b) {
    all += mass[b];
    if (!always_kept(b, diagonal)) {
      others.push_back(mass[b]);
      continue;
    }
    held += mass[b];
    ++n;
  }
  std::sort(others.begin(), others.end(), std::greater<>());
  for (const double m : others) {
    if (held >= share * all) break;
    held += m;
    ++n;
  }
  return n;
}

uint32_t count(const KeyBlocks& keys) {
  return std::accumulate(keys.active.begin(), keys.active.end(), 0u);
}

// Masses are right up to `error`, of a total of 1.
void expect_choice(const KeyBlocks& keys, const std::vector<double>& mass, uint32_t diagonal,
                   double share, double error) {
  ASSERT_EQ(keys.active.size(), mass.size());
  double lightest = 1, heaviest = 0;
  for (uint32_t b = 0; b < mass.size(); ++b) {
    if (always_kept(b, diagonal)) {
      EXPECT_TRUE(keys.active[b]) << b;
    } else if (keys.active[b]) {
      lightest = std::min(lightest, mass[b]);
    } else {
      heaviest = std::max(heaviest, mass[b]);
    }
  }
  EXPECT_LE(heaviest, lightest + error);
  EXPECT_GE(count(keys), count_holding(mass, diagonal, share - error));
  EXPECT_LE(count(keys), share >= 1 ? mass.size() : count_holding(mass, diagonal, share + error));
  EXPECT_GE(keys.n_heavy, count_holding(mass, diagonal, kCountedShare - error));
  EXPECT_LE(keys.n_heavy, count_holding(mass, diagonal, kCountedShare + error));
}

TEST(SparseAttention, ChoosesTheFewestKeyBlocks) {
  const std::vector<float> mass = {0.125f, 0.25f, 0, 0.25f, 0.0625f, 0.0625f, 0.125f, 0.125f};
  using Active = std::vector<uint8_t>;
  EXPECT_EQ(choose_key_blocks(mass, 6, 0.5f).active, (Active{1, 1, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(choose_key_blocks(mass, 6, 0.7f).active, (Active{1, 1, 0, 1, 0, 1, 1, 1}));
  EXPECT_EQ(choose_key_blocks(mass, 6, 0.98f).active, (Active{1, 1, 0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(choose_key_blocks(mass, 6, 1.0f).active, (Active{1, 1, 1, 1, 1, 1, 1, 1}));
  for (const float share : {0.5f, 1.0f}) EXPECT_EQ(choose_key_blocks(mass, 6, share).n_heavy, 7u);
  EXPECT_EQ(choose_key_blocks(std::vector<float>{1}, 0, 0.5f).active, Active{1});

  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> some = random_floats(random, 1 + random_below(random, 80));
    for (float& m : some) m = std::pow(std::abs(m), 9.0f);
    const auto diagonal = static_cast<uint32_t>(random_below(random, some.size() + 1)) / 2 * 2;
    std::vector<double> exact(some.begin(), some.end());
    const double all = std::accumulate(exact.begin(), exact.end(), 0.0);
    for (double& m : exact) m /= all;
    for (const float share : {0.5f, 0.9f, 0.98f}) {
      expect_choice(choose_key_blocks(some, diagonal, share), exact, diagonal, share, 1e-7);
    }
  }
}

TEST(SparseAttention, QueryBlocksAreThoseOfPositions) {
  const std::vector<uint32_t> positions = {0, 127, 128, 129, 255, 640};
  std::vector<std::pair<uint32_t, uint32_t>> got;
  for (const QueryBlock& b : query_blocks(positions)) got.push_back({b.first, b.n});
  EXPECT_EQ(got, (std::vector<std::pair<uint32_t, uint32_t>>{{0, 2}, {2, 3}, {5, 1}}));
}

// Of the sampled queries' softmax.
std::vector<double> exact_mass(const Problem& p, size_t operand_bytes, const QueryBlock& block,
                               uint32_t head, double* error) {
  std::vector<double> mass(n_key_block(p.s, block));
  const uint32_t n = std::min(block.n, kSampledQueries);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t query = block.n <= n ? i : (2 * i + 1) * block.n / 16;
    double score_error;
    const auto scores = p.scores(operand_bytes, block.first + query, head, &score_error);
    const double highest = *std::ranges::max_element(scores);
    double total = 0;
    for (const double s : scores) total += std::exp2(s - highest);
    for (size_t key = 0; key < scores.size(); ++key) {
      mass[key / kKeyBlock] += std::exp2(scores[key] - highest) / total / n;
    }
    *error = std::max(*error, 2 * score_error);
  }
  return mass;
}

TEST(SparseAttention, SelectsByTheMassOfSampledQueries) {
  std::mt19937 random(2);
  for (const Shape& shape : shapes()) {
    const Problem p(shape, random);
    on_every_tile([&](const TileOps& ops) {
      std::vector<std::byte> out;
      AttentionScratch scratch;
      const float share = random_below(random, 2) ? 0.9f : 0.98f;
      const auto keys = select_key_blocks(ops, p.attention(ops, out), share, scratch);
      size_t i = 0;
      for (const QueryBlock& block : query_blocks(shape.positions)) {
        for (uint32_t head = 0; head < shape.n_group; ++head, ++i) {
          double error = 1e-6;
          const auto mass = exact_mass(p, ops.operand.n_byte, block, head, &error);
          expect_choice(keys.at(i), mass, diagonal_of(shape, block), share, error);
        }
      }
      EXPECT_EQ(i, keys.size());
    });
    if (HasFailure()) return;
  }
}

std::vector<KeyBlocks> random_keys(const Shape& shape, std::mt19937& random) {
  std::vector<KeyBlocks> keys;
  for (const QueryBlock& block : query_blocks(shape.positions)) {
    for (uint32_t head = 0; head < shape.n_group; ++head) {
      KeyBlocks& k = keys.emplace_back();
      for (uint32_t b = 0; b < n_key_block(shape, block); ++b) {
        k.active.push_back(always_kept(b, diagonal_of(shape, block)) ||
                           random_below(random, 3) == 0);
      }
    }
  }
  return keys;
}

// Key blocks that no head of any query block attends to.
void spoil_the_others(Problem& p, const std::vector<KeyBlocks>& keys) {
  for (uint32_t b = 0; b * kKeyBlock < p.n_key(); ++b) {
    const bool used = std::any_of(keys.begin(), keys.end(), [&](const KeyBlocks& k) {
      return b < k.active.size() && k.active[b];
    });
    if (!used) p.spoil(b);
  }
}

// One head's result of one query.
void expect_head(const Problem& p, const TileOps& ops, size_t query, uint32_t head,
                 const KeyBlocks& keys, const std::byte* got) {
  double error;
  std::vector<double> weights = p.scores(ops.operand.n_byte, query, head, &error);
  double highest = -INFINITY, total = 0;
  for (size_t key = 0; key < weights.size(); ++key) {
    if (keys.active[key / kKeyBlock]) highest = std::max(highest, weights[key]);
  }
  for (size_t key = 0; key < weights.size(); ++key) {
    weights[key] = keys.active[key / kKeyBlock] ? std::exp2(weights[key] - highest) : 0;
    total += weights[key];
  }
  error += sum_error(weights.size()) + operand_error(ops.operand.n_byte);
  for (uint32_t d = 0; d < p.s.d_head_v; ++d) {
    double sum = 0, magnitude = 0;
    for (uint32_t key = 0; key < weights.size(); ++key) {
      if (weights[key] == 0) continue;
      const double product = weights[key] / total * p.value(ops.operand.n_byte, key, d);
      sum += product;
      magnitude += std::abs(product);
    }
    const double value = operand_at(ops.operand.n_byte, got + d * ops.operand.n_byte);
    const double allowed = error * magnitude + operand_error(ops.operand.n_byte) * std::abs(sum);
    ASSERT_LE(std::abs(value - sum), allowed) << "query " << query << " head " << head;
  }
}

TEST(SparseAttention, AttendsToActiveKeyBlocksAlone) {
  std::mt19937 random(3);
  for (const Shape& shape : shapes()) {
    Problem p(shape, random);
    const std::vector<KeyBlocks> keys = random_keys(shape, random);
    spoil_the_others(p, keys);
    const auto blocks = query_blocks(shape.positions);
    on_every_tile([&](const TileOps& ops) {
      std::vector<std::byte> out;
      AttentionScratch scratch;
      const Attention a = p.attention(ops, out);
      attend_key_blocks(ops, a, keys, scratch);
      for (size_t b = 0; b < blocks.size(); ++b) {
        for (uint32_t i = 0; i < blocks[b].n; i += 1 + i % 11) {
          for (uint32_t head = 0; head < shape.n_group; ++head) {
            const size_t query = blocks[b].first + i;
            expect_head(
                p, ops, query, head, keys[b * shape.n_group + head],
                out.data() + query * a.out_stride + head * shape.d_head_v * ops.operand.n_byte);
          }
        }
      }
    });
    if (HasFailure()) return;
  }
}

TEST(SparseAttention, AllKeyBlocksGiveTheBitsOfAttend) {
  std::mt19937 random(4);
  for (const Shape& shape : shapes()) {
    const Problem p(shape, random);
    on_every_tile([&](const TileOps& ops) {
      std::vector<std::byte> dense, sparse;
      AttentionScratch scratch;
      attend(ops, p.attention(ops, dense), scratch);
      const Attention a = p.attention(ops, sparse);
      attend_key_blocks(ops, a, select_key_blocks(ops, a, 1, scratch), scratch);
      EXPECT_TRUE(same_bits(dense, sparse));
    });
    if (HasFailure()) return;
  }
}

// A query block and a head give the same bits alone as beside others.
TEST(SparseAttention, QueryBlocksAndHeadsDependOnNoOther) {
  std::mt19937 random(5);
  for (const Shape& shape : shapes()) {
    const Problem p(shape, random);
    const auto blocks = query_blocks(shape.positions);
    on_every_tile([&](const TileOps& ops) {
      std::vector<std::byte> together, alone;
      AttentionScratch scratch;
      const Attention all = p.attention(ops, together);
      attend_key_blocks(ops, all, select_key_blocks(ops, all, 0.9f, scratch), scratch);
      Attention one = p.attention(ops, alone);
      one.n_group = 1;
      for (const QueryBlock& block : blocks) {
        for (uint32_t head = 0; head < shape.n_group; ++head) {
          one.positions = all.positions.subspan(block.first, block.n);
          one.q = all.q + block.first * all.q_stride + size_t{head} * shape.d_head_k;
          one.out = alone.data() + block.first * all.out_stride +
                    head * shape.d_head_v * ops.operand.n_byte;
          attend_key_blocks(ops, one, select_key_blocks(ops, one, 0.9f, scratch), scratch);
        }
      }
      EXPECT_TRUE(same_bits(together, alone));
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace headstart::kernels
