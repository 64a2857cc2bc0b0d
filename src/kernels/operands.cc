#include "kernels/operands.h"

#include <string>

#include "kernels/tile_f32.h"
#include "kernels/tile_int8.h"

namespace headstart::kernels {

Result<PrefillOps> prefill_ops(std::string_view operands) {
  if (operands == "auto") return PrefillOps{};
  PrefillOps ops{&tile_ops(), nullptr};
  if (operands == "f32") {
    ops.weights = ops.tile = &tile_ops_f32();
  } else if (operands == "bf16") {
    if (ops.tile != &tile_ops_f32()) ops.weights = ops.tile;
  } else if (operands == "int8") {
    ops.weights = panel_ops_int8();
  } else {
    return Error{Code::kInvalidArgument, "--operands: there are none named '" +
                                             std::string(operands) +
                                             "'; use auto, f32, bf16 or int8"};
  }
  if (ops.weights != nullptr) return ops;
  return Error{Code::kUnsupported, "this CPU, or what --cpu allows of it, has no products of " +
                                       std::string(operands) + " operands; use --operands auto"};
}

std::vector<std::string> exact_operands() {
  std::vector<std::string> names{"f32"};
  if (&tile_ops() != &tile_ops_f32()) names.push_back("bf16");
  return names;
}

}  // namespace headstart::kernels
