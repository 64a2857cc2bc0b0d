#include "kernels/dequant.h"

#include <bit>
#include <cstring>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dequant.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// A block holds its quants in runs of 16 or more: up to 16 are widened at once, in 32-bit lanes,
// where shifting and masking cost no more than in bytes and save a second widening of the nibbles.
using DF = hn::CappedTag<float, 16>;
using DI = hn::Rebind<int32_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;
using VF = hn::VFromD<DF>;
using VI = hn::VFromD<DI>;

HWY_INLINE size_t lanes() { return hn::Lanes(DF()); }

const uint8_t* as_u8(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

template <class T>
HWY_INLINE T read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// The f16 at p, in every lane.
HWY_INLINE VF half_at(const std::byte* p) {
  const hn::Rebind<uint16_t, DF> du;
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::BitCast(dh, hn::Set(du, read<uint16_t>(p))));
}

HWY_INLINE VI bytes_at(const std::byte* p) {
  return hn::PromoteTo(DI(), hn::LoadU(DU8(), as_u8(p)));
}

HWY_INLINE VI masked(VI v, int32_t mask) { return hn::And(v, hn::Set(DI(), mask)); }

HWY_INLINE VI minus(VI v, int32_t bias) { return hn::Sub(v, hn::Set(DI(), bias)); }

HWY_INLINE void store(VI q, VF scale, float* out) {
  hn::StoreU(hn::Mul(hn::ConvertTo(DF(), q), scale), DF(), out);
}

HWY_INLINE void store(VI q, VF scale, VF offset, float* out) {
  hn::StoreU(hn::MulAdd(hn::ConvertTo(DF(), q), scale, offset), DF(), out);
}

// ---- Unquantised

using DU16 = hn::Rebind<uint16_t, DF>;

// 16-bit values at an address of any alignment.
HWY_INLINE hn::VFromD<DU16> words_at(const std::byte* p) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DU16(), read<uint16_t>(p));
#else
  return hn::BitCast(DU16(), hn::LoadU(hn::Repartition<uint8_t, DU16>(), as_u8(p)));
#endif
}

void DequantizeF32(const std::byte* row, size_t n, float* out) {
  std::memcpy(out, row, n * sizeof(float));
}

void DequantizeF16(const std::byte* row, size_t n, float* out) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes())
    hn::StoreU(hn::PromoteTo(DF(), hn::BitCast(dh, words_at(row + 2 * i))), DF(), out + i);
  for (; i < n; ++i) out[i] = hn::GetLane(half_at(row + 2 * i));
}

// bf16 is the upper half of an f32.
void DequantizeBf16(const std::byte* row, size_t n, float* out) {
  const hn::Rebind<uint32_t, DF> du32;
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du32, words_at(row + 2 * i)));
    hn::StoreU(hn::BitCast(DF(), bits), DF(), out + i);
  }
  for (; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{read<uint16_t>(row + 2 * i)} << 16);
}

// ---- Blocks of 32. The low nibbles of 16 bytes are weights 0 to 15, the high ones 16 to 31.

// f16 scale, 16 bytes of nibbles. scale · (nibble - 8)
void DequantizeQ4_0(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 32, row += 18, out += 32) {
    const VF scale = half_at(row);
    for (size_t i = 0; i < 16; i += lanes()) {
      const VI q = bytes_at(row + 2 + i);
      store(minus(masked(q, 15), 8), scale, out + i);
      store(minus(hn::ShiftRight<4>(q), 8), scale, out + 16 + i);
    }
  }
}

// f16 scale, f16 offset, 16 bytes of nibbles. scale · nibble + offset
void DequantizeQ4_1(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 32, row += 20, out += 32) {
    const VF scale = half_at(row), offset = half_at(row + 2);
    for (size_t i = 0; i < 16; i += lanes()) {
      const VI q = bytes_at(row + 4 + i);
      store(masked(q, 15), scale, offset, out + i);
      store(hn::ShiftRight<4>(q), scale, offset, out + 16 + i);
    }
  }
}

// Adds `step` to the lanes of q, which hold weights i, i + 1, …, whose bit is set in `bits`.
HWY_INLINE VI plus_where(VI q, int32_t step, uint32_t bits, size_t i) {
  alignas(64) static constexpr int32_t kBit[16] = {
      1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
      1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  const auto set = hn::TestBit(hn::Set(DI(), static_cast<int32_t>(bits)), hn::Load(DI(), kBit + i));
  return hn::IfThenElse(set, hn::Add(q, hn::Set(DI(), step)), q);
}

// f16 scale, 32 fifth bits, 16 bytes of nibbles. scale · (quant - 16)
void DequantizeQ5_0(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 32, row += 22, out += 32) {
    const VF scale = half_at(row);
    const uint32_t unset = ~read<uint32_t>(row + 2);
    for (size_t i = 0; i < 16; i += lanes()) {
      const VI q = bytes_at(row + 6 + i);
      store(plus_where(masked(q, 15), -16, unset, i), scale, out + i);
      store(plus_where(hn::ShiftRight<4>(q), -16, unset >> 16, i), scale, out + 16 + i);
    }
  }
}

// f16 scale, f16 offset, 32 fifth bits, 16 bytes of nibbles. scale · quant + offset
void DequantizeQ5_1(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 32, row += 24, out += 32) {
    const VF scale = half_at(row), offset = half_at(row + 2);
    const uint32_t set = read<uint32_t>(row + 4);
    for (size_t i = 0; i < 16; i += lanes()) {
      const VI q = bytes_at(row + 8 + i);
      store(plus_where(masked(q, 15), 16, set, i), scale, offset, out + i);
      store(plus_where(hn::ShiftRight<4>(q), 16, set >> 16, i), scale, offset, out + 16 + i);
    }
  }
}

// f16 scale, 32 signed bytes. scale · byte
void DequantizeQ8_0(const std::byte* row, size_t n, float* out) {
  const hn::Rebind<int8_t, DF> di8;
  for (; n != 0; n -= 32, row += 34, out += 32) {
    const VF scale = half_at(row);
    for (size_t i = 0; i < 32; i += lanes()) {
      const auto q = hn::BitCast(di8, hn::LoadU(DU8(), as_u8(row + 2 + i)));
      store(hn::PromoteTo(DI(), q), scale, out + i);
    }
  }
}

// The values that the 16 quants of IQ4_NL stand for. q below 16
HWY_INLINE VI iq4_values(hn::VFromD<DU8> q) {
  alignas(16) static constexpr int8_t kValue[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                    1,    13,   25,  38,  53,  69,  89,  113};
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DI(), int32_t{kValue[hn::GetLane(q)]});
#else
  const auto values = hn::Load(hn::CappedTag<int8_t, 16>(), kValue);
  const hn::Rebind<int8_t, DF> di8;
  return hn::PromoteTo(DI(), hn::TableLookupBytes(values, hn::BitCast(di8, q)));
#endif
}

// f16 scale, 16 bytes of nibbles. scale · value of the nibble
void DequantizeIq4Nl(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 32, row += 18, out += 32) {
    const VF scale = half_at(row);
    for (size_t i = 0; i < 16; i += lanes()) {
      const auto q = hn::LoadU(DU8(), as_u8(row + 2 + i));
      store(iq4_values(hn::And(q, hn::Set(DU8(), 15))), scale, out + i);
      store(iq4_values(hn::ShiftRight<4>(q)), scale, out + 16 + i);
    }
  }
}

// ---- Blocks of 256, in sub-blocks of 16 or 32 with a scale each.

constexpr uint64_t in_each_byte(uint8_t byte) { return uint64_t{0x0101010101010101} * byte; }

// out[i] = factor · (byte i of q - bias), i < 8
HWY_INLINE void scale_bytes(uint64_t q, int32_t bias, float factor, float* out) {
  const hn::CappedTag<float, 8> df;
  const hn::Rebind<int32_t, decltype(df)> di;
  const hn::Rebind<uint8_t, decltype(df)> du8;
  uint8_t bytes[8];
  std::memcpy(bytes, &q, sizeof(bytes));
  for (size_t i = 0; i < 8; i += hn::Lanes(df)) {
    const auto v = hn::Sub(hn::PromoteTo(di, hn::LoadU(du8, bytes + i)), hn::Set(di, bias));
    hn::StoreU(hn::Mul(hn::ConvertTo(df, v), hn::Set(df, factor)), df, out + i);
  }
}

// What a sub-block's quants are multiplied by and what is then added.
struct SubBlocks {
  alignas(64) float scale[16];
  alignas(64) float offset[16];
};

HWY_INLINE void store(VI q, const SubBlocks& sub, size_t j, float* out) {
  store(q, hn::Set(DF(), sub.scale[j]), hn::Set(DF(), sub.offset[j]), out);
}

// 16 bytes (low nibble: scale, high: offset), 64 bytes of 2-bit quants, f16 scale of the scales,
// f16 scale of the offsets. Each 32 bytes are 128 weights: all bits 0-1, all bits 2-3, …
void DequantizeQ2_K(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 256, row += 84) {
    const float d = hn::GetLane(half_at(row + 80)), d_offset = hn::GetLane(half_at(row + 82));
    SubBlocks sub;
    for (size_t j = 0; j < 16; j += 8) {
      const uint64_t packed = read<uint64_t>(row + j);
      scale_bytes(packed & in_each_byte(15), 0, d, sub.scale + j);
      scale_bytes(packed >> 4 & in_each_byte(15), 0, -d_offset, sub.offset + j);
    }
    for (size_t half = 0; half < 2; ++half, out += 128) {
      for (size_t i = 0; i < 32; i += lanes()) {
        const VI q = bytes_at(row + 16 + 32 * half + i);
        const size_t j = 8 * half + i / 16;
        store(masked(q, 3), sub, j, out + i);
        store(masked(hn::ShiftRight<2>(q), 3), sub, j + 2, out + 32 + i);
        store(masked(hn::ShiftRight<4>(q), 3), sub, j + 4, out + 64 + i);
        store(hn::ShiftRight<6>(q), sub, j + 6, out + 96 + i);
      }
    }
  }
}

// The 16 scales of Q3_K: low nibbles in 8 bytes (as the nibbles of a block of 32), then the upper
// two bits in 4 bytes: bits 0-1 of all, bits 2-3 of all, …
HWY_INLINE void scales_of_q3(const std::byte* p, float d, float* scale) {
  const uint64_t low = read<uint64_t>(p), high = read<uint32_t>(p + 8);
  const uint64_t high_0 = (high | high << 30) & in_each_byte(3);
  const uint64_t high_1 = (high >> 4 | high >> 6 << 32) & in_each_byte(3);
  scale_bytes((low & in_each_byte(15)) | high_0 << 4, 32, d, scale);
  scale_bytes((low >> 4 & in_each_byte(15)) | high_1 << 4, 32, d, scale + 8);
}

// 32 bytes of third bits, 64 bytes of 2-bit quants (as in Q2_K), 12 bytes of scales, f16 scale of
// the scales. The third bits of weights 32·j to 32·j + 31 are the bits j. scale · (quant - 4)
void DequantizeQ3_K(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 256, row += 110) {
    float scale[16];
    scales_of_q3(row + 96, hn::GetLane(half_at(row + 108)), scale);
    for (size_t half = 0; half < 2; ++half, out += 128) {
      for (size_t i = 0; i < 32; i += lanes()) {
        const VI q = bytes_at(row + 32 + 32 * half + i);
        const VI third = hn::ShiftRightSame(bytes_at(row + i), static_cast<int>(4 * half));
        const float* s = scale + 8 * half + i / 16;
        const VI q0 = hn::Or(masked(q, 3), masked(hn::ShiftLeft<2>(third), 4));
        const VI q1 = hn::Or(masked(hn::ShiftRight<2>(q), 3), masked(hn::ShiftLeft<1>(third), 4));
        const VI q2 = hn::Or(masked(hn::ShiftRight<4>(q), 3), masked(third, 4));
        const VI q3 = hn::Or(hn::ShiftRight<6>(q), masked(hn::ShiftRight<1>(third), 4));
        store(minus(q0, 4), hn::Set(DF(), s[0]), out + i);
        store(minus(q1, 4), hn::Set(DF(), s[2]), out + 32 + i);
        store(minus(q2, 4), hn::Set(DF(), s[4]), out + 64 + i);
        store(minus(q3, 4), hn::Set(DF(), s[6]), out + 96 + i);
      }
    }
  }
}

// The head of Q4_K and Q5_K: f16 scale of the scales, f16 scale of the offsets, 12 bytes with
// eight scales and eight offsets of 6 bits: scales 0-3, offsets 0-3, and the nibbles of scales
// (low) and offsets (high) 4-7, whose upper bits are those left over in the first eight bytes.
HWY_INLINE SubBlocks sub_blocks_at(const std::byte* row) {
  const uint64_t first = read<uint64_t>(row + 4), last = read<uint32_t>(row + 12);
  const uint64_t whole = first & in_each_byte(63);
  const uint64_t split = ((last | last << 28) & in_each_byte(15)) | (first >> 2 & in_each_byte(48));
  SubBlocks sub;
  scale_bytes((whole & 0xFFFFFFFF) | split << 32, 0, hn::GetLane(half_at(row)), sub.scale);
  scale_bytes(whole >> 32 | (split >> 32 << 32), 0, -hn::GetLane(half_at(row + 2)), sub.offset);
  return sub;
}

// 16 bytes of head, 128 bytes of nibbles. Each 32 bytes are 64 weights: all low nibbles, all high
// ones. scale · nibble + offset
void DequantizeQ4_K(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 256, row += 144) {
    const SubBlocks sub = sub_blocks_at(row);
    for (size_t j = 0; j < 8; j += 2, out += 64) {
      for (size_t i = 0; i < 32; i += lanes()) {
        const VI q = bytes_at(row + 16 + 16 * j + i);
        store(masked(q, 15), sub, j, out + i);
        store(hn::ShiftRight<4>(q), sub, j + 1, out + 32 + i);
      }
    }
  }
}

// 16 bytes of head, 32 bytes of fifth bits (of weights 32·j to 32·j + 31 the bits j), 128 bytes of
// nibbles (as in Q4_K). scale · quant + offset
void DequantizeQ5_K(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 256, row += 176, out += 256) {
    const SubBlocks sub = sub_blocks_at(row);
    for (size_t i = 0; i < 32; i += lanes()) {
      VI fifth = hn::ShiftLeft<4>(bytes_at(row + 16 + i));
      for (size_t j = 0; j < 8; j += 2, fifth = hn::ShiftRight<2>(fifth)) {
        const VI q = bytes_at(row + 48 + 16 * j + i);
        const VI q0 = hn::Or(masked(q, 15), masked(fifth, 16));
        const VI q1 = hn::Or(hn::ShiftRight<4>(q), masked(hn::ShiftRight<1>(fifth), 16));
        store(q0, sub, j, out + 32 * j + i);
        store(q1, sub, j + 1, out + 32 * j + 32 + i);
      }
    }
  }
}

// 128 bytes of nibbles, 64 bytes of 2-bit upper parts, 16 signed scales, f16 scale of the scales.
// Of each 128 weights the nibbles are 64 bytes (all low, then all high ones), the upper parts 32
// bytes (as in Q2_K). scale · (quant - 32)
void DequantizeQ6_K(const std::byte* row, size_t n, float* out) {
  for (; n != 0; n -= 256, row += 210) {
    const float d = hn::GetLane(half_at(row + 208));
    float scale[16];
    for (size_t j = 0; j < 16; j += 8)  // a flipped sign bit adds 128
      scale_bytes(read<uint64_t>(row + 192 + j) ^ in_each_byte(128), 128, d, scale + j);
    for (size_t half = 0; half < 2; ++half, out += 128) {
      for (size_t i = 0; i < 32; i += lanes()) {
        const std::byte* nibbles = row + 64 * half + i;
        const VI a = bytes_at(nibbles), b = bytes_at(nibbles + 32);
        const VI upper = bytes_at(row + 128 + 32 * half + i);
        const float* s = scale + 8 * half + i / 16;
        const VI q0 = hn::Or(masked(a, 15), masked(hn::ShiftLeft<4>(upper), 48));
        const VI q1 = hn::Or(masked(b, 15), masked(hn::ShiftLeft<2>(upper), 48));
        const VI q2 = hn::Or(hn::ShiftRight<4>(a), masked(upper, 48));
        const VI q3 = hn::Or(hn::ShiftRight<4>(b), masked(hn::ShiftRight<2>(upper), 48));
        store(minus(q0, 32), hn::Set(DF(), s[0]), out + i);
        store(minus(q1, 32), hn::Set(DF(), s[2]), out + 32 + i);
        store(minus(q2, 32), hn::Set(DF(), s[4]), out + 64 + i);
        store(minus(q3, 32), hn::Set(DF(), s[6]), out + 96 + i);
      }
    }
  }
}

}  // namespace

DequantizeRow RowOf(WeightType type) {
  switch (type) {
    case WeightType::kF32: return DequantizeF32;
    case WeightType::kF16: return DequantizeF16;
    case WeightType::kBf16: return DequantizeBf16;
    case WeightType::kQ4_0: return DequantizeQ4_0;
    case WeightType::kQ4_1: return DequantizeQ4_1;
    case WeightType::kQ5_0: return DequantizeQ5_0;
    case WeightType::kQ5_1: return DequantizeQ5_1;
    case WeightType::kQ8_0: return DequantizeQ8_0;
    case WeightType::kQ2_K: return DequantizeQ2_K;
    case WeightType::kQ3_K: return DequantizeQ3_K;
    case WeightType::kQ4_K: return DequantizeQ4_K;
    case WeightType::kQ5_K: return DequantizeQ5_K;
    case WeightType::kQ6_K: return DequantizeQ6_K;
    case WeightType::kIq4Nl: return DequantizeIq4Nl;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
HWY_EXPORT(RowOf);

namespace {

struct Format {
  const char* name;
  WeightBlock block;
};

constexpr Format kFormats[kWeightTypes] = {
    {"F32", {1, 4}},      {"F16", {1, 2}},      {"BF16", {1, 2}},     {"Q4_0", {32, 18}},
    {"Q4_1", {32, 20}},   {"Q5_0", {32, 22}},   {"Q5_1", {32, 24}},   {"Q8_0", {32, 34}},
    {"Q2_K", {256, 84}},  {"Q3_K", {256, 110}}, {"Q4_K", {256, 144}}, {"Q5_K", {256, 176}},
    {"Q6_K", {256, 210}}, {"IQ4_NL", {32, 18}},
};

const Format& format_of(WeightType type) {
  const auto i = static_cast<size_t>(type);
  HS_CHECK(i < kWeightTypes, "weight type");
  return kFormats[i];
}

}  // namespace

WeightBlock block_of(WeightType type) { return format_of(type).block; }

const char* to_string(WeightType type) { return format_of(type).name; }

void dequantize_row(WeightType type, const std::byte* row, size_t n, float* out) {
  HS_CHECK(n % block_of(type).n_value == 0, "a row of whole blocks");
  dequantize_row_of(type)(row, n, out);
}

DequantizeRow dequantize_row_of(WeightType type) {
  const DequantizeRow row = HWY_DYNAMIC_DISPATCH(RowOf)(type);
  HS_CHECK(row != nullptr, "weight type");
  return row;
}

}  // namespace headstart::kernels
#endif  // HWY_ONCE
