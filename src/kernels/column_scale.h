// kernels/column_scale.h: how a block of activations is rounded to int8, the same on every
// instruction set.
#pragma once

#include <cstdint>

namespace headstart::kernels {

constexpr uint32_t kMagnitude = 0x7FFFFFFF;      // a float's bits but the sign
constexpr uint32_t kInfinityBits = 0x7F800000;   // all above are NaN
constexpr float kSmallestMagnitude = 0x1p-100f;  // below it a block is zero: the inverse overflows

// How a block of a column is quantised: q = nearest even of x * inverse.
struct ColumnScale {
  float d;
  float inverse;
  bool has_values;  // else every q is 0
};

// From the largest magnitude of the block, as bits: these order as the values do, with infinity
// and NaN on top, so that instruction sets with other rules for NaN agree.
ColumnScale column_scale(uint32_t largest);

}  // namespace headstart::kernels
