#include "kernels/gemm.h"

#include <algorithm>

namespace headstart::kernels {
namespace {

// A panel's bytes, so that it leaves room in a level-2 cache.
constexpr size_t kPanelBytes = 512 << 10;
// Pieces of the depth are multiples of every type's block.
constexpr uint32_t kDepthStep = 256;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// k is cut into pieces of equal size, but for the last.
uint32_t depth_of(uint32_t n_col, uint32_t n_panel_col, size_t operand_bytes) {
  const auto most = static_cast<uint32_t>(kPanelBytes / operand_bytes / n_panel_col);
  if (n_col <= most) return n_col;
  const uint32_t n_piece = ceil_div(n_col, most);
  return ceil_div(ceil_div(n_col, n_piece), kDepthStep) * kDepthStep;
}

// Packs columns [column, column + n) of a panel from the weight rows [row_first, …), of which
// those that exist are read, and k in [k_first, k_first + k).
struct PanelPart {
  const WeightMatrix* w;
  uint32_t row_first;
  uint32_t column;
  uint32_t n;
};

void pack(const TileOps& ops, const PanelPart& part, uint32_t k_first, uint32_t k,
          uint32_t n_panel_col, std::byte* panel) {
  const WeightMatrix& w = *part.w;
  for (uint32_t c = 0; c < part.n; c += kStrip) {
    const uint32_t row = std::min(part.row_first + c, w.n_row);
    StripRows rows{w.type, w.data + size_t{row} * w.row_bytes, w.row_bytes};
    rows.end = std::min<size_t>(kStrip, w.n_row - row);
    ops.pack_weights(rows.from(k_first), k, part.column + c, n_panel_col, panel);
  }
}

// sums [m, last.n_col] of the whole depth n_col, cut so that each piece of the panel stays cached.
// The last piece goes to `last`, which may be somewhere else and add.
template <class Parts>
void multiply_depth(const TileOps& ops, const Parts& parts, TileProduct last, uint32_t n_col,
                    GemmScratch& scratch) {
  const auto n_panel_col = static_cast<uint32_t>(last.n_col);
  const uint32_t depth_max = depth_of(n_col, n_panel_col, ops.operand_bytes);
  std::byte* const panel = scratch.panel.get(size_t{depth_max} * n_panel_col * ops.operand_bytes);
  TileProduct t = last;
  t.panel = panel;
  for (uint32_t k = 0; k < n_col; k += depth_max) {
    const uint32_t depth = std::min(depth_max, n_col - k);
    for (const PanelPart& part : parts) pack(ops, part, k, depth, n_panel_col, panel);
    t.a = last.a + k * ops.operand_bytes;
    t.k = t.k_packed = depth;
    const bool is_last = k + depth == n_col;
    float* const sums = is_last && k == 0 ? nullptr : scratch.sums.get(last.m * n_panel_col);
    t.partial = k == 0 ? nullptr : sums;
    t.partial_stride = n_panel_col;
    t.c = is_last ? last.c : sums;
    t.c_stride = is_last ? last.c_stride : n_panel_col;
    t.add = is_last && last.add;
    ops.multiply(t);
  }
}

}  // namespace

uint32_t n_panel(const Gemm& gemm) { return ceil_div(gemm.w.n_row, gemm.panel_columns); }
uint32_t n_panel(const GatedGemm& gemm) {
  return ceil_div(gemm.gate.n_row, gemm.panel_columns / 2);
}

void multiply_panel(const TileOps& ops, const Gemm& gemm, uint32_t panel, GemmScratch& scratch) {
  const uint32_t n_column = gemm.panel_columns;
  const uint32_t first = panel * n_column;
  const uint32_t n_out = std::min(n_column, gemm.w.n_row - first);
  const PanelPart parts[] = {{&gemm.w, first, 0, n_column}};
  TileProduct t;
  t.a = gemm.x;
  t.a_stride = gemm.x_stride;
  t.m = gemm.m;
  t.n_col = n_column;
  // Columns beyond the last output would fall into the next row.
  const bool direct = n_out == n_column;
  t.c = direct ? gemm.out + first : scratch.sums.get(size_t{gemm.m} * n_column);
  t.c_stride = direct ? gemm.out_stride : n_column;
  t.add = direct && gemm.add;
  multiply_depth(ops, parts, t, gemm.w.n_col, scratch);
  for (uint32_t i = 0; !direct && i < gemm.m; ++i) {
    const float* from = t.c + size_t{i} * n_column;
    float* to = gemm.out + i * gemm.out_stride + first;
    for (uint32_t j = 0; j < n_out; ++j) to[j] = gemm.add ? to[j] + from[j] : from[j];
  }
}

void multiply_panel(const TileOps& ops, const GatedGemm& gemm, uint32_t panel,
                    GemmScratch& scratch) {
  const uint32_t n_column = gemm.panel_columns, half = n_column / 2;
  const uint32_t first = panel * half;
  const uint32_t n_out = std::min(half, gemm.gate.n_row - first);
  const PanelPart parts[] = {{&gemm.gate, first, 0, half}, {&gemm.up, first, half, half}};
  TileProduct t;
  t.a = gemm.x;
  t.a_stride = gemm.x_stride;
  t.m = gemm.m;
  t.n_col = n_column;
  t.c = scratch.sums.get(size_t{gemm.m} * n_column);
  t.c_stride = n_column;
  multiply_depth(ops, parts, t, gemm.gate.n_col, scratch);
  for (uint32_t i = 0; i < gemm.m; ++i) {
    float* const row = t.c + size_t{i} * n_column;
    kernels::gate(gemm.activation, row, row + half, n_out, row);
    ops.to_operand(row, n_out, gemm.out + i * gemm.out_stride + first * ops.operand_bytes);
  }
}

}  // namespace headstart::kernels
