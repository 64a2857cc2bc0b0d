// gemma3 (text): sliding windows on most layers with their own rope base, head norms on Q and K,
// norms before and after attention and feed-forward, GELU, scaled embeddings.
#include <ggml.h>

#include <cmath>

#include "model/arch.h"

namespace headstart::model {
namespace {

constexpr uint32_t kLayers27B = 62;
constexpr uint32_t kWindowMax = 1u << 24;
constexpr uint32_t kPatternDefault = 6;  // every sixth layer sees everything

class Gemma3Arch final : public Arch {
 public:
  std::string_view name() const override { return "gemma3"; }
  bool pre_norm_gated() const override { return true; }

  Result<void> read(const GgufFile& gguf, ModelParams& p) const override {
    p.activation = kernels::Activation::kGeluTanh;
    p.embedding_scale = std::sqrt(static_cast<float>(p.d_model));
    if (p.n_layer == kLayers27B) {
      p.attention_scale = 1.0f / std::sqrt(static_cast<float>(p.d_model / p.n_head));
    }
    HS_ASSIGN_OR_RETURN(const auto softcap, gguf.f32("gemma3.final_logit_softcapping"));
    p.logit_softcap = softcap.value_or(0.0f);
    HS_ASSIGN_OR_RETURN(const auto window, gguf.u32("gemma3.attention.sliding_window"));
    p.n_window = window.value_or(0);
    if (p.n_window == 0) return {};
    if (p.n_window > kWindowMax) {
      return Error{Code::kCorrupt, gguf.path().string() + ": the sliding window is out of range"};
    }

    HS_ASSIGN_OR_RETURN(const auto base, gguf.f32("gemma3.rope.freq_base_swa"));
    // Windowed layers are not scaled: their positions never exceed the window by much.
    p.rope_windowed.freq_base = base.value_or(10000.0f);
    p.rope_windowed.freq_scale = 1.0f;
    return read_pattern(gguf, p);
  }

  std::vector<TensorSpec> layer_tensors(const ModelParams& p) const override {
    using W = LayerWeights;
    auto specs = Arch::layer_tensors(p);
    specs.push_back({"attn_q_norm.weight", &W::q_norm, 0, p.d_head_k});
    specs.push_back({"attn_k_norm.weight", &W::k_norm, 0, p.d_head_k});
    specs.push_back({"post_attention_norm.weight", &W::attn_post_norm, 0, p.d_model});
    specs.push_back({"post_ffw_norm.weight", &W::ffn_post_norm, 0, p.d_model});
    return specs;
  }

  ggml_tensor* layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) const override {
    const ModelParams& p = g.params();
    ggml_tensor* h = g.norm(x, w.attn_norm);
    ggml_tensor* k = g.heads(g.linear(w.wk, w.bk, h), p.n_head_kv, p.d_head_k);
    ggml_tensor* v = g.heads(g.linear(w.wv, w.bv, h), p.n_head_kv, p.d_head_v);
    g.store_kv(g.norm(k, w.k_norm), v);
    if (g.kv_only()) return nullptr;

    x = g.wanted(x);
    ggml_tensor* q = g.heads(g.linear(w.wq, w.bq, g.wanted(h)), p.n_head, p.d_head_k);
    // Q is scaled before attention, as in the reference, so that rounding falls alike.
    q = ggml_scale(g.ggml(), g.rotate(g.norm(q, w.q_norm)), p.attention_scale);
    ggml_tensor* a = g.linear(w.wo, w.bo, g.attend(q, 1.0f));
    x = g.add(g.norm(a, w.attn_post_norm), x);

    h = g.norm(x, w.ffn_norm);
    ggml_tensor* f =
        ggml_geglu_split(g.ggml(), g.linear(w.gate, nullptr, h), g.linear(w.up, nullptr, h));
    return g.add(g.norm(g.linear(w.down, nullptr, f), w.ffn_post_norm), x);
  }

 private:
  static Result<void> read_pattern(const GgufFile& gguf, ModelParams& p) {
    const std::string key = "gemma3.attention.sliding_window_pattern";
    uint32_t pattern = kPatternDefault;
    if (auto flags = gguf.flags(key); flags.ok() && *flags) {
      if ((*flags)->size() != p.n_layer) {
        return Error{Code::kCorrupt,
                     gguf.path().string() + ": " + key + " has not one flag a layer"};
      }
      p.windowed = **flags;
      return {};
    } else if (auto number = gguf.u32(key); number.ok() && *number) {
      pattern = **number;
    } else if (!flags.ok() && !number.ok()) {
      return flags.error();
    }
    for (uint32_t il = 0; il < p.n_layer; ++il) {
      p.windowed[il] = pattern == 0 || il % pattern < pattern - 1;
    }
    return {};
  }
};

}  // namespace

const Arch& gemma3_arch() {
  static const Gemma3Arch arch;
  return arch;
}

}  // namespace headstart::model
