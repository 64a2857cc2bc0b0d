// model/params.h: the numbers of a model that its GGUF states.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/layer_ops.h"
#include "kernels/rope.h"

namespace headstart::model {

struct ModelParams {
  std::string architecture;
  std::string name;  // general.name, else the file's stem
  uint32_t n_layer = 0;
  uint32_t d_model = 0;
  uint32_t n_head = 0;
  uint32_t n_head_kv = 0;
  uint32_t d_head_k = 0;
  uint32_t d_head_v = 0;
  uint32_t n_ff = 0;
  uint32_t n_vocab = 0;
  uint32_t n_ctx_train = 0;
  float norm_eps = 1e-5f;
  float attention_scale = 0;     // of q · k
  float embedding_scale = 1.0f;  // of the token embeddings
  float logit_softcap = 0;       // 0: none
  kernels::Activation activation = kernels::Activation::kSilu;
  kernels::RopeConfig rope;           // layers that see everything
  kernels::RopeConfig rope_windowed;  // layers with a sliding window
  uint32_t n_window = 0;       // a windowed layer sees its own and n_window - 1 tokens before
  std::vector<bool> windowed;  // [n_layer]

  const kernels::RopeConfig& rope_of(uint32_t layer) const {
    return windowed[layer] ? rope_windowed : rope;
  }
};

}  // namespace headstart::model
