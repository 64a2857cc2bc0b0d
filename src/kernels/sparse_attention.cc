#include "kernels/sparse_attention.h"

#include <algorithm>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse_attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "base/check.h"
#include "base/rounding.h"
#include "kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {

// Key blocks that a softmax takes at a time, at most.
constexpr uint32_t kStepBlocks = kKeyStep / kKeyBlock;

PackedKeys keys_of(uint32_t block, uint32_t key_end) {
  return {block * kKeyBlock, kKeyBlock, 0, key_end};
}

// Mass of key blocks under the softmax of sampled queries.
class Selector {
 public:
  Selector(const TileOps& ops, const Attention& attention, AttentionScratch& scratch)
      : ops_(ops),
        a_(attention),
        blocks_(query_blocks(a_.positions)),
        key_end_(a_.positions.back() + 1),
        n_key_block_(ceil_div(key_end_, kKeyBlock)),
        query_bytes_(ops.operand_bytes(a_.d_head_k)) {
    for (const QueryBlock& block : blocks_) {
      const uint32_t n = std::min(block.n, kSampledQueries);
      for (uint32_t head = 0; head < a_.n_group; ++head) {
        for (uint32_t i = 0; i < n; ++i) {
          samples_.push_back({block.first + (2 * i + 1) * block.n / (2 * n), head});
        }
      }
    }
    query_f32_ = scratch.queries_f32.get(a_.d_head_k);
    queries_ = scratch.queries.get(samples_.size() * query_bytes_);
    key_panel_ = scratch.key_panel.get(kKeyBlock * query_bytes_);
    scores_ = scratch.scores.get(samples_.size() * kKeyBlock);
    max_ = scratch.max_and_total.get(2 * samples_.size() * n_key_block_);
    total_ = max_ + samples_.size() * n_key_block_;
    mass_.resize(n_key_block_);
  }

  std::vector<KeyBlocks> run(float share) {
    for (size_t row = 0; row < samples_.size(); ++row) {
      PackQuery(ops_, a_, size_t{samples_[row].query} * a_.n_group + samples_[row].head, query_f32_,
                queries_ + row * query_bytes_);
    }
    for (uint32_t block = 0; block < n_key_block_; ++block) score(block);

    std::vector<KeyBlocks> keys;
    size_t row = 0;
    for (const QueryBlock& block : blocks_) {
      const uint32_t first = a_.positions[block.first] / kQueryBlock * kQueryBlock;
      const uint32_t last = a_.positions[block.first + block.n - 1];
      const uint32_t n = std::min(block.n, kSampledQueries);
      for (uint32_t head = 0; head < a_.n_group; ++head, row += n) {
        const std::span<const float> mass = mass_of(row, n, ceil_div(last + 1, kKeyBlock));
        keys.push_back(choose_key_blocks(mass, first / kKeyBlock, share));
      }
    }
    return keys;
  }

 private:
  struct Sample {
    uint32_t query;
    uint32_t head;
  };

  // Maximum of the block's scores, and total of 2^(score - maximum), for every sample.
  void score(uint32_t block) {
    PackKeys(ops_, a_, keys_of(block, key_end_), key_panel_);
    TileProduct qk;
    qk.a = queries_;
    qk.a_stride = query_bytes_;
    qk.m = samples_.size();
    qk.panel = key_panel_;
    qk.k = qk.k_packed = a_.d_head_k;
    qk.n_col = kKeyBlock;
    qk.c = scores_;
    qk.c_stride = kKeyBlock;
    ops_.multiply(qk);
    for (size_t row = 0; row < samples_.size(); ++row) {
      const uint32_t position = a_.positions[samples_[row].query];
      const Visible seen = Seen(a_, block * kKeyBlock, position, kKeyBlock);
      float& max = max_[row * n_key_block_ + block];
      float& total = total_[row * n_key_block_ + block];
      max = kFloor;
      total = seen.end == 0 ? 0 : Softmax(a_, seen, kKeyBlock, scores_ + row * kKeyBlock, &max);
    }
  }

  // Of the first n_block key blocks, summed over n samples from `row` on.
  std::span<const float> mass_of(size_t row, uint32_t n, uint32_t n_block) {
    std::fill_n(mass_.begin(), n_block, 0.0f);
    for (; n > 0; --n, ++row) {
      const float* const max = max_ + row * n_key_block_;
      float* const total = total_ + row * n_key_block_;
      const float highest = *std::max_element(max, max + n_block);
      float sum = 0;
      for (uint32_t b = 0; b < n_block; ++b) sum += total[b] *= Exp2(max[b] - highest);
      for (uint32_t b = 0; b < n_block; ++b) mass_[b] += total[b] / sum;
    }
    return std::span(mass_).first(n_block);
  }

  const TileOps& ops_;
  const Attention& a_;
  const std::vector<QueryBlock> blocks_;
  const uint32_t key_end_;
  const uint32_t n_key_block_;
  const size_t query_bytes_;
  std::vector<Sample> samples_;  // [query block, head, sample]
  std::vector<float> mass_;      // [n_key_block_]
  float* query_f32_;             // [d_head_k]
  std::byte* queries_;           // [n_sample, d_head_k]
  std::byte* key_panel_;         // [d_head_k, kKeyBlock]
  float* scores_;                // [n_sample, kKeyBlock]
  float* max_;                   // [n_sample, n_key_block_]
  float* total_;                 // [n_sample, n_key_block_]
};

class BlockAttender {
 public:
  BlockAttender(const TileOps& ops, const Attention& attention, std::span<const KeyBlocks> keys,
                AttentionScratch& scratch)
      : ops_(ops),
        a_(attention),
        key_end_(a_.positions.back() + 1),
        n_row_(a_.positions.size() * a_.n_group),
        query_bytes_(ops.operand_bytes(a_.d_head_k)),
        value_panel_bytes_(ops.panel_bytes(kKeyBlock, a_.d_head_v)),
        weight_row_bytes_(ops.operand_bytes(kKeyStep)),
        value_rows_(scratch.values.get(kKeyBlock * a_.d_head_v)),
        scores_(scratch.scores.get(ops.n_row * kKeyStep)),
        sums_(scratch.sums.get(n_row_ * a_.d_head_v)),
        max_(scratch.max_and_total.get(2 * n_row_)),
        total_(max_ + n_row_),
        query_f32_(scratch.queries_f32.get(a_.d_head_k)),
        queries_(scratch.queries.get(n_row_ * query_bytes_)),
        key_panels_(scratch.key_panel.get(kKeyStep * query_bytes_)),
        value_panels_(scratch.value_panel.get(kStepBlocks * value_panel_bytes_)),
        weights_(scratch.weights.get(ops.n_row * weight_row_bytes_)) {
    size_t row = 0;
    for (const QueryBlock& block : query_blocks(a_.positions)) {
      for (uint32_t head = 0; head < a_.n_group; ++head, row += block.n) {
        units_.push_back({block, head, row, keys[units_.size()].active});
      }
    }
  }

  void run() {
    for (const Unit& unit : units_) pack_queries(unit);
    std::fill_n(sums_, n_row_ * a_.d_head_v, 0.0f);
    std::fill_n(max_, n_row_, kFloor);
    std::fill_n(total_, n_row_, 0.0f);
    for (uint32_t block = 0; block * kKeyBlock < key_end_; block += kStepBlocks) step(block);
    for (const Unit& unit : units_) finish(unit);
  }

 private:
  // Rows that attend to the same key blocks: a query block's, of one head.
  struct Unit {
    QueryBlock queries;
    uint32_t head;
    size_t row;  // the first of queries.n
    std::span<const uint8_t> active;
    bool attends(uint32_t block) const { return block < active.size() && active[block] != 0; }
  };

  // Active blocks of a step, ascending, relative to its first.
  struct StepBlocks {
    uint32_t first;
    uint32_t n;
    uint32_t at[kStepBlocks];
    uint32_t key(uint32_t i) const { return (first + at[i]) * kKeyBlock; }
  };

  void pack_queries(const Unit& unit) {
    for (uint32_t i = 0; i < unit.queries.n; ++i) {
      PackQuery(ops_, a_, size_t{unit.queries.first + i} * a_.n_group + unit.head, query_f32_,
                queries_ + (unit.row + i) * query_bytes_);
    }
  }

  void step(uint32_t block_first) {
    for (uint32_t i = 0; i < kStepBlocks; ++i) {
      const uint32_t block = block_first + i;
      if (std::none_of(units_.begin(), units_.end(),
                       [&](const Unit& unit) { return unit.attends(block); })) {
        continue;
      }
      const PackedKeys keys = keys_of(block, key_end_);
      PackKeys(ops_, a_, keys, key_panels_ + i * kKeyBlock * query_bytes_);
      PackValues(ops_, a_, keys, value_rows_, value_panels_ + i * value_panel_bytes_);
    }
    for (const Unit& unit : units_) {
      StepBlocks blocks{block_first, 0, {}};
      for (uint32_t i = 0; i < kStepBlocks; ++i) {
        if (unit.attends(block_first + i)) blocks.at[blocks.n++] = i;
      }
      const auto n_row = static_cast<uint32_t>(ops_.n_row);
      for (uint32_t i = 0; i < unit.queries.n; i += n_row) {
        tile(unit, blocks, i, std::min(n_row, unit.queries.n - i));
      }
    }
  }

  // m queries of the unit, from number `query` on, against the blocks that the last of them sees.
  void tile(const Unit& unit, StepBlocks blocks, uint32_t query, uint32_t m) {
    const uint32_t* const positions = a_.positions.data() + unit.queries.first + query;
    while (blocks.n > 0 && blocks.key(blocks.n - 1) > positions[m - 1]) --blocks.n;
    if (blocks.n == 0) return;
    const size_t row = unit.row + query;
    score(blocks, row, m);
    const uint32_t n_col = blocks.n * kKeyBlock;
    for (uint32_t r = 0; r < m; ++r) {
      Visible seen{0, 0};
      for (uint32_t i = 0; i < blocks.n; ++i) {
        seen.end += Seen(a_, blocks.key(i), positions[r], kKeyBlock).end;
      }
      float* const scores = scores_ + r * kKeyStep;
      Absorb(a_, seen, n_col, scores, &max_[row + r], &total_[row + r],
             sums_ + (row + r) * a_.d_head_v);
      ops_.to_operand(scores, n_col, weights_ + r * weight_row_bytes_);
    }
    add_values(blocks, row, m);
  }

  void score(const StepBlocks& blocks, size_t row, size_t m) {
    TileProduct qk;
    qk.a = queries_ + row * query_bytes_;
    qk.a_stride = query_bytes_;
    qk.m = m;
    qk.k = qk.k_packed = a_.d_head_k;
    qk.c_stride = kKeyStep;
    qk.n_col = kKeyBlock;
    for (uint32_t i = 0; i < blocks.n; ++i) {
      qk.panel = key_panels_ + blocks.at[i] * kKeyBlock * query_bytes_;
      qk.c = scores_ + i * kKeyBlock;
      ops_.multiply(qk);
    }
  }

  void add_values(const StepBlocks& blocks, size_t row, size_t m) {
    TileProduct wv;
    wv.a_stride = weight_row_bytes_;
    wv.m = m;
    wv.k = wv.k_packed = kKeyBlock;
    wv.n_col = a_.d_head_v;
    wv.c = sums_ + row * a_.d_head_v;
    wv.c_stride = a_.d_head_v;
    wv.partial = wv.c;
    wv.partial_stride = wv.c_stride;
    for (uint32_t i = 0; i < blocks.n; ++i) {
      wv.a = weights_ + i * ops_.operand_bytes(kKeyBlock);
      wv.panel = value_panels_ + blocks.at[i] * value_panel_bytes_;
      ops_.multiply(wv);
    }
  }

  void finish(const Unit& unit) {
    for (uint32_t i = 0; i < unit.queries.n; ++i) {
      GiveRow(ops_, a_, size_t{unit.queries.first + i} * a_.n_group + unit.head,
              total_[unit.row + i], sums_ + (unit.row + i) * a_.d_head_v);
    }
  }

  const TileOps& ops_;
  const Attention& a_;
  const uint32_t key_end_;
  const size_t n_row_;  // of all units
  const size_t query_bytes_;
  const size_t value_panel_bytes_;
  const size_t weight_row_bytes_;
  std::vector<Unit> units_;
  float* const value_rows_;        // [kKeyBlock, d_head_v]
  float* const scores_;            // [n_row of a tile, kKeyStep]
  float* const sums_;              // [n_row_, d_head_v]
  float* const max_;               // [n_row_]
  float* const total_;             // [n_row_]
  float* const query_f32_;         // [d_head_k]
  std::byte* const queries_;       // [n_row_, d_head_k]
  std::byte* const key_panels_;    // [kStepBlocks][d_head_k, kKeyBlock]
  std::byte* const value_panels_;  // [kStepBlocks][kKeyBlock, d_head_v]
  std::byte* const weights_;       // [n_row of a tile, kKeyStep]
};

std::vector<KeyBlocks> Select(const TileOps& ops, const Attention& attention, float share,
                              AttentionScratch& scratch) {
  return Selector(ops, attention, scratch).run(share);
}

void AttendKeyBlocks(const TileOps& ops, const Attention& attention,
                     std::span<const KeyBlocks> keys, AttentionScratch& scratch) {
  BlockAttender(ops, attention, keys, scratch).run();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
HWY_EXPORT(Select);
HWY_EXPORT(AttendKeyBlocks);

std::vector<QueryBlock> query_blocks(std::span<const uint32_t> positions) {
  std::vector<QueryBlock> blocks;
  for (uint32_t i = 0; i < positions.size(); ++i) {
    if (i == 0 || positions[i] / kQueryBlock != positions[i - 1] / kQueryBlock) {
      blocks.push_back({i, 0});
    }
    ++blocks.back().n;
  }
  return blocks;
}

KeyBlocks choose_key_blocks(std::span<const float> mass, uint32_t diagonal, float share) {
  std::vector<uint32_t> order(mass.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto others = std::stable_partition(order.begin(), order.end(), [&](uint32_t block) {
    return block == 0 || block + 1 >= diagonal;
  });
  std::stable_sort(others, order.end(), [&](uint32_t a, uint32_t b) { return mass[a] > mass[b]; });
  const double all = std::accumulate(mass.begin(), mass.end(), 0.0);
  auto n_holding = [&](float wanted) {
    auto n = static_cast<uint32_t>(others - order.begin());
    double held = 0;
    for (uint32_t i = 0; i < n; ++i) held += mass[order[i]];
    while (n < order.size() && (wanted >= 1 || held < wanted * all)) held += mass[order[n++]];
    return n;
  };
  KeyBlocks keys;
  keys.n_heavy = n_holding(kCountedShare);
  keys.active.resize(mass.size());
  for (uint32_t i = n_holding(share); i-- > 0;) keys.active[order[i]] = 1;
  return keys;
}

std::vector<KeyBlocks> select_key_blocks(const TileOps& ops, const Attention& attention,
                                         float share, AttentionScratch& scratch) {
  HS_CHECK(attention.n_window == 0, "windows are attended to as a whole");
  return HWY_DYNAMIC_DISPATCH(Select)(ops, attention, share, scratch);
}

void attend_key_blocks(const TileOps& ops, const Attention& attention,
                       std::span<const KeyBlocks> keys, AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(AttendKeyBlocks)(ops, attention, keys, scratch);
}
}  // namespace headstart::kernels
#endif  // HWY_ONCE
