// kernels/tile.h: the product of a few rows with a packed panel, which GEMM and attention are made
// of.
//
// A panel holds a matrix B [k, n_col] so that the inner loop reads it once, in order: sub-panels of
// `n_col_sub` columns, each [k, n_col_sub] (the last may be narrower). Rows of A are operands: f32,
// or what the instruction set multiplies faster. Sums are f32. An element's bits depend
// on its own row of A and column of B alone, in ascending order of k: not on the number of rows,
// the other columns, or how k was cut.
//
//   shapes   outermost first
//   threads  pure
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/dequant_strip.h"

namespace headstart::kernels {

// c[i][j] = sum over k of a[i][k] * b[k][j]
struct TileProduct {
  const std::byte* a = nullptr;  // [m, k] operands
  size_t a_stride = 0;           // bytes
  size_t m = 0;
  const std::byte* panel = nullptr;  // [k_packed, n_col], 64-byte aligned
  size_t k_packed = 0;
  size_t k = 0;      // the first of k_packed
  size_t n_col = 0;  // a multiple of kColumnPad; of a panel's columns, the first 64, 128, …, or all
  float* c = nullptr;
  size_t c_stride = 0;             // floats
  const float* partial = nullptr;  // [m, n_col] sums of smaller k to go on from; null: none
  size_t partial_stride = 0;       // floats
  bool add = false;                // c += instead of c =
};

// Every instruction set's vector divides it.
inline constexpr size_t kColumnPad = 16;
// k of a panel is a multiple of this.
inline constexpr size_t kDepthPad = 2;

// A row of operands is blocks of n_value values in n_byte bytes.
struct OperandBlock {
  size_t n_value;
  size_t n_byte;
};

// What products with weights need.
struct PanelOps {
  const char* name;  // instruction set and operand type; part of numeric identity
  OperandBlock operand;
  size_t n_row;  // of A that one inner loop takes; m is best a multiple of it
  // n and every k are multiples of operand.n_value.
  void (*to_operand)(const float* in, size_t n, std::byte* out);
  size_t (*panel_bytes)(size_t k, size_t n_col);
  // Packs kStrip columns, given as rows of Bᵀ: the first k weights of each. The panel has n_col
  // columns; these are column_first and on.
  void (*pack_weights)(const StripRows& rows, size_t k, size_t column_first, size_t n_col,
                       std::byte* panel);
  void (*multiply)(const TileProduct& product);

  size_t operand_bytes(size_t n) const { return n / operand.n_value * operand.n_byte; }
};

// What attention needs: operands are single values.
struct TileOps : PanelOps {
  // Packs B itself: rows [k, n_col] f32.
  void (*pack)(const float* rows, size_t row_stride, size_t k, size_t n_col, std::byte* panel);
};

// The fastest that this CPU has and kernels/target.h allows.
const TileOps& tile_ops();
// All that this CPU has, and bf16 emulated, for tests. f32 is of the current Highway target.
std::vector<const TileOps*> all_tile_ops();

}  // namespace headstart::kernels
