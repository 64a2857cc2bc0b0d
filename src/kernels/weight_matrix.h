// kernels/weight_matrix.h: a matrix as the GGUF has it, mapped, of any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dequant.h"

namespace headstart::kernels {

struct WeightMatrix {
  WeightType type = WeightType::kF32;
  const std::byte* data = nullptr;  // [n_row, n_col]
  size_t row_bytes = 0;             // from a row to the next
  uint32_t n_row = 0;
  uint32_t n_col = 0;  // a multiple of the type's block
};

}  // namespace headstart::kernels
