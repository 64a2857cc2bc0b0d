// model/layer_graph.h: what an architecture's layer is written with.
//
// An architecture (model/arch_*.cc) says in which order norms, projections, attention and the
// feed-forward part follow; the executor (exec/ggml_executor.cc) says where K,V live, which rows
// are wanted and how attention is computed.
//
//   shapes   outermost first; ggml's ne is the reverse
//   threads  one graph is built by one thread
#pragma once

#include <cstdint>

#include "model/params.h"

struct ggml_context;
struct ggml_tensor;

namespace headstart::model {

class LayerGraph {
 public:
  virtual ~LayerGraph() = default;

  virtual ggml_context* ggml() const = 0;
  virtual const ModelParams& params() const = 0;
  virtual uint32_t layer() const = 0;

  // Rotates queries to their positions. q: [n_token, n_head, d_head] f32
  virtual ggml_tensor* rotate(ggml_tensor* q) = 0;
  // Rotates k, writes both into the live cache and into the capture buffer.
  // k, v: [n_token, n_head_kv, d_head] f32, k after bias and norm, before RoPE
  virtual void store_kv(ggml_tensor* k, ggml_tensor* v) = 0;
  // True where only this layer's K,V are needed: the architecture returns after store_kv.
  virtual bool kv_only() const = 0;
  // The rows that anything after this layer needs: the same tensor, or a view of the last row.
  virtual ggml_tensor* wanted(ggml_tensor* rows) = 0;
  // softmax(scale · q kᵀ + mask) v over the live cache -> [n_token, n_head * d_head] f32
  virtual ggml_tensor* attend(ggml_tensor* q, float scale) = 0;

  // Conveniences over the graph's context, the same for every executor.
  ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight);                       // RMS norm
  ggml_tensor* linear(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x);  // bias may be null
  ggml_tensor* heads(ggml_tensor* x, uint32_t n_head, uint32_t d_head);
  ggml_tensor* add(ggml_tensor* a, ggml_tensor* b);
};

}  // namespace headstart::model
