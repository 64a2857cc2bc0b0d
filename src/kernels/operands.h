// kernels/operands.h: which operands prefill multiplies, by name.
//
//   threads  any
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/tile.h"

namespace headstart::kernels {

struct PrefillOps {
  const TileOps* tile = nullptr;      // of attention
  const PanelOps* weights = nullptr;  // of products with weights
};

// auto: nulls, which leave the choice to whoever computes; f32; bf16; int8: products with weights
// alone, faster and less exact. Errors: kInvalidArgument (no such name), kUnsupported (this CPU
// lacks them, or kernels/target.h excludes them).
Result<PrefillOps> prefill_ops(std::string_view operands);

// Of those, all of this CPU and kernels/target.h whose products are exact but for rounding: what
// auto is chosen from.
std::vector<std::string> exact_operands();

}  // namespace headstart::kernels
