// qwen2: Qwen2, Qwen2.5; biases on Q, K and V; RoPE pairs are halves.
#include <ggml.h>

#include "model/arch.h"
#include "model/pre_norm_layer.h"

namespace headstart::model {
namespace {

class Qwen2Arch final : public Arch {
 public:
  std::string_view name() const override { return "qwen2"; }
  bool pre_norm_gated() const override { return true; }
  Result<void> read(const GgufFile&, ModelParams&) const override { return {}; }
  ggml_tensor* layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) const override {
    return pre_norm_layer(g, w, x);
  }
};

}  // namespace

const Arch& qwen2_arch() {
  static const Qwen2Arch arch;
  return arch;
}

}  // namespace headstart::model
