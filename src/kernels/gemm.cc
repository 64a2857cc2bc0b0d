#include "kernels/gemm.h"

#include <algorithm>

#include "base/rounding.h"

namespace headstart::kernels {
namespace {

// A panel's bytes, so that it leaves room in a level-2 cache.
constexpr size_t kPanelBytes = 512 << 10;
// With few rows packing is most of the work, and in a level-1 cache it takes two thirds of the
// time.
constexpr uint32_t kFewRows = 8;
constexpr size_t kFewRowsPanelBytes = 32 << 10;
// Pieces of the depth are multiples of every type's block.
constexpr uint32_t kDepthStep = 256;

// k is cut into pieces of equal size, but for the last.
uint32_t depth_of(const PanelOps& ops, size_t m, uint32_t n_col, uint32_t n_panel_col) {
  const size_t n_byte = m <= kFewRows ? kFewRowsPanelBytes : kPanelBytes;
  const size_t step_bytes = ops.panel_bytes(kDepthStep, n_panel_col);
  const auto most = static_cast<uint32_t>(std::max<size_t>(1, n_byte / step_bytes)) * kDepthStep;
  if (n_col <= most) return n_col;
  const uint32_t n_piece = ceil_div(n_col, most);
  return pad_to(ceil_div(n_col, n_piece), kDepthStep);
}

// Packs columns [column, column + n) of a panel from the weight rows [row_first, …), of which
// those that exist are read, and k in [k_first, k_first + k).
struct PanelPart {
  const WeightMatrix* w;
  uint32_t row_first;
  uint32_t column;
  uint32_t n;
};

// How far on the strip lies that is packed after the one of column c: more columns, or the first
// columns of the next k, or of the next panel.
std::ptrdiff_t next_strip(const PanelPart& part, uint32_t c, uint32_t k_first, uint32_t k) {
  const WeightMatrix& w = *part.w;
  const auto bytes = [&](uint32_t n) { return static_cast<std::ptrdiff_t>(row_bytes(w.type, n)); };
  const auto strip_bytes = static_cast<std::ptrdiff_t>(kStrip * w.row_bytes);
  if (c + kStrip < part.n) return strip_bytes;
  if (k_first + k < w.n_col) return bytes(k) - static_cast<std::ptrdiff_t>(c * w.row_bytes);
  return strip_bytes - bytes(k_first);
}

void pack(const PanelOps& ops, const PanelPart& part, uint32_t k_first, uint32_t k,
          uint32_t n_panel_col, std::byte* panel) {
  const WeightMatrix& w = *part.w;
  for (uint32_t c = 0; c < part.n; c += kStrip) {
    const uint32_t row = std::min(part.row_first + c, w.n_row);
    StripRows rows{w.type, w.data + size_t{row} * w.row_bytes, w.row_bytes};
    rows.end = std::min<size_t>(kStrip, w.n_row - row);
    rows.next = next_strip(part, c, k_first, k);
    ops.pack_weights(rows.from(k_first), k, part.column + c, n_panel_col, panel);
  }
}

// sums [m, last.n_col] of the whole depth n_col, cut so that each piece of the panel stays cached.
// The last piece goes to `last`, which may be somewhere else and add.
template <class Parts>
void multiply_depth(const PanelOps& ops, const Parts& parts, TileProduct last, uint32_t n_col,
                    GemmScratch& scratch) {
  const auto n_panel_col = static_cast<uint32_t>(last.n_col);
  const uint32_t depth_max = depth_of(ops, last.m, n_col, n_panel_col);
  std::byte* const panel = scratch.panel.get(ops.panel_bytes(depth_max, n_panel_col));
  TileProduct t = last;
  t.panel = panel;
  for (uint32_t k = 0; k < n_col; k += depth_max) {
    const uint32_t depth = std::min(depth_max, n_col - k);
    for (const PanelPart& part : parts) pack(ops, part, k, depth, n_panel_col, panel);
    t.a = last.a + ops.operand_bytes(k);
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

// The panel as narrower ones, where there are few rows.
template <class AnyGemm>
bool multiply_narrow(const PanelOps& ops, const AnyGemm& gemm, uint32_t panel,
                     GemmScratch& scratch) {
  // Half of them, a gate's, are strips and whole blocks of operands.
  const auto n_column = static_cast<uint32_t>(2 * std::max(kStrip, ops.operand.n_value));
  if (gemm.m > kFewRows || gemm.panel_columns <= n_column) return false;
  AnyGemm narrow = gemm;
  narrow.panel_columns = n_column;
  const uint32_t n = gemm.panel_columns / n_column;
  const uint32_t end = std::min((panel + 1) * n, n_panel(narrow));
  for (uint32_t i = panel * n; i < end; ++i) multiply_panel(ops, narrow, i, scratch);
  return true;
}

}  // namespace

uint32_t n_panel(const Gemm& gemm) { return ceil_div(gemm.w.n_row, gemm.panel_columns); }
uint32_t n_panel(const GatedGemm& gemm) {
  return ceil_div(gemm.gate.n_row, gemm.panel_columns / 2);
}

void multiply_panel(const PanelOps& ops, const Gemm& gemm, uint32_t panel, GemmScratch& scratch) {
  if (multiply_narrow(ops, gemm, panel, scratch)) return;
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

void multiply_panel(const PanelOps& ops, const GatedGemm& gemm, uint32_t panel,
                    GemmScratch& scratch) {
  if (multiply_narrow(ops, gemm, panel, scratch)) return;
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
    ops.to_operand(row, n_out, gemm.out + i * gemm.out_stride + ops.operand_bytes(first));
  }
}

}  // namespace headstart::kernels
