// kernels/dequant.h: the rows of quantised weights as f32.
//
// Every product of scales and a quant is exact in f32 (the widest, of Q6_K, has 11 + 7 + 5 bits),
// so a value is rounded at most once, where an offset is added. That is why all targets, with and
// without FMA, give the same bits, which are those of ggml. Scales must be finite:
// what infinities and NaN become depends on the target.
//
//   shapes   one row, n weights, a multiple of the block
//   threads  pure
//   source   the block layouts of GGUF, written down beside each function in dequant.cc
#pragma once

#include <cstddef>
#include <cstdint>

namespace headstart::kernels {

// What a GGUF stores weights in.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
};
constexpr size_t kWeightTypes = 14;

struct WeightBlock {
  uint32_t n_value;
  uint32_t n_byte;
};

WeightBlock block_of(WeightType type);
const char* to_string(WeightType type);  // as GGUF tools spell it: "Q4_1"

// Bytes of n weights, a multiple of the block.
inline size_t row_bytes(WeightType type, size_t n) {
  const WeightBlock block = block_of(type);
  return n / block.n_value * block.n_byte;
}

// out[i] = weight i of the row. The row needs no alignment; nothing is read beyond its row_bytes
// and nothing written beyond out[n - 1].
void dequantize_row(WeightType type, const std::byte* row, size_t n, float* out);

// The same for a loop over rows: dispatched once, n not checked.
using DequantizeRow = void (*)(const std::byte* row, size_t n, float* out);
DequantizeRow dequantize_row_of(WeightType type);

}  // namespace headstart::kernels
