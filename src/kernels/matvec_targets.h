// kernels/matvec_targets.h: what the instruction sets of matvec share; not for others.
//
// The result for a row and a column, in f32:
//   for each block b of 32 values, ascending, with a = acc[b % 8]:
//     one scale (w = d * q + m):    a = fma(dot, d * x.d, a);  a = fma(m, x.sum, a) if there is m
//     a scale for each half:        a = fma(dot0, d0 * x.d, a); a = fma(dot1, d1 * x.d, a);
//                                   then the same with m0, m1 and x.d * (integer sum of the half)
//   result = ((a0+a4) + (a2+a6)) + ((a1+a5) + (a3+a7))
// d and m of the K types are products that f32 holds exactly; dots are integers below 2^24.
// Rows of f32, f16, bf16: acc[i % 16] = fma(w, x, acc[i % 16]); acc[i] + acc[i + 8]; the tree
// above.
//
// A target's file is compiled for its instruction set (CMakeLists.txt). Inline functions of headers
// stay out of these files: the linker could keep the copy that only this instruction set runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/column_scale.h"
#include "kernels/matvec.h"

namespace headstart::kernels {

constexpr size_t kBlock = 32;       // values that share a scale of the column
constexpr size_t kGroupBlocks = 8;  // as many as there are accumulators
constexpr size_t kGroup = kBlock * kGroupBlocks;

// Eight blocks of a column; what lies beyond its end is zero.
struct alignas(64) ColumnGroup {
  int8_t q[kGroup];         // in the target's order
  float d[kGroupBlocks];    // value = d * q
  float sum[kGroupBlocks];  // d * the integer sum of the block
  int32_t int_sum[kGroupBlocks];
  int32_t half_sum[2][kGroupBlocks];  // of values 0..15 and 16..31 of each block
};

enum class ValueOrder : uint8_t {
  kPlain,        // q[8 blocks][32]
  kInterleaved,  // q[8 fours][8 blocks][4]: one vector lane holds one block
};

// The columns of one call. Beyond n_col the last one is repeated, so that a kernel may compute more
// columns than it stores.
struct ColumnsView {
  uint32_t n_col;
  const ColumnGroup* groups[kMaxColumns];
  const float* floats[kMaxColumns];
};

struct MatvecTarget {
  const char* name;
  ValueOrder order;
  void (*quantize)(const float* x, size_t n_value, ColumnGroup* out);
  void (*matvec)(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const ColumnsView& x,
                 float* y, size_t y_stride);
};

// f.operator()<Format>() for the type's format; Formats in the order of WeightType. Static, so that
// each file keeps its own copy.
template <class... Formats, class F>
static void with_format(WeightType type, const F& f) {
  static_assert(sizeof...(Formats) == kWeightTypes);
  size_t i = 0;
  ((static_cast<size_t>(type) == i++ ? f.template operator()<Formats>() : void()), ...);
}

// Null where the CPU cannot run it.
const MatvecTarget* avx512vnni_target();
const MatvecTarget* avx2_target();
const MatvecTarget* neon_dotprod_target();
const MatvecTarget* neon_target();
const MatvecTarget* portable_target();

void quantize_avx2(const float* x, size_t n_value, ColumnGroup* out);

}  // namespace headstart::kernels
