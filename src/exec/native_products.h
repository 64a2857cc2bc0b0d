// exec/native_products.h: rows of a step times weights, and attention, in either numeric class.
//
// What differs between the classes is here: the form in which products take their rows, and the
// kernels. exec/native_executor.cc says in which order they follow.
//
//   shapes   outermost first; [n_token] rows are those of a step
//   threads  one owner; work is shared out over the pool
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "exec/compute_pool.h"
#include "exec/layer_executor.h"
#include "exec/native_weights.h"
#include "kernels/attention.h"
#include "kernels/decode_attention.h"
#include "kernels/gemm.h"
#include "kernels/layer_ops.h"
#include "kernels/matvec.h"
#include "kernels/operands.h"
#include "kernels/scratch.h"
#include "kernels/sparse_attention.h"

namespace headstart::exec {

// Rows in the form that a class's products take: f32 in decoding, else operands.
class ProductRows {
 public:
  void resize(size_t n_row, size_t n_value, size_t row_bytes);
  std::byte* row(size_t i) { return rows_.get(0) + i * row_bytes_; }
  const std::byte* row(size_t i) const { return data_ + i * row_bytes_; }
  const float* floats(size_t i) const { return reinterpret_cast<const float*>(row(i)); }
  float* floats(size_t i) { return reinterpret_cast<float*>(row(i)); }
  size_t row_bytes() const { return row_bytes_; }
  size_t n_value() const { return n_value_; }

 private:
  kernels::Scratch<std::byte> rows_;
  const std::byte* data_ = nullptr;
  size_t row_bytes_ = 0;
  size_t n_value_ = 0;
};

// out = x Wᵀ of some rows of a step, out [n_row, w->n_row]
struct Product {
  const kernels::WeightMatrix* w;
  float* out;
};

// Of the same rows: they are one job, so that threads wait once.
using Products = std::initializer_list<Product>;

// Of a step, the rows [first, end).
struct RowRange {
  uint32_t first;
  uint32_t end;
  uint32_t size() const { return end - first; }
};

class NativeProducts {
 public:
  // sparse_share: of the mass of prefill's attention where no window bounds it; 0: all of it.
  NativeProducts(const kernels::PrefillOps& prefill, uint32_t n_threads, float sparse_share);

  void set_class(NumericClass numeric_class) { class_ = numeric_class; }
  ComputePool& pool() { return pool_; }
  const kernels::TileOps& tile() const { return tile_; }
  size_t row_bytes(size_t n_value) const;  // of a row of ProductRows

  // out = in, as the class's products take it; n values.
  void to_input(const float* in, size_t n, std::byte* out) const;
  void multiply(const ProductRows& x, RowRange rows, Products products);
  // out = activation(x Gateᵀ) · (x Upᵀ)
  void multiply_gated(const ProductRows& x, RowRange rows, const NativeLayerWeights& w,
                      kernels::Activation activation, ProductRows& out);
  // Attention of q [n_token][n_head, d_head_k] over a layer of the live cache. `shape` has the
  // scalars of kernels::Attention and q of the step's first row.
  struct AttentionStep {
    kernels::Attention shape;
    std::span<const SequenceRows> sequences;
    uint32_t layer;
    std::span<const uint32_t> positions;  // [n_token]
    AttentionReport* report;              // may be null
  };
  void attend(const AttentionStep& step, RowRange rows, ProductRows& out);

 private:
  // A sequence's share of decode attention: items are its kv heads times its segments.
  struct DecodePart {
    const kv::LiveKv* kv;
    RowRange rows;
    kernels::SegmentRange segments;
    uint32_t item_first;
    size_t value_first;  // in segments_
    size_t n_value;      // of an item
    uint32_t n_segment() const { return segments.end - segments.first; }
  };
  void multiply_panels(const ProductRows& x, RowRange rows, Products products);
  void multiply_columns(Products products);
  static kernels::Attention of_head(const AttentionStep& step, const kv::LiveKv& kv, uint32_t head,
                                    RowRange rows);
  void attend_prefill(const AttentionStep& step, RowRange rows, ProductRows& out);
  void attend_sparse(const AttentionStep& step, RowRange rows, ProductRows& out);
  void attend_decode(const AttentionStep& step, RowRange rows, ProductRows& out);
  void join_heads(const AttentionStep& step, const DecodePart& part, ProductRows& out);

  struct ThreadScratch {
    kernels::GemmScratch gemm;
    kernels::AttentionScratch attention;
  };
  const kernels::TileOps& tile_;
  const kernels::PanelOps& panels_;
  const float sparse_share_;
  NumericClass class_ = NumericClass::kPrefill;
  ComputePool pool_;
  std::vector<ThreadScratch> scratch_;  // [n_thread]
  kernels::QuantizedColumns columns_;
  kernels::Scratch<float> gate_, up_;  // [n_token, n_ff] of decoding
  kernels::Scratch<float> segments_;   // of decode attention
  std::vector<DecodePart> decode_parts_;
};

}  // namespace headstart::exec
