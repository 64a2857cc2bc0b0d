// kernels/dequant_strip.h: a strip of weight rows, transposed, as a panel's columns are: as f32 or
// as the integers in the file.
//
// The quants are transposed while they are bytes: 16 rows × 16 bytes are a few shuffles, after
// which a vector holds the same weights of many rows and meets vectors of their scales. Rejected:
// rows of kernels/dequant.h and a transposition of f32, which take up to two and a half times as
// long.
//
//   units    strides of rows in bytes, of out in floats
//   threads  pure
#pragma once

#include <cstddef>

#include "kernels/dequant.h"

namespace headstart::kernels {

// Rows that become columns together.
inline constexpr size_t kStrip = 16;

// Weights of a strip that callers who do more with them take at a time: they stay in the level-1
// cache, and it is a multiple of every block.
inline constexpr size_t kStripPiece = 256;

// kStrip rows of weights, of any alignment. Those that do not exist are zero.
struct StripRows {
  WeightType type = WeightType::kF32;
  const std::byte* first = nullptr;  // row 0
  size_t stride = 0;
  size_t begin = 0, end = kStrip;  // the rows that exist
  std::ptrdiff_t next = 0;         // bytes on, what will be wanted next: fetched meanwhile

  // The same rows without their first n weights, a multiple of the block.
  StripRows from(size_t n) const {
    StripRows rest = *this;
    rest.first += row_bytes(type, n);
    return rest;
  }
};

// out[i * out_stride + r] = weight i of row r, r < kStrip, to the bits of dequantize_row. n is a
// multiple of the block. Nothing is read beyond the n weights of a row that exists.
void dequantize_strip(const StripRows& rows, size_t n, float* out, size_t out_stride);

// Of as many consecutive weights of a row every type has one scale.
inline constexpr size_t kScaleSpan = 16;

// A strip's weights as the integers that the file has, for integer products:
// weight = scale · level + offset, exactly.
struct StripLevels {
  std::byte* level;  // [n / 4][kStrip][4] u8
  float* scale;      // [n / kScaleSpan][kStrip]
  float* offset;     // [n / kScaleSpan][kStrip]
};

// False for f32, f16 and bf16.
bool has_levels(WeightType type);

// n is a multiple of the block. Levels of rows that do not exist are any, their scales and offsets
// zero.
void strip_levels(const StripRows& rows, size_t n, const StripLevels& out);

}  // namespace headstart::kernels
