// kernels/gemm.h: rows of activations times the GGUF's own weights.
//
// Some rows of the weights become one panel, which stays in the cache while all rows of activations
// use it: a weight is read and dequantised once a call, and no second copy of the weights exists.
// A call is cut into panels that any threads may compute in any order.
//
//   shapes   outermost first
//   threads  pure; a scratch belongs to one thread
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layer_ops.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"
#include "kernels/weight_matrix.h"

namespace headstart::kernels {

// Of a panel; fewer where a matrix gives too few panels for the threads. A multiple of 2 · kStrip.
inline constexpr uint32_t kPanelColumns = 128;

// out = x Wᵀ
struct Gemm {
  const std::byte* x = nullptr;  // [m, n_col] operands
  size_t x_stride = 0;           // bytes
  uint32_t m = 0;
  WeightMatrix w;
  float* out = nullptr;   // [m, w.n_row]
  size_t out_stride = 0;  // floats
  bool add = false;       // out += instead of out =
  uint32_t panel_columns = kPanelColumns;
};

// out = activation(x Gᵀ) · (x Uᵀ), as operands for the next product
struct GatedGemm {
  const std::byte* x = nullptr;  // [m, n_col] operands
  size_t x_stride = 0;           // bytes
  uint32_t m = 0;
  WeightMatrix gate;
  WeightMatrix up;  // of gate's shape
  Activation activation = Activation::kSilu;
  std::byte* out = nullptr;                // [m, gate.n_row] operands
  size_t out_stride = 0;                   // bytes
  uint32_t panel_columns = kPanelColumns;  // half of them gate's, half up's
};

struct GemmScratch {
  Scratch<float> sums;
  Scratch<std::byte> panel;
};

uint32_t n_panel(const Gemm& gemm);
uint32_t n_panel(const GatedGemm& gemm);
void multiply_panel(const PanelOps& ops, const Gemm& gemm, uint32_t panel, GemmScratch& scratch);
void multiply_panel(const PanelOps& ops, const GatedGemm& gemm, uint32_t panel,
                    GemmScratch& scratch);

}  // namespace headstart::kernels
