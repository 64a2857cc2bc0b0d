#include "model/pre_norm_layer.h"

#include <ggml.h>

namespace headstart::model {

ggml_tensor* pre_norm_layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) {
  const ModelParams& p = g.params();
  ggml_tensor* h = g.norm(x, w.attn_norm);
  ggml_tensor* k = g.heads(g.linear(w.wk, w.bk, h), p.n_head_kv, p.d_head_k);
  ggml_tensor* v = g.heads(g.linear(w.wv, w.bv, h), p.n_head_kv, p.d_head_v);
  if (w.k_norm != nullptr) k = g.norm(k, w.k_norm);
  g.store_kv(k, v);
  if (g.kv_only()) return nullptr;

  x = g.wanted(x);
  ggml_tensor* q = g.heads(g.linear(w.wq, w.bq, g.wanted(h)), p.n_head, p.d_head_k);
  if (w.q_norm != nullptr) q = g.norm(q, w.q_norm);
  x = g.add(g.linear(w.wo, w.bo, g.attend(g.rotate(q), p.attention_scale)), x);

  h = g.norm(x, w.ffn_norm);
  ggml_tensor* f =
      ggml_swiglu_split(g.ggml(), g.linear(w.gate, nullptr, h), g.linear(w.up, nullptr, h));
  return g.add(g.linear(w.down, nullptr, f), x);
}

}  // namespace headstart::model
