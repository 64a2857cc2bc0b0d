#include "exec/native_weights.h"

#include <ggml.h>

namespace headstart::exec {
namespace {

constexpr const char* kOtherOperands = "which int8 operands do not take; use --operands auto";

Error unsupported(const model::Model& model, const std::string& what,
                  const char* why = "which the native kernels lack") {
  return {Code::kUnsupported, model.path().filename().string() + " " + what + ", " + why};
}

Result<void> check_shape(const model::Model& model) {
  const model::ModelParams& p = model.params();
  if (!model.arch().pre_norm_gated()) {
    return unsupported(model, "has the layer of " + p.architecture);
  }
  if (p.d_head_k % kernels::kColumnPad != 0 || p.d_head_v % kernels::kColumnPad != 0) {
    return unsupported(
        model, "has heads of " + std::to_string(p.d_head_k) + " and " + std::to_string(p.d_head_v));
  }
  if (p.d_model % kernels::kDepthPad != 0 || p.n_ff % kernels::kDepthPad != 0) {
    return unsupported(model, "has rows of an odd length");
  }
  return {};
}

}  // namespace

Result<NativeWeights> native_weights(const model::Model& model) {
  HS_RETURN_IF_ERROR(check_shape(model));
  const char* missing = nullptr;  // the type that our kernels lack
  auto matrix = [&](const ggml_tensor* t) {
    const auto m = model.matrix(t);
    if (!m) missing = ggml_type_name(t->type);
    return m.value_or(kernels::WeightMatrix{});
  };
  NativeWeights weights;
  weights.token_embedding = matrix(model.token_embedding());
  weights.output = matrix(model.output());
  for (uint32_t il = 0; il < model.params().n_layer; ++il) {
    const model::LayerWeights& w = model.layer(il);
    weights.layers.push_back({matrix(w.wq), matrix(w.wk), matrix(w.wv), matrix(w.wo),
                              matrix(w.gate), matrix(w.up), matrix(w.down)});
  }
  if (missing != nullptr) return unsupported(model, std::string("has weights of ") + missing);
  return weights;
}

Result<void> check_operands(const model::Model& model, const NativeWeights& weights,
                            const kernels::PanelOps& ops) {
  const size_t block = ops.operand.n_value;
  if (block == 1) return {};
  std::vector<kernels::WeightMatrix> all{weights.output};
  for (const NativeLayerWeights& w : weights.layers) {
    all.insert(all.end(), {w.wq, w.wk, w.wv, w.wo, w.gate, w.up, w.down});
  }
  for (const kernels::WeightMatrix& w : all) {
    if (!kernels::has_levels(w.type)) {
      return unsupported(model, std::string("has unquantised weights"), kOtherOperands);
    }
  }
  const uint32_t d_head = model.params().d_head_v;
  if (d_head % block != 0) {
    return unsupported(model, "has heads of " + std::to_string(d_head), kOtherOperands);
  }
  return {};
}

kernels::KvRows kv_rows(const kv::LiveKv& kv, uint32_t layer, kv::Part part, uint32_t head) {
  const auto type =
      kv.type(part) == kv::LiveType::kF16 ? kernels::WeightType::kF16 : kernels::WeightType::kQ8_0;
  const uint32_t d_head = part == kv::Part::kKey ? kv.shape().d_head_k : kv.shape().d_head_v;
  return {type, kv.row(layer, part, 0) + head * kernels::row_bytes(type, d_head),
          kv.row_bytes(part)};
}

}  // namespace headstart::exec
