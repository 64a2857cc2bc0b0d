// model/pre_norm_layer.h: the layer that llama, qwen2 and qwen3 share.
//
// x += attention(norm(x)); x += swiglu(norm(x)). Biases and head norms apply where the weights have
// them.
#pragma once

#include "model/arch.h"

namespace headstart::model {

ggml_tensor* pre_norm_layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x);

}  // namespace headstart::model
