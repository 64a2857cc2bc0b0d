// kernels/matvec.h: quantised matrix × 1 to 8 columns, at the speed at which memory gives the
// matrix.
//
// Decoding reads every weight once for each token, so the kernels do little enough arithmetic to
// wait for memory only. Columns are quantised to int8 in blocks of 32, each with an f32 scale;
// the dot product of two blocks is exact in integers.
//
// One order of float operations for each (row, column), the same on every instruction set: block b
// adds to accumulator b % 8 by fused multiply-add, the eight are summed in a fixed tree. So the
// bits of a result depend neither on the number of columns, nor on the range of rows, nor on the
// CPU (docs of the order: matvec_targets.h).
//
//   shapes   outermost first
//   threads  matvec: pure; different ranges of rows may be computed at once
//   source   ggml's block formats, as they lie in the GGUF
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/weight_matrix.h"

namespace headstart::kernels {

struct ColumnGroup;   // matvec_targets.h
struct MatvecTarget;  // one instruction set

constexpr uint32_t kMaxColumns = 8;

// Activations as matvec wants them. Grows to the largest size asked for and keeps it.
class QuantizedColumns {
 public:
  QuantizedColumns();
  ~QuantizedColumns();
  QuantizedColumns(QuantizedColumns&&) noexcept;
  QuantizedColumns& operator=(QuantizedColumns&&) noexcept;

  uint32_t n_col() const { return n_col_; }
  size_t n_value() const { return n_value_; }
  // What the value was rounded to.
  float value(uint32_t col, size_t i) const;

 private:
  friend void quantize_columns(const float* x, size_t x_stride, uint32_t n_col, size_t n_value,
                               QuantizedColumns& out, const MatvecTarget& target);
  friend void matvec(const WeightMatrix& w, uint32_t row_first, uint32_t row_end,
                     const QuantizedColumns& x, float* y, size_t y_stride);

  uint32_t n_col_ = 0;
  size_t n_value_ = 0;
  size_t n_group_ = 0;
  const MatvecTarget* target_ = nullptr;
  std::vector<ColumnGroup> groups_;  // [n_col, n_group]
  std::vector<float> floats_;        // [n_col, n_value], for the float types of weights
};

// Column c is x[c * x_stride ...]. A block that holds a NaN or an infinity gives NaN results.
void quantize_columns(const float* x, size_t x_stride, uint32_t n_col, size_t n_value,
                      QuantizedColumns& out);

// y[c * y_stride + r] = dot(row r, column c) for r in [row_first, row_end).
// Reads nothing outside the matrix, writes nothing else.
void matvec(const WeightMatrix& w, uint32_t row_first, uint32_t row_end, const QuantizedColumns& x,
            float* y, size_t y_stride);

// The instruction set chosen on this machine.
const char* matvec_target_name();

// All that this machine can run, the best first; the last is portable. For tests and benches.
std::span<const MatvecTarget* const> matvec_targets();
const char* name_of(const MatvecTarget& target);
void quantize_columns(const float* x, size_t x_stride, uint32_t n_col, size_t n_value,
                      QuantizedColumns& out, const MatvecTarget& target);

}  // namespace headstart::kernels
