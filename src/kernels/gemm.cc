#include "kernels/gemm.h"

#include <algorithm>

namespace headstart::kernels {
namespace {

constexpr uint32_t kPanelColumns = 64;
constexpr uint32_t kGatedColumns = kPanelColumns / 2;
// Of k, so that a panel leaves room in a level-2 cache of 512 KiB; a multiple of every block.
constexpr uint32_t kDepth = 1024;
// Rows of a strip lie apart by no power of two: they would share the cache's sets.
constexpr size_t kStripPad = 16;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Packs columns [column, column + n) of a panel from the weight rows [row_first, …), of which
// those that exist are read, and k in [k_first, k_first + k).
struct PanelPart {
  const WeightMatrix* w;
  uint32_t row_first;
  uint32_t column;
  uint32_t n;
};

void pack(const TileOps& ops, const PanelPart& part, uint32_t k_first, uint32_t k,
          GemmScratch& scratch, std::byte* panel) {
  const WeightMatrix& w = *part.w;
  const WeightBlock block = block_of(w.type);
  const size_t offset = size_t{k_first / block.n_value} * block.n_byte;
  const DequantizeRow dequantize = dequantize_row_of(w.type);
  const size_t stride = k + kStripPad;
  float* const strip = scratch.strip.get(kStrip * stride);
  for (uint32_t c = 0; c < part.n; c += kStrip) {
    const uint32_t row = part.row_first + c;
    const uint32_t n_valid = row < w.n_row ? std::min<uint32_t>(kStrip, w.n_row - row) : 0;
    for (uint32_t r = 0; r < n_valid; ++r) {
      dequantize(w.data + size_t{row + r} * w.row_bytes + offset, k, strip + r * stride);
    }
    ops.pack_transposed(strip, stride, n_valid, k, part.column + c, kPanelColumns, panel);
  }
}

// sums [m, kPanelColumns] of the whole depth, cut so that each piece of the panel stays cached.
// The last piece goes to `last`, which may be somewhere else and add.
template <class Parts>
void multiply_depth(const TileOps& ops, const Parts& parts, TileProduct last, uint32_t n_col,
                    GemmScratch& scratch) {
  std::byte* const panel =
      scratch.panel.get(size_t{std::min(n_col, kDepth)} * kPanelColumns * ops.operand_bytes);
  TileProduct t = last;
  t.panel = panel;
  for (uint32_t k = 0; k < n_col; k += kDepth) {
    const uint32_t depth = std::min(kDepth, n_col - k);
    for (const PanelPart& part : parts) pack(ops, part, k, depth, scratch, panel);
    t.a = last.a + k * ops.operand_bytes;
    t.k = t.k_packed = depth;
    const bool is_last = k + depth == n_col;
    float* const sums = is_last && k == 0 ? nullptr : scratch.sums.get(last.m * kPanelColumns);
    t.partial = k == 0 ? nullptr : sums;
    t.partial_stride = kPanelColumns;
    t.c = is_last ? last.c : sums;
    t.c_stride = is_last ? last.c_stride : kPanelColumns;
    t.add = is_last && last.add;
    ops.multiply(t);
  }
}

}  // namespace

uint32_t n_panel(const Gemm& gemm) { return ceil_div(gemm.w.n_row, kPanelColumns); }
uint32_t n_panel(const GatedGemm& gemm) { return ceil_div(gemm.gate.n_row, kGatedColumns); }

void multiply_panel(const TileOps& ops, const Gemm& gemm, uint32_t panel, GemmScratch& scratch) {
  const uint32_t first = panel * kPanelColumns;
  const uint32_t n_out = std::min(kPanelColumns, gemm.w.n_row - first);
  const PanelPart parts[] = {{&gemm.w, first, 0, kPanelColumns}};
  TileProduct t;
  t.a = gemm.x;
  t.a_stride = gemm.x_stride;
  t.m = gemm.m;
  t.n_col = kPanelColumns;
  // Columns beyond the last output would fall into the next row.
  const bool direct = n_out == kPanelColumns;
  t.c = direct ? gemm.out + first : scratch.sums.get(size_t{gemm.m} * kPanelColumns);
  t.c_stride = direct ? gemm.out_stride : kPanelColumns;
  t.add = direct && gemm.add;
  multiply_depth(ops, parts, t, gemm.w.n_col, scratch);
  for (uint32_t i = 0; !direct && i < gemm.m; ++i) {
    const float* from = t.c + size_t{i} * kPanelColumns;
    float* to = gemm.out + i * gemm.out_stride + first;
    for (uint32_t j = 0; j < n_out; ++j) to[j] = gemm.add ? to[j] + from[j] : from[j];
  }
}

void multiply_panel(const TileOps& ops, const GatedGemm& gemm, uint32_t panel,
                    GemmScratch& scratch) {
  const uint32_t first = panel * kGatedColumns;
  const uint32_t n_out = std::min(kGatedColumns, gemm.gate.n_row - first);
  const PanelPart parts[] = {{&gemm.gate, first, 0, kGatedColumns},
                             {&gemm.up, first, kGatedColumns, kGatedColumns}};
  TileProduct t;
  t.a = gemm.x;
  t.a_stride = gemm.x_stride;
  t.m = gemm.m;
  t.n_col = kPanelColumns;
  t.c = scratch.sums.get(size_t{gemm.m} * kPanelColumns);
  t.c_stride = kPanelColumns;
  multiply_depth(ops, parts, t, gemm.gate.n_col, scratch);
  for (uint32_t i = 0; i < gemm.m; ++i) {
    float* const row = t.c + size_t{i} * kPanelColumns;
    kernels::gate(gemm.activation, row, row + kGatedColumns, n_out, row);
    ops.to_operand(row, n_out, gemm.out + i * gemm.out_stride + first * ops.operand_bytes);
  }
}

}  // namespace headstart::kernels
