// A word is a row's 32-bit group of four bytes. A vector has the words of kLanes rows, one a lane;
// four such vectors come out of one transposition of 16 bytes of each row, within 128-bit blocks.
// The layouts of the blocks are written down in dequant.cc.
#include "kernels/dequant_strip.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dequant_strip.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Rows at their first weights. For those that do not exist others stand.
struct Rows {
  const std::byte* const* row;
  std::ptrdiff_t next;

  const std::byte* operator[](size_t r) const { return row[r]; }
  Rows operator+(size_t r) const { return {row + r, next}; }
};

// n weights from `at` on, for the last ones of a row that fill no vector.
void by_row(WeightType type, const Rows& row, size_t at, size_t n, float* out, size_t stride) {
  const WeightBlock block = block_of(type);
  const DequantizeRow dequantize = dequantize_row_of(type);
  float values[256];
  for (size_t r = 0; r < kStrip; ++r) {
    for (size_t i = 0; i < n; i += block.n_value) {
      dequantize(row[r] + at + i / block.n_value * block.n_byte, block.n_value, values);
      for (size_t j = 0; j < block.n_value; ++j) out[(i + j) * stride + r] = values[j];
    }
  }
}

#if HWY_TARGET != HWY_SCALAR

using DF = hn::CappedTag<float, kStrip>;
using DU = hn::Rebind<uint32_t, DF>;
using DI = hn::Rebind<int32_t, DF>;
using DU8 = hn::Repartition<uint8_t, DF>;
using VF = hn::VFromD<DF>;
using VU = hn::VFromD<DU>;
using V8 = hn::VFromD<DU8>;
constexpr size_t kLanes = hn::MaxLanes(DF());

// ---- Loading

// The 16 bytes at `at` of every kStep-th row, a block each.
template <size_t kStep, class D>
HWY_INLINE hn::VFromD<D> blocks_at(D d, const Rows& row, size_t at) {
  if constexpr (hn::MaxLanes(d) <= 16) {
    return hn::LoadU(d, reinterpret_cast<const uint8_t*>(row[0] + at));
  } else {
    const hn::Half<D> half;
    const Rows upper = row + hn::MaxLanes(half) / 16 * kStep;
    return hn::Combine(d, blocks_at<kStep>(half, upper, at), blocks_at<kStep>(half, row, at));
  }
}

HWY_INLINE void prefetch(const Rows& row, size_t r, size_t at) {
  hwy::Prefetch(row[r] + static_cast<std::ptrdiff_t>(at) + row.next);
}

struct Words {
  V8 v[4];
};

// Words 0 to 3 of the 16 bytes at `at` of kLanes rows.
HWY_INLINE Words head_at(const Rows& row, size_t at) {
  const DU d;
  const hn::Repartition<uint64_t, DU> d64;
  const DU8 d8;
  const VU r0 = hn::BitCast(d, blocks_at<4>(d8, row, at));
  const VU r1 = hn::BitCast(d, blocks_at<4>(d8, row + 1, at));
  const VU r2 = hn::BitCast(d, blocks_at<4>(d8, row + 2, at));
  const VU r3 = hn::BitCast(d, blocks_at<4>(d8, row + 3, at));
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  return {{hn::BitCast(d8, hn::InterleaveLower(d64, low01, low23)),
           hn::BitCast(d8, hn::InterleaveUpper(d64, low01, low23)),
           hn::BitCast(d8, hn::InterleaveLower(d64, high01, high23)),
           hn::BitCast(d8, hn::InterleaveUpper(d64, high01, high23))}};
}

// The same, and fetches what comes next while other work is done.
HWY_INLINE Words words_at(const Rows& row, size_t at) {
  for (size_t r = 0; r < kLanes; ++r) prefetch(row, r, at);
  return head_at(row, at);
}

HWY_INLINE VF half_floats(VU bits) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::BitCast(dh, hn::DemoteTo(d16, hn::BitCast(DI(), bits))));
}

// The f16 in the lower half of each word, and in the upper.
HWY_INLINE VF lower_half(V8 words) {
  return half_floats(hn::And(hn::BitCast(DU(), words), hn::Set(DU(), 0xFFFF)));
}
HWY_INLINE VF upper_half(V8 words) {
  return half_floats(hn::ShiftRight<16>(hn::BitCast(DU(), words)));
}

// ---- Widening. A byte becomes a float as the upper byte of an int32, which needs no second step
// for its sign: 2^24 times too large, which scales make up for. All of that is exact.

constexpr float kUnit = 0x1p-24f;

HWY_INLINE VF times(VF v, float factor) { return hn::Mul(v, hn::Set(DF(), factor)); }

template <size_t kByte>
HWY_INLINE VF widened(V8 bytes) {
  const DU d;
  VU upper;
  if constexpr (kByte == 0) {
    upper = hn::ShiftLeft<24>(hn::BitCast(d, bytes));
  } else if constexpr (kByte == 3) {
    upper = hn::And(hn::BitCast(d, bytes), hn::Set(d, 0xFF000000));
  } else {
    constexpr uint8_t k0 = 0x80;  // gives zero
    alignas(16) static constexpr uint8_t kFrom[16] = {
        k0, k0, k0, kByte, k0, k0, k0, kByte + 4, k0, k0, k0, kByte + 8, k0, k0, k0, kByte + 12};
    upper = hn::BitCast(d, hn::TableLookupBytesOr0(bytes, hn::LoadDup128(DU8(), kFrom)));
  }
  return hn::ConvertTo(DF(), hn::BitCast(DI(), upper));
}

// Four weights of kLanes rows from their signed bytes. scale: times kUnit
HWY_INLINE void store(V8 q, VF scale, float* out, size_t stride) {
  const DF d;
  hn::StoreU(hn::Mul(widened<0>(q), scale), d, out);
  hn::StoreU(hn::Mul(widened<1>(q), scale), d, out + stride);
  hn::StoreU(hn::Mul(widened<2>(q), scale), d, out + 2 * stride);
  hn::StoreU(hn::Mul(widened<3>(q), scale), d, out + 3 * stride);
}

HWY_INLINE void store(V8 q, VF scale, VF offset, float* out, size_t stride) {
  const DF d;
  hn::StoreU(hn::MulAdd(widened<0>(q), scale, offset), d, out);
  hn::StoreU(hn::MulAdd(widened<1>(q), scale, offset), d, out + stride);
  hn::StoreU(hn::MulAdd(widened<2>(q), scale, offset), d, out + 2 * stride);
  hn::StoreU(hn::MulAdd(widened<3>(q), scale, offset), d, out + 3 * stride);
}

// ---- Where a block's weights go. part() tells the scale of n weights from the first on, put()
// gives weights i to i + 3 of kLanes rows as signed bytes or, where there is an offset, unsigned
// ones.

struct FloatOut {
  float* out;
  size_t stride;

  FloatOut of_row(size_t r) const { return {out + r, stride}; }
  void skip(size_t n) { out += n * stride; }
  HWY_INLINE float* at(size_t i) const { return out + i * stride; }
  HWY_INLINE void part(size_t, size_t, VF) const {}
  HWY_INLINE void part(size_t, size_t, VF, VF) const {}
  HWY_INLINE void put(size_t i, V8 q, VF scale) const { store(q, scale, at(i), stride); }
  HWY_INLINE void put(size_t i, V8 q, VF scale, VF offset) const {
    store(q, scale, offset, at(i), stride);
  }
};

struct LevelOut {
  StripLevels out;

  LevelOut of_row(size_t r) const { return {{out.level + 4 * r, out.scale + r, out.offset + r}}; }
  void skip(size_t n) {
    out = {out.level + n * kStrip, out.scale + n / kScaleSpan * kStrip,
           out.offset + n / kScaleSpan * kStrip};
  }
  HWY_INLINE void part(size_t first, size_t n, VF scale, VF offset) const {
    const VF unit = times(scale, 1 / kUnit);
    for (size_t i = first / kScaleSpan; i < (first + n) / kScaleSpan; ++i) {
      hn::StoreU(unit, DF(), out.scale + i * kStrip);
      hn::StoreU(offset, DF(), out.offset + i * kStrip);
    }
  }
  HWY_INLINE void part(size_t first, size_t n, VF scale) const {
    part(first, n, scale, times(scale, -128 / kUnit));
  }
  HWY_INLINE void put(size_t i, V8 q, VF) const {
    put(i, hn::Xor(q, hn::Set(DU8(), 0x80)), VF(), VF());
  }
  HWY_INLINE void put(size_t i, V8 q, VF, VF) const {
    hn::StoreU(q, DU8(), reinterpret_cast<uint8_t*>(out.level) + i * kStrip);
  }
};

HWY_INLINE V8 masked(V8 q, uint8_t mask) { return hn::And(q, hn::Set(DU8(), mask)); }
HWY_INLINE V8 minus(V8 q, uint8_t bias) { return hn::Sub(q, hn::Set(DU8(), bias)); }
HWY_INLINE V8 low(V8 q) { return masked(q, 15); }
HWY_INLINE V8 high(V8 q) { return hn::ShiftRight<4>(q); }

// Bits that kShift moves across bytes are for the mask to remove.
template <int kShift>
HWY_INLINE V8 left(V8 q) {
  return hn::BitCast(DU8(), hn::ShiftLeft<kShift>(hn::BitCast(DU(), q)));
}
template <int kShift>
HWY_INLINE V8 right(V8 q) {
  return hn::BitCast(DU8(), hn::ShiftRight<kShift>(hn::BitCast(DU(), q)));
}

// ---- Blocks of 32. block() writes one block of F::kRows rows.

template <WeightType kType>
struct Format;

struct OfLanes {
  static constexpr size_t kRows = kLanes;
};

// Calls to_out(bytes with four weights' nibbles, the first weight's number).
template <class ToOut>
HWY_INLINE void for_nibbles(const Rows& row, size_t at, const ToOut& to_out) {
  const Words q = words_at(row, at);
  for (size_t c = 0; c < 4; ++c) {
    to_out(low(q.v[c]), 4 * c);
    to_out(high(q.v[c]), 16 + 4 * c);
  }
}

template <>
struct Format<WeightType::kQ4_0> : OfLanes {
  static constexpr WeightBlock kBlock = {32, 18};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const VF scale = times(lower_half(head_at(row, at).v[0]), kUnit);
    out.part(0, 32, scale);
    for_nibbles(row, at + 2, [&](V8 q, size_t i) HWY_ATTR { out.put(i, minus(q, 8), scale); });
  }
};

template <>
struct Format<WeightType::kQ4_1> : OfLanes {
  static constexpr WeightBlock kBlock = {32, 20};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const Words head = head_at(row, at);
    const VF scale = times(lower_half(head.v[0]), kUnit), offset = upper_half(head.v[0]);
    out.part(0, 32, scale, offset);
    for_nibbles(row, at + 4, [&](V8 q, size_t i) HWY_ATTR { out.put(i, q, scale, offset); });
  }
};

// Where the fifth bits of four weights are set, the first of which is number i of the block.
HWY_INLINE auto fifth_set(V8 bits, size_t i) {
  alignas(16) static constexpr uint8_t kByte[16] = {0, 0, 0, 0, 4,  4,  4,  4,
                                                    8, 8, 8, 8, 12, 12, 12, 12};
  alignas(16) static constexpr uint8_t kBit[2][16] = {
      {1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8},
      {16, 32, 64, 128, 16, 32, 64, 128, 16, 32, 64, 128, 16, 32, 64, 128}};
  const DU8 d;
  const V8 from = hn::Add(hn::LoadDup128(d, kByte), hn::Set(d, static_cast<uint8_t>(i / 8)));
  return hn::TestBit(hn::TableLookupBytes(bits, from), hn::LoadDup128(d, kBit[i / 4 % 2]));
}

template <>
struct Format<WeightType::kQ5_0> : OfLanes {
  static constexpr WeightBlock kBlock = {32, 22};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const VF scale = times(lower_half(head_at(row, at).v[0]), kUnit);
    const V8 fifth = head_at(row, at + 2).v[0];
    out.part(0, 32, scale);
    for_nibbles(row, at + 6, [&](V8 q, size_t i) HWY_ATTR {
      const V8 minus_16 = hn::Or(q, hn::Set(DU8(), 0xF0));
      out.put(i, hn::IfThenElse(fifth_set(fifth, i), q, minus_16), scale);
    });
  }
};

template <>
struct Format<WeightType::kQ5_1> : OfLanes {
  static constexpr WeightBlock kBlock = {32, 24};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const Words head = head_at(row, at);
    const VF scale = times(lower_half(head.v[0]), kUnit), offset = upper_half(head.v[0]);
    const V8 fifth = head.v[1];
    out.part(0, 32, scale, offset);
    for_nibbles(row, at + 8, [&](V8 q, size_t i) HWY_ATTR {
      const V8 plus_16 = hn::Or(q, hn::Set(DU8(), 16));
      out.put(i, hn::IfThenElse(fifth_set(fifth, i), plus_16, q), scale, offset);
    });
  }
};

template <>
struct Format<WeightType::kQ8_0> : OfLanes {
  static constexpr WeightBlock kBlock = {32, 34};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const VF scale = times(lower_half(head_at(row, at).v[0]), kUnit);
    out.part(0, 32, scale);
    for (size_t i = 0; i < 32; i += 16) {
      const Words q = words_at(row, at + 2 + i);
      for (size_t c = 0; c < 4; ++c) out.put(i + 4 * c, q.v[c], scale);
    }
  }
};

template <>
struct Format<WeightType::kIq4Nl> : OfLanes {
  static constexpr WeightBlock kBlock = {32, 18};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    alignas(16) static constexpr int8_t kValue[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};
    const V8 values = hn::BitCast(DU8(), hn::LoadDup128(hn::RebindToSigned<DU8>(), kValue));
    const VF scale = times(lower_half(head_at(row, at).v[0]), kUnit);
    out.part(0, 32, scale);
    for_nibbles(row, at + 2, [&](V8 q, size_t i) HWY_ATTR {
      out.put(i, hn::TableLookupBytes(values, q), scale);
    });
  }
};

// ---- Blocks of 256, in sub-blocks of 16 or 32 with a scale each.

// scale: times kUnit, which the quants' scales are to be; so are these bytes' own.
struct SubBlocks {
  alignas(64) float scale[16 * kLanes];
  alignas(64) float offset[16 * kLanes];

  HWY_INLINE VF scale_of(size_t j) const { return hn::Load(DF(), scale + j * kLanes); }
  HWY_INLINE VF offset_of(size_t j) const { return hn::Load(DF(), offset + j * kLanes); }

  // The first n of them, n_value weights each.
  template <class Out>
  HWY_INLINE void give_scales(size_t n, size_t n_value, const Out& out) const {
    for (size_t j = 0; j < n; ++j) out.part(j * n_value, n_value, scale_of(j));
  }
  template <class Out>
  HWY_INLINE void give(size_t n, size_t n_value, const Out& out) const {
    for (size_t j = 0; j < n; ++j) out.part(j * n_value, n_value, scale_of(j), offset_of(j));
  }
  template <class Out>
  HWY_INLINE void put(size_t i, V8 q, size_t j, const Out& out) const {
    out.put(i, q, scale_of(j), offset_of(j));
  }
};

HWY_INLINE VF scale_factor(VF d) { return times(d, kUnit * kUnit); }
HWY_INLINE VF offset_factor(VF d) { return times(d, -kUnit); }

template <>
struct Format<WeightType::kQ2_K> : OfLanes {
  static constexpr WeightBlock kBlock = {256, 84};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const V8 both = head_at(row, at + 68).v[3];
    const VF d = scale_factor(lower_half(both)), d_offset = offset_factor(upper_half(both));
    SubBlocks sub;
    const Words packed = head_at(row, at);
    for (size_t c = 0; c < 4; ++c) {
      store(low(packed.v[c]), d, sub.scale + 4 * c * kLanes, kLanes);
      store(high(packed.v[c]), d_offset, sub.offset + 4 * c * kLanes, kLanes);
    }
    sub.give(16, 16, out);
    for (size_t i = 0; i < 64; i += 16) {
      const size_t j = i / 32 * 8 + i / 16 % 2;
      const Words q = words_at(row, at + 16 + i);
      for (size_t c = 0; c < 4; ++c) {
        const size_t to = 16 * j + 4 * c;
        sub.put(to, masked(q.v[c], 3), j, out);
        sub.put(to + 32, masked(right<2>(q.v[c]), 3), j + 2, out);
        sub.put(to + 64, masked(right<4>(q.v[c]), 3), j + 4, out);
        sub.put(to + 96, masked(right<6>(q.v[c]), 3), j + 6, out);
      }
    }
  }
};

template <>
struct Format<WeightType::kQ3_K> : OfLanes {
  static constexpr WeightBlock kBlock = {256, 110};

  static HWY_INLINE SubBlocks scales(const Rows& row, size_t at) {
    const VF d = scale_factor(upper_half(head_at(row, at + 94).v[3]));
    const Words packed = head_at(row, at + 92);
    const V8 w0 = packed.v[1], w1 = packed.v[2], upper = packed.v[3];
    const V8 s0 = hn::Or(low(w0), masked(left<4>(upper), 48));
    const V8 s1 = hn::Or(low(w1), masked(left<2>(upper), 48));
    const V8 s2 = hn::Or(high(w0), masked(upper, 48));
    const V8 s3 = hn::Or(high(w1), masked(right<2>(upper), 48));
    SubBlocks sub;
    store(minus(s0, 32), d, sub.scale, kLanes);
    store(minus(s1, 32), d, sub.scale + 4 * kLanes, kLanes);
    store(minus(s2, 32), d, sub.scale + 8 * kLanes, kLanes);
    store(minus(s3, 32), d, sub.scale + 12 * kLanes, kLanes);
    return sub;
  }

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const SubBlocks sub = scales(row, at);
    sub.give_scales(16, 16, out);
    for (size_t i = 0; i < 64; i += 16) {
      const size_t j = i / 32 * 8 + i / 16 % 2;
      const Words q = words_at(row, at + 32 + i), third = words_at(row, at + i % 32);
      for (size_t c = 0; c < 4; ++c) {
        const V8 v = q.v[c];
        const V8 t = i < 32 ? third.v[c] : right<4>(third.v[c]);
        const V8 q0 = hn::Or(masked(v, 3), masked(left<2>(t), 4));
        const V8 q1 = hn::Or(masked(right<2>(v), 3), masked(left<1>(t), 4));
        const V8 q2 = hn::Or(masked(right<4>(v), 3), masked(t, 4));
        const V8 q3 = hn::Or(masked(right<6>(v), 3), masked(right<1>(t), 4));
        const size_t to = 16 * j + 4 * c;
        out.put(to, minus(q0, 4), sub.scale_of(j));
        out.put(to + 32, minus(q1, 4), sub.scale_of(j + 2));
        out.put(to + 64, minus(q2, 4), sub.scale_of(j + 4));
        out.put(to + 96, minus(q3, 4), sub.scale_of(j + 6));
      }
    }
  }
};

// The head of Q4_K and Q5_K.
HWY_INLINE SubBlocks sub_blocks_at(const Rows& row, size_t at) {
  const Words head = head_at(row, at);
  const VF d = scale_factor(lower_half(head.v[0]));
  const VF d_offset = offset_factor(upper_half(head.v[0]));
  SubBlocks sub;
  store(masked(head.v[1], 63), d, sub.scale, kLanes);
  store(masked(head.v[2], 63), d_offset, sub.offset, kLanes);
  const V8 scales = hn::Or(low(head.v[3]), masked(right<2>(head.v[1]), 48));
  const V8 offsets = hn::Or(high(head.v[3]), masked(right<2>(head.v[2]), 48));
  store(scales, d, sub.scale + 4 * kLanes, kLanes);
  store(offsets, d_offset, sub.offset + 4 * kLanes, kLanes);
  return sub;
}

template <>
struct Format<WeightType::kQ4_K> : OfLanes {
  static constexpr WeightBlock kBlock = {256, 144};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const SubBlocks sub = sub_blocks_at(row, at);
    sub.give(8, 32, out);
    for (size_t i = 0; i < 128; i += 16) {
      const size_t j = i / 32 * 2;
      const Words q = words_at(row, at + 16 + i);
      for (size_t c = 0; c < 4; ++c) {
        const size_t to = 32 * j + i % 32 + 4 * c;
        sub.put(to, low(q.v[c]), j, out);
        sub.put(to + 32, high(q.v[c]), j + 1, out);
      }
    }
  }
};

template <>
struct Format<WeightType::kQ5_K> : OfLanes {
  static constexpr WeightBlock kBlock = {256, 176};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const SubBlocks sub = sub_blocks_at(row, at);
    sub.give(8, 32, out);
    for (size_t i = 0; i < 32; i += 16) {
      Words fifth = words_at(row, at + 16 + i);
      for (size_t j = 0; j < 8; j += 2) {
        const Words q = words_at(row, at + 48 + 16 * j + i);
        for (size_t c = 0; c < 4; ++c) {
          const V8 q0 = hn::Or(low(q.v[c]), masked(left<4>(fifth.v[c]), 16));
          const V8 q1 = hn::Or(high(q.v[c]), masked(left<3>(fifth.v[c]), 16));
          const size_t to = 32 * j + i + 4 * c;
          sub.put(to, q0, j, out);
          sub.put(to + 32, q1, j + 1, out);
          fifth.v[c] = right<2>(fifth.v[c]);
        }
      }
    }
  }
};

template <>
struct Format<WeightType::kQ6_K> : OfLanes {
  static constexpr WeightBlock kBlock = {256, 210};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const VF d = scale_factor(upper_half(head_at(row, at + 194).v[3]));
    SubBlocks sub;
    const Words scales = head_at(row, at + 192);
    for (size_t c = 0; c < 4; ++c) store(scales.v[c], d, sub.scale + 4 * c * kLanes, kLanes);
    sub.give_scales(16, 16, out);
    for (size_t i = 0; i < 64; i += 16) {
      const size_t j = i / 32 * 8 + i / 16 % 2;
      const size_t nibbles = at + i / 32 * 64 + i % 32;
      const Words a = words_at(row, nibbles), b = words_at(row, nibbles + 32);
      const Words upper = words_at(row, at + 128 + i);
      for (size_t c = 0; c < 4; ++c) {
        const V8 u = upper.v[c];
        const V8 q0 = hn::Or(low(a.v[c]), masked(left<4>(u), 48));
        const V8 q1 = hn::Or(low(b.v[c]), masked(left<2>(u), 48));
        const V8 q2 = hn::Or(high(a.v[c]), masked(u, 48));
        const V8 q3 = hn::Or(high(b.v[c]), masked(right<2>(u), 48));
        const size_t to = 16 * j + 4 * c;
        out.put(to, minus(q0, 32), sub.scale_of(j));
        out.put(to + 32, minus(q1, 32), sub.scale_of(j + 2));
        out.put(to + 64, minus(q2, 32), sub.scale_of(j + 4));
        out.put(to + 96, minus(q3, 32), sub.scale_of(j + 6));
      }
    }
  }
};

// ---- Unquantised

template <>
struct Format<WeightType::kF32> : OfLanes {
  static constexpr WeightBlock kBlock = {4, 16};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const Words q = words_at(row, at);
    for (size_t c = 0; c < 4; ++c) {
      hn::StoreU(hn::BitCast(DF(), q.v[c]), DF(), out.at(c));
    }
  }
};

template <>
struct Format<WeightType::kBf16> : OfLanes {
  static constexpr WeightBlock kBlock = {8, 16};

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    const Words q = words_at(row, at);
    for (size_t c = 0; c < 4; ++c) {
      const VU both = hn::BitCast(DU(), q.v[c]);
      hn::StoreU(hn::BitCast(DF(), hn::ShiftLeft<16>(both)), DF(), out.at(2 * c));
      hn::StoreU(hn::BitCast(DF(), hn::And(both, hn::Set(DU(), 0xFFFF0000))), DF(),
                 out.at(2 * c + 1));
    }
  }
};

// An 8 × 8 transposition of 16-bit values, of which a vector of floats takes half a vector.
template <>
struct Format<WeightType::kF16> {
  static constexpr size_t kRows = std::min(kStrip, 2 * kLanes);
  static constexpr WeightBlock kBlock = {kLanes == 16 ? 16 : 8, kLanes == 16 ? 32 : 16};
  using D16 = hn::Repartition<uint16_t, DF>;
  using V16 = hn::VFromD<D16>;

  // Blocks: rows 0 and 8 or, of a single one, row 0; of four the second two are the next 8 weights.
  static HWY_INLINE V16 load(const Rows& row, size_t at) {
    const DU8 d8;
    if constexpr (kLanes == 16) {
      const hn::Half<DU8> half;
      return hn::BitCast(
          D16(), hn::Combine(d8, blocks_at<8>(half, row, at + 16), blocks_at<8>(half, row, at)));
    } else {
      return hn::BitCast(D16(), blocks_at<8>(d8, row, at));
    }
  }

  template <class T>
  static HWY_INLINE void interleave(const V16& a, const V16& b, V16& lower, V16& upper) {
    const hn::Repartition<T, D16> d;
    lower = hn::BitCast(D16(), hn::InterleaveLower(d, hn::BitCast(d, a), hn::BitCast(d, b)));
    upper = hn::BitCast(D16(), hn::InterleaveUpper(d, hn::BitCast(d, a), hn::BitCast(d, b)));
  }

  static HWY_INLINE void store(V16 v, float* out, size_t stride) {
    const DF d;
    const hn::Rebind<hwy::float16_t, DF> dh;
    const hn::Half<D16> half;
    const size_t upper = kLanes == 16 ? 8 * stride : kLanes;
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(dh, hn::LowerHalf(half, v))), d, out);
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(dh, hn::UpperHalf(half, v))), d, out + upper);
  }

  template <class Out>
  static HWY_INLINE void block(const Rows& row, size_t at, const Out& out) {
    for (size_t r = 0; r < kRows; ++r) prefetch(row, r, at);
    V16 a[8], b[8];
    for (size_t r = 0; r < 8; ++r) a[r] = load(row + r, at);
    // b: weights 0-3 of rows 0-1, 2-3, 4-5, 6-7; then weights 4-7
    for (size_t r = 0; r < 4; ++r) interleave<uint16_t>(a[2 * r], a[2 * r + 1], b[r], b[4 + r]);
    // a: weights 0-1, 2-3, 4-5, 6-7 of rows 0-3; then of rows 4-7
    for (size_t i = 0; i < 2; ++i) {
      interleave<uint32_t>(b[4 * i], b[4 * i + 1], a[2 * i], a[2 * i + 1]);
      interleave<uint32_t>(b[4 * i + 2], b[4 * i + 3], a[4 + 2 * i], a[5 + 2 * i]);
    }
    for (size_t i = 0; i < 4; ++i) {
      interleave<uint64_t>(a[i], a[4 + i], b[2 * i], b[2 * i + 1]);
    }
    for (size_t i = 0; i < 8; ++i) store(b[i], out.at(i), out.stride);
  }
};

#endif  // HWY_TARGET != HWY_SCALAR

template <WeightType kType>
void Strip(const std::byte* const* rows, std::ptrdiff_t next, size_t n, float* out, size_t stride) {
  const Rows row = {rows, next};
  size_t at = 0;
#if HWY_TARGET != HWY_SCALAR
  using F = Format<kType>;
  FloatOut to{out, stride};
  for (; n >= F::kBlock.n_value; n -= F::kBlock.n_value, at += F::kBlock.n_byte) {
    for (size_t r = 0; r < kStrip; r += F::kRows) F::block(row + r, at, to.of_row(r));
    to.skip(F::kBlock.n_value);
  }
  out = to.out;
#endif
  if (n != 0) by_row(kType, row, at, n, out, stride);
}

#if HWY_TARGET != HWY_SCALAR
template <WeightType kType>
void Levels(const std::byte* const* rows, std::ptrdiff_t next, size_t n, const StripLevels& out) {
  const Rows row = {rows, next};
  using F = Format<kType>;
  LevelOut to{out};
  for (size_t i = 0, at = 0; i < n; i += F::kBlock.n_value, at += F::kBlock.n_byte) {
    for (size_t r = 0; r < kStrip; r += F::kRows) F::block(row + r, at, to.of_row(r));
    to.skip(F::kBlock.n_value);
  }
}
#endif

}  // namespace

using StripFunction = void (*)(const std::byte* const* rows, std::ptrdiff_t next, size_t n,
                               float* out, size_t stride);
using LevelsFunction = void (*)(const std::byte* const* rows, std::ptrdiff_t next, size_t n,
                                const StripLevels& out);

StripFunction StripOf(WeightType type) {
  switch (type) {
    case WeightType::kF32: return Strip<WeightType::kF32>;
    case WeightType::kF16: return Strip<WeightType::kF16>;
    case WeightType::kBf16: return Strip<WeightType::kBf16>;
    case WeightType::kQ4_0: return Strip<WeightType::kQ4_0>;
    case WeightType::kQ4_1: return Strip<WeightType::kQ4_1>;
    case WeightType::kQ5_0: return Strip<WeightType::kQ5_0>;
    case WeightType::kQ5_1: return Strip<WeightType::kQ5_1>;
    case WeightType::kQ8_0: return Strip<WeightType::kQ8_0>;
    case WeightType::kQ2_K: return Strip<WeightType::kQ2_K>;
    case WeightType::kQ3_K: return Strip<WeightType::kQ3_K>;
    case WeightType::kQ4_K: return Strip<WeightType::kQ4_K>;
    case WeightType::kQ5_K: return Strip<WeightType::kQ5_K>;
    case WeightType::kQ6_K: return Strip<WeightType::kQ6_K>;
    case WeightType::kIq4Nl: return Strip<WeightType::kIq4Nl>;
  }
  return nullptr;
}

LevelsFunction LevelsOf([[maybe_unused]] WeightType type) {
#if HWY_TARGET != HWY_SCALAR
  switch (type) {
    case WeightType::kQ4_0: return Levels<WeightType::kQ4_0>;
    case WeightType::kQ4_1: return Levels<WeightType::kQ4_1>;
    case WeightType::kQ5_0: return Levels<WeightType::kQ5_0>;
    case WeightType::kQ5_1: return Levels<WeightType::kQ5_1>;
    case WeightType::kQ8_0: return Levels<WeightType::kQ8_0>;
    case WeightType::kQ2_K: return Levels<WeightType::kQ2_K>;
    case WeightType::kQ3_K: return Levels<WeightType::kQ3_K>;
    case WeightType::kQ4_K: return Levels<WeightType::kQ4_K>;
    case WeightType::kQ5_K: return Levels<WeightType::kQ5_K>;
    case WeightType::kQ6_K: return Levels<WeightType::kQ6_K>;
    case WeightType::kIq4Nl: return Levels<WeightType::kIq4Nl>;
    default: return nullptr;
  }
#else
  return nullptr;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
HWY_EXPORT(StripOf);
HWY_EXPORT(LevelsOf);
namespace {

// Where each row begins; for those that do not exist others stand. At least one exists.
struct RowStarts {
  explicit RowStarts(const StripRows& rows) {
    for (size_t r = 0; r < kStrip; ++r) {
      row[r] = rows.first + std::clamp(r, rows.begin, rows.end - 1) * rows.stride;
    }
  }
  const std::byte* row[kStrip];
};

// Of n vectors of a value for each row, those of rows that do not exist.
void clear_missing(const StripRows& rows, size_t n, float* out, size_t out_stride) {
  const bool any = rows.begin < rows.end;
  const size_t n_before = any ? rows.begin : kStrip, n_after = any ? kStrip - rows.end : 0;
  if (n_before + n_after == 0) return;
  for (size_t i = 0; i < n; ++i) {
    std::fill_n(out + i * out_stride, n_before, 0.0f);
    std::fill_n(out + i * out_stride + kStrip - n_after, n_after, 0.0f);
  }
}

}  // namespace

void dequantize_strip(const StripRows& rows, size_t n, float* out, size_t out_stride) {
  const auto strip = HWY_DYNAMIC_DISPATCH(StripOf)(rows.type);
  HS_CHECK(strip != nullptr, "weight type");
  if (rows.begin < rows.end) strip(RowStarts(rows).row, rows.next, n, out, out_stride);
  clear_missing(rows, n, out, out_stride);
}

bool has_levels(WeightType type) { return HWY_DYNAMIC_DISPATCH(LevelsOf)(type) != nullptr; }

void strip_levels(const StripRows& rows, size_t n, const StripLevels& out) {
  const auto levels = HWY_DYNAMIC_DISPATCH(LevelsOf)(rows.type);
  HS_CHECK(levels != nullptr, "weight type with levels");
  if (rows.begin < rows.end) {
    levels(RowStarts(rows).row, rows.next, n, out);
  } else {
    std::memset(out.level, 0, n * kStrip);
  }
  clear_missing(rows, n / kScaleSpan, out.scale, kStrip);
  clear_missing(rows, n / kScaleSpan, out.offset, kStrip);
}

}  // namespace headstart::kernels
#endif  // HWY_ONCE
