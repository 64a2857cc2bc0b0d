// exec/native_weights.h: a model's matrices as our kernels take them.
//
//   threads  const after being made
#pragma once

#include <vector>

#include "base/result.h"
#include "kernels/attention.h"
#include "kernels/weight_matrix.h"
#include "kv/live_kv.h"
#include "model/model.h"

namespace headstart::exec {

struct NativeLayerWeights {
  kernels::WeightMatrix wq, wk, wv, wo, gate, up, down;  // shapes as in model::LayerWeights
};

struct NativeWeights {
  kernels::WeightMatrix token_embedding, output;
  std::vector<NativeLayerWeights> layers;  // [n_layer]
};

// Errors: kUnsupported, saying what of the model our kernels lack.
Result<NativeWeights> native_weights(const model::Model& model);

// Errors: kUnsupported, where products of these operands cannot take the model's weights.
Result<void> check_operands(const model::Model& model, const NativeWeights& weights,
                            const kernels::PanelOps& ops);

// The rows of one kv head in the live cache.
kernels::KvRows kv_rows(const kv::LiveKv& kv, uint32_t layer, kv::Part part, uint32_t head);

}  // namespace headstart::exec
