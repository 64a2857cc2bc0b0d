// llama: SmolLM2, Llama 2 and 3 (rope frequency factors), Mistral; interleaved RoPE pairs.
#include <ggml.h>

#include "model/arch.h"
#include "model/pre_norm_layer.h"

namespace headstart::model {
namespace {

class LlamaArch final : public Arch {
 public:
  std::string_view name() const override { return "llama"; }
  bool pre_norm_gated() const override { return true; }
  Result<void> read(const GgufFile&, ModelParams& params) const override {
    params.rope.pairs = kernels::RopePairs::kInterleaved;
    params.rope_windowed.pairs = kernels::RopePairs::kInterleaved;
    return {};
  }
  ggml_tensor* layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) const override {
    return pre_norm_layer(g, w, x);
  }
};

}  // namespace

const Arch& llama_arch() {
  static const LlamaArch arch;
  return arch;
}

}  // namespace headstart::model
