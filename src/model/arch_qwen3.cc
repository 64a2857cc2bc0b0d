// qwen3: as qwen2 without biases, with an RMS norm over each head of Q and K before RoPE.
#include <ggml.h>

#include "model/arch.h"
#include "model/pre_norm_layer.h"

namespace headstart::model {
namespace {

class Qwen3Arch final : public Arch {
 public:
  std::string_view name() const override { return "qwen3"; }
  bool pre_norm_gated() const override { return true; }
  Result<void> read(const GgufFile&, ModelParams&) const override { return {}; }
  std::vector<TensorSpec> layer_tensors(const ModelParams& params) const override {
    auto specs = Arch::layer_tensors(params);
    specs.push_back({"attn_q_norm.weight", &LayerWeights::q_norm, 0, params.d_head_k});
    specs.push_back({"attn_k_norm.weight", &LayerWeights::k_norm, 0, params.d_head_k});
    return specs;
  }
  ggml_tensor* layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) const override {
    return pre_norm_layer(g, w, x);
  }
};

}  // namespace

const Arch& qwen3_arch() {
  static const Qwen3Arch arch;
  return arch;
}

}  // namespace headstart::model
