#include "exec/native_products.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/clock.h"
#include "base/rounding.h"

namespace headstart::exec {
namespace {

// Rows (query, head) that attention takes against each key step: enough that packing the step's
// K,V is small beside multiplying with them.
constexpr uint32_t kAttentionRows = 768;
// Matrix rows of a decode product that one item takes at least.
constexpr uint32_t kMatvecRows = 16;
// Items for each thread, so that none waits long for another.
constexpr uint32_t kItemsPerThread = 4;

}  // namespace

void ProductRows::resize(size_t n_row, size_t n_value, size_t row_bytes) {
  n_value_ = n_value;
  row_bytes_ = row_bytes;
  data_ = rows_.get(n_row * row_bytes_);
}

NativeProducts::NativeProducts(const kernels::PrefillOps& prefill, uint32_t n_threads,
                               float sparse_share)
    : tile_(*prefill.tile),
      panels_(*prefill.weights),
      sparse_share_(sparse_share),
      pool_(n_threads),
      scratch_(n_threads) {}

size_t NativeProducts::row_bytes(size_t n_value) const {
  return class_ == NumericClass::kDecode ? n_value * sizeof(float) : panels_.operand_bytes(n_value);
}

void NativeProducts::to_input(const float* in, size_t n, std::byte* out) const {
  if (class_ == NumericClass::kDecode) {
    std::memcpy(out, in, n * sizeof(float));
  } else {
    panels_.to_operand(in, n, out);
  }
}

void NativeProducts::multiply(const ProductRows& x, RowRange rows, Products products) {
  if (class_ == NumericClass::kPrefill) return multiply_panels(x, rows, products);
  kernels::quantize_columns(x.floats(rows.first), x.n_value(), rows.size(), x.n_value(), columns_);
  multiply_columns(products);
}

void NativeProducts::multiply_panels(const ProductRows& x, RowRange rows, Products products) {
  auto gemm = [&](const Product& product) {
    kernels::Gemm g;
    g.x = x.row(rows.first);
    g.x_stride = x.row_bytes();
    g.m = rows.size();
    g.w = *product.w;
    g.out_stride = g.w.n_row;
    g.out = product.out;
    return g;
  };
  uint32_t n_panel = 0;
  for (const Product& product : products) n_panel += kernels::n_panel(gemm(product));
  pool_.run(n_panel, [&](uint32_t item, uint32_t thread) {
    for (const Product& product : products) {
      const kernels::Gemm g = gemm(product);
      if (item < kernels::n_panel(g)) {
        kernels::multiply_panel(panels_, g, item, scratch_[thread].gemm);
        return;
      }
      item -= kernels::n_panel(g);
    }
  });
}

// The rows of the matrices, one after the other, are shared out.
void NativeProducts::multiply_columns(Products products) {
  uint32_t n_row = 0;
  for (const Product& product : products) n_row += product.w->n_row;
  const uint32_t n_item_most = pool_.n_thread() == 1 ? 1 : pool_.n_thread() * kItemsPerThread;
  const uint32_t n_item = std::clamp(n_row / kMatvecRows, 1u, n_item_most);
  pool_.run(n_item, [&](uint32_t item, uint32_t) {
    auto begin = static_cast<uint32_t>(uint64_t{n_row} * item / n_item);
    auto end = static_cast<uint32_t>(uint64_t{n_row} * (item + 1) / n_item);
    for (const Product& product : products) {
      const kernels::WeightMatrix& w = *product.w;
      if (begin < w.n_row) {
        kernels::matvec(w, begin, std::min(end, w.n_row), columns_, product.out, w.n_row);
      }
      if (end <= w.n_row) return;
      begin = begin > w.n_row ? begin - w.n_row : 0;
      end -= w.n_row;
    }
  });
}

void NativeProducts::multiply_gated(const ProductRows& x, RowRange rows,
                                    const NativeLayerWeights& w, kernels::Activation activation,
                                    ProductRows& out) {
  if (class_ == NumericClass::kPrefill) {
    kernels::GatedGemm g;
    g.x = x.row(rows.first);
    g.x_stride = x.row_bytes();
    g.m = rows.size();
    g.gate = w.gate;
    g.up = w.up;
    g.activation = activation;
    g.out = out.row(rows.first);
    g.out_stride = out.row_bytes();
    pool_.run(kernels::n_panel(g), [&](uint32_t item, uint32_t thread) {
      kernels::multiply_panel(panels_, g, item, scratch_[thread].gemm);
    });
    return;
  }
  const size_t n_ff = w.gate.n_row;
  float* const gate = gate_.get(rows.size() * n_ff);
  float* const up = up_.get(rows.size() * n_ff);
  multiply(x, rows, {{&w.gate, gate}, {&w.up, up}});
  for (uint32_t i = 0; i < rows.size(); ++i) {
    kernels::gate(activation, gate + i * n_ff, up + i * n_ff, n_ff, out.floats(rows.first + i));
  }
}

void NativeProducts::attend(const AttentionStep& step, RowRange rows, ProductRows& out) {
  if (class_ == NumericClass::kDecode) return attend_decode(step, rows, out);
  const double begin_s = process_cpu_s();
  if (sparse_share_ > 0 && step.shape.n_window == 0) {
    attend_sparse(step, rows, out);
  } else {
    attend_prefill(step, rows, out);
  }
  if (step.report != nullptr) step.report->cpu_s += process_cpu_s() - begin_s;
}

// The queries of one kv head's group.
kernels::Attention NativeProducts::of_head(const AttentionStep& step, const kv::LiveKv& kv,
                                           uint32_t head, RowRange rows) {
  kernels::Attention a = step.shape;
  a.positions = step.positions.subspan(rows.first, rows.size());
  a.k = kv_rows(kv, step.layer, kv::Part::kKey, head);
  a.v = kv_rows(kv, step.layer, kv::Part::kValue, head);
  a.q += rows.first * a.q_stride + size_t{head} * a.n_group * a.d_head_k;
  return a;
}

// An item is one kv head and a block of queries. The last queries see the most keys: they go first,
// so that no thread ends late.
void NativeProducts::attend_prefill(const AttentionStep& step, RowRange rows, ProductRows& out) {
  const kv::LiveKv& kv = *step.sequences.front().kv;
  const uint32_t n_head_kv = kv.shape().n_head_kv;
  const uint32_t block = std::clamp(kAttentionRows / step.shape.n_group, 1u, rows.size());
  const uint32_t n_block = ceil_div(rows.size(), block);
  pool_.run(n_block * n_head_kv, [&](uint32_t item, uint32_t thread) {
    const uint32_t head = item % n_head_kv;
    const uint32_t begin = rows.first + (n_block - 1 - item / n_head_kv) * block;
    kernels::Attention a = of_head(step, kv, head, {begin, std::min(begin + block, rows.end)});
    a.out_stride = out.row_bytes();
    a.out_ops = &panels_;
    a.out = out.row(begin) + row_bytes(size_t{head} * a.n_group * a.d_head_v);
    kernels::attend(tile_, a, scratch_[thread].attention);
  });
}

// As attend_prefill(), in whole query blocks.
void NativeProducts::attend_sparse(const AttentionStep& step, RowRange rows, ProductRows& out) {
  const kv::LiveKv& kv = *step.sequences.front().kv;
  const uint32_t n_head_kv = kv.shape().n_head_kv, n_group = step.shape.n_group;
  const auto blocks = kernels::query_blocks(step.positions.subspan(rows.first, rows.size()));
  const auto n_block = static_cast<uint32_t>(blocks.size());
  const uint32_t n_together = std::max(1u, kAttentionRows / (kernels::kQueryBlock * n_group));
  const uint32_t n_item = ceil_div(n_block, n_together);
  std::vector<AttentionActivity> activity(size_t{n_block} * n_head_kv * n_group);
  pool_.run(n_item * n_head_kv, [&](uint32_t item, uint32_t thread) {
    const uint32_t head = item % n_head_kv;
    const uint32_t block = (n_item - 1 - item / n_head_kv) * n_together;
    const uint32_t block_end = std::min(block + n_together, n_block);
    const uint32_t begin = rows.first + blocks[block].first;
    const uint32_t end = rows.first + blocks[block_end - 1].first + blocks[block_end - 1].n;
    kernels::Attention a = of_head(step, kv, head, {begin, end});
    a.out_stride = out.row_bytes();
    a.out_ops = &panels_;
    a.out = out.row(begin) + row_bytes(size_t{head} * n_group * a.d_head_v);
    const auto keys =
        kernels::select_key_blocks(tile_, a, sparse_share_, scratch_[thread].attention);
    kernels::attend_key_blocks(tile_, a, keys, scratch_[thread].attention);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto query_head = static_cast<uint32_t>(head * n_group + i % n_group);
      const size_t b = block + i / n_group;
      activity[b * n_head_kv * n_group + query_head] = {
          step.layer, query_head,
          step.positions[rows.first + blocks[b].first] / kernels::kQueryBlock, keys[i].n_heavy,
          static_cast<uint32_t>(keys[i].active.size())};
    }
  });
  if (step.report == nullptr) return;
  step.report->activity.insert(step.report->activity.end(), activity.begin(), activity.end());
}

// An item is one kv head of a sequence and a segment of its keys.
void NativeProducts::attend_decode(const AttentionStep& step, RowRange rows, ProductRows& out) {
  const uint32_t n_head_kv = step.sequences.front().kv->shape().n_head_kv;
  decode_parts_.clear();
  uint32_t n_item = 0, row = 0;
  size_t n_value = 0;
  for (const SequenceRows& sequence : step.sequences) {
    const RowRange own{std::max(row, rows.first), std::min(row + sequence.n_token, rows.end)};
    row += sequence.n_token;
    if (own.first >= own.end) continue;
    const kernels::Attention head = of_head(step, *sequence.kv, 0, own);
    decode_parts_.push_back({sequence.kv, own, kernels::segments(head), n_item, n_value,
                             kernels::segment_values(head)});
    const uint32_t n = n_head_kv * decode_parts_.back().n_segment();
    n_item += n;
    n_value += n * decode_parts_.back().n_value;
  }
  float* const values = segments_.get(n_value);
  pool_.run(n_item, [&](uint32_t item, uint32_t thread) {
    const auto part =
        std::prev(std::ranges::upper_bound(decode_parts_, item, {}, &DecodePart::item_first));
    const uint32_t i = item - part->item_first;
    kernels::attend_segment(of_head(step, *part->kv, i / part->n_segment(), part->rows),
                            part->segments.first + i % part->n_segment(),
                            values + part->value_first + i * part->n_value,
                            scratch_[thread].attention);
  });
  for (const DecodePart& part : decode_parts_) join_heads(step, part, out);
}

void NativeProducts::join_heads(const AttentionStep& step, const DecodePart& part,
                                ProductRows& out) {
  const kernels::Attention a = of_head(step, *part.kv, 0, part.rows);
  const size_t n_value = part.n_segment() * part.n_value;
  for (uint32_t head = 0; head < part.kv->shape().n_head_kv; ++head) {
    kernels::join_segments(
        a, part.n_segment(), segments_.get(0) + part.value_first + head * n_value,
        out.floats(part.rows.first) + size_t{head} * a.n_group * a.d_head_v, out.n_value());
  }
}

}  // namespace headstart::exec
