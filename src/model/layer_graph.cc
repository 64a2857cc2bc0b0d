#include "model/layer_graph.h"

#include <ggml.h>

namespace headstart::model {

ggml_tensor* LayerGraph::norm(ggml_tensor* x, ggml_tensor* weight) {
  return ggml_mul(ggml(), ggml_rms_norm(ggml(), x, params().norm_eps), weight);
}

ggml_tensor* LayerGraph::linear(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) {
  ggml_tensor* y = ggml_mul_mat(ggml(), weight, x);
  return bias == nullptr ? y : ggml_add(ggml(), y, bias);
}

ggml_tensor* LayerGraph::heads(ggml_tensor* x, uint32_t n_head, uint32_t d_head) {
  return ggml_reshape_3d(ggml(), x, d_head, n_head, x->ne[1]);
}

ggml_tensor* LayerGraph::add(ggml_tensor* a, ggml_tensor* b) { return ggml_add(ggml(), a, b); }

}  // namespace headstart::model
