// exec/ggml_graph.h: builds the ggml graph of one LayerStep.
//
// The graph's inputs (tokens or hidden rows, positions, masks) are filled by set_inputs() once the
// graph is allocated; K,V go straight to the live cache through a custom operation, because one
// function must rotate K in computing and in loading (kernels/rope.h).
//
//   shapes   outermost first; ggml's ne is the reverse
#pragma once

#include <ggml.h>

#include <array>
#include <deque>
#include <vector>

#include "exec/layer_executor.h"
#include "exec/rope_tables.h"
#include "model/model.h"

struct ggml_backend_buffer;

namespace headstart::exec {

// Rows that prefill attention is padded to: from here on ggml takes its tiled path, whose rows do
// not depend on each other.
inline constexpr uint32_t kAttentionRowsMin = 64;
// Tokens that a prefill batch is padded to a multiple of: repacked matrices group rows by four,
// plain K-quants take another path below eight.
inline constexpr uint32_t kTokenPad = 8;
// Keys that an attention view starts and ends at a multiple of; libllama's padding.
inline constexpr uint32_t kKeyPad = 256;

class GgmlGraph final : public model::LayerGraph {
 public:
  // `kv_buffer` wraps the step's live cache. `ctx` has room for graph_nodes() nodes. The step must
  // live until the graph has been computed, or bind() has given it another.
  GgmlGraph(ggml_context* ctx, const model::Model& model, const RopeTables& tables,
            const LayerStep& step, ggml_backend_buffer* kv_buffer, bool reference_numerics);

  static size_t graph_nodes(uint32_t n_layer) { return size_t{n_layer} * 64 + 64; }

  ggml_cgraph* build();
  ggml_cgraph* nodes() const { return graph_; }
  // Whether the same nodes compute this step too: decoding builds a graph once in 256 tokens.
  bool fits(const LayerStep& step) const;
  void bind(const LayerStep& step) { step_ = &step; }      // one that fits
  void set_inputs();                                       // after allocation
  ggml_tensor* logits() const { return logits_; }          // [n_wanted, n_vocab] or null
  ggml_tensor* hidden_out() const { return hidden_out_; }  // [n_padded, d_model] or null

  ggml_context* ggml() const override { return ctx_; }
  const model::ModelParams& params() const override { return model_.params(); }
  uint32_t layer() const override { return layer_; }
  ggml_tensor* rotate(ggml_tensor* q) override;
  void store_kv(ggml_tensor* k, ggml_tensor* v) override;
  bool kv_only() const override;
  ggml_tensor* wanted(ggml_tensor* rows) override;
  ggml_tensor* attend(ggml_tensor* q, float scale) override;

 private:
  struct StoreOp {
    const GgmlGraph* graph;
    uint32_t layer;
  };
  // What the nodes depend on, besides model and executor.
  struct Shape {
    uint32_t layer_first, layer_end, n_token, n_key_end, key_first_windowed;
    NumericClass numeric_class;
    WantLogits want_logits;
    bool hidden;
    const std::byte* kv;  // where the live cache lies, and what its rows are
    kv::LiveType type_k, type_v;
    uint32_t n_ctx;
    bool operator==(const Shape&) const = default;
  };
  Shape shape_of(const LayerStep& step) const;
  struct Mask {
    ggml_tensor* tensor = nullptr;  // [n_row, n_key] f16
    bool windowed = false;
    bool last_only = false;
    uint32_t n_repeat = 1;  // rows of a query that follow each other: one, or one for each head
    uint32_t key_first = 0;
  };
  static void store_rows(ggml_tensor* dst, int ith, int nth, void* op);
  uint32_t n_token() const { return shape_.n_token; }
  bool last_row_only() const;
  ggml_tensor* rope(ggml_tensor* x, ggml_tensor* positions);
  ggml_tensor* new_input(ggml_type type, int64_t n_inner, int64_t n_outer);
  const Mask& mask(bool windowed, uint32_t n_row, uint32_t n_repeat);
  ggml_tensor* heads_to_rows(ggml_tensor* q);
  ggml_tensor* rows_to_heads(ggml_tensor* out, int64_t n_query);
  void fill_mask(const Mask& mask) const;
  void build_output(ggml_tensor* x);

  ggml_context* ctx_;
  const model::Model& model_;
  const RopeTables& tables_;
  const LayerStep* step_;
  ggml_backend_buffer* kv_buffer_;
  const bool reference_numerics_;
  const Shape shape_;
  const uint32_t n_padded_;  // tokens, with padding
  uint32_t layer_ = 0;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* tokens_ = nullptr;
  ggml_tensor* hidden_in_ = nullptr;
  ggml_tensor* positions_ = nullptr;
  ggml_tensor* last_position_ = nullptr;
  std::array<ggml_tensor*, 2> freq_factors_{};  // of full and windowed layers
  std::vector<Mask> masks_;
  std::deque<StoreOp> store_ops_;
  ggml_tensor* logits_ = nullptr;
  ggml_tensor* hidden_out_ = nullptr;
};

}  // namespace headstart::exec
