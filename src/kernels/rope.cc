#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/rounding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headstart::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DH = hn::Rebind<hwy::float16_t, DF>;

const hwy::float16_t* as_f16(const Half* p) { return reinterpret_cast<const hwy::float16_t*>(p); }
hwy::float16_t* as_f16(Half* p) { return reinterpret_cast<hwy::float16_t*>(p); }

float scalar_to_float(Half h) {
  return hn::GetLane(hn::PromoteTo(hn::CappedTag<float, 1>(),
                                   hn::Load(hn::CappedTag<hwy::float16_t, 1>(), as_f16(&h))));
}

Half scalar_to_half(float f) {
  Half h;
  hn::Store(hn::DemoteTo(hn::CappedTag<hwy::float16_t, 1>(), hn::Set(hn::CappedTag<float, 1>(), f)),
            hn::CappedTag<hwy::float16_t, 1>(), as_f16(&h));
  return h;
}

// One pair. Both orders of rounding are fixed (multiply, then fused multiply-add), so that the
// vector loop and its tail agree on every target that has FMA.
void rotate_pair(const Half* in0, const Half* in1, float c, float s, Half* out0, Half* out1) {
  const float x0 = scalar_to_float(*in0), x1 = scalar_to_float(*in1);
  *out0 = scalar_to_half(std::fma(x0, c, -(x1 * s)));
  *out1 = scalar_to_half(std::fma(x0, s, x1 * c));
}

void RotateHalves(const float* cos, const float* sin, size_t n_pair, const Half* in, Half* out) {
  const DF df;
  const DH dh;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n_pair; i += lanes) {
    const auto x0 = hn::PromoteTo(df, hn::LoadU(dh, as_f16(in + i)));
    const auto x1 = hn::PromoteTo(df, hn::LoadU(dh, as_f16(in + n_pair + i)));
    const auto c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
    hn::StoreU(hn::DemoteTo(dh, hn::MulSub(x0, c, hn::Mul(x1, s))), dh, as_f16(out + i));
    hn::StoreU(hn::DemoteTo(dh, hn::MulAdd(x0, s, hn::Mul(x1, c))), dh, as_f16(out + n_pair + i));
  }
  for (; i < n_pair; ++i)
    rotate_pair(in + i, in + n_pair + i, cos[i], sin[i], out + i, out + n_pair + i);
}

void RotateInterleaved(const float* cos, const float* sin, size_t n_pair, const Half* in,
                       Half* out) {
  const DF df;
  const DH dh;
  const hn::Rebind<uint16_t, DF> du;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n_pair; i += lanes) {
    hn::VFromD<decltype(du)> h0, h1;
    hn::LoadInterleaved2(du, in + 2 * i, h0, h1);
    const auto x0 = hn::PromoteTo(df, hn::BitCast(dh, h0)),
               x1 = hn::PromoteTo(df, hn::BitCast(dh, h1));
    const auto c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
    const auto y0 = hn::DemoteTo(dh, hn::MulSub(x0, c, hn::Mul(x1, s)));
    const auto y1 = hn::DemoteTo(dh, hn::MulAdd(x0, s, hn::Mul(x1, c)));
    hn::StoreInterleaved2(hn::BitCast(du, y0), hn::BitCast(du, y1), du, out + 2 * i);
  }
  for (; i < n_pair; ++i)
    rotate_pair(in + 2 * i, in + 2 * i + 1, cos[i], sin[i], out + 2 * i, out + 2 * i + 1);
}

// f32 pairs in place. With the same order of rounding as above.
void RotateFloats(RopePairs pairs, const float* cos, const float* sin, size_t n_pair, float* x) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n_pair; i += lanes) {
    const auto c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
    hn::VFromD<DF> x0, x1;
    if (pairs == RopePairs::kHalves) {
      x0 = hn::LoadU(df, x + i);
      x1 = hn::LoadU(df, x + n_pair + i);
    } else {
      hn::LoadInterleaved2(df, x + 2 * i, x0, x1);
    }
    const auto y0 = hn::MulSub(x0, c, hn::Mul(x1, s)), y1 = hn::MulAdd(x0, s, hn::Mul(x1, c));
    if (pairs == RopePairs::kHalves) {
      hn::StoreU(y0, df, x + i);
      hn::StoreU(y1, df, x + n_pair + i);
    } else {
      hn::StoreInterleaved2(y0, y1, df, x + 2 * i);
    }
  }
  for (; i < n_pair; ++i) {
    float& x0 = pairs == RopePairs::kHalves ? x[i] : x[2 * i];
    float& x1 = pairs == RopePairs::kHalves ? x[n_pair + i] : x[2 * i + 1];
    const float y0 = std::fma(x0, cos[i], -(x1 * sin[i])), y1 = std::fma(x0, sin[i], x1 * cos[i]);
    x0 = y0;
    x1 = y1;
  }
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

void ToHalf(const float* in, size_t n, Half* out) {
  const DF df;
  const DH dh;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(df, in + i)), dh, as_f16(out + i));
  for (; i < n; ++i) out[i] = scalar_to_half(in[i]);
}

void ToFloat(const Half* in, size_t n, float* out) {
  const DF df;
  const DH dh;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::PromoteTo(df, hn::LoadU(dh, as_f16(in + i))), df, out + i);
  for (; i < n; ++i) out[i] = scalar_to_float(in[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace headstart::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headstart::kernels {
HWY_EXPORT(RotateHalves);
HWY_EXPORT(RotateInterleaved);
HWY_EXPORT(RotateFloats);
HWY_EXPORT(TargetName);
HWY_EXPORT(ToHalf);
HWY_EXPORT(ToFloat);

namespace {

// The dimension at which the position turns `n_turn` times within the original context.
float turn_dim(const RopeConfig& c, float n_turn) {
  return static_cast<float>(c.n_rot) *
         std::log(static_cast<float>(c.n_ctx_orig) / (n_turn * 2 * std::numbers::pi_v<float>)) /
         (2 * std::log(c.freq_base));
}

// YaRN's share of the unscaled angle for each pair: high frequencies keep their angle, low ones
// are interpolated, a ramp between.
std::vector<float> yarn_mix(const RopeConfig& c) {
  std::vector<float> mix(c.n_rot / 2, 0.0f);
  if (c.ext_factor == 0.0f) return mix;
  const float low = std::max(0.0f, std::floor(turn_dim(c, c.beta_fast)));
  const float high = std::min(static_cast<float>(c.n_rot) - 1, std::ceil(turn_dim(c, c.beta_slow)));
  for (uint32_t i = 0; i < mix.size(); ++i) {
    const float y = (static_cast<float>(i) - low) / std::max(0.001f, high - low);
    mix[i] = (1 - std::min(1.0f, std::max(0.0f, y))) * c.ext_factor;
  }
  return mix;
}

}  // namespace

RopeTable::RopeTable(RopeConfig config) : config_(std::move(config)) {
  HS_CHECK(config_.n_rot % 2 == 0 && config_.n_rot <= config_.d_head, "rope dimensions");
  HS_CHECK(config_.freq_factors.empty() || config_.freq_factors.size() == config_.n_rot / 2,
           "rope frequency factors");
  blocks_.resize(kPositionsMax / kBlock);
}

void RopeTable::reserve(uint32_t n_pos) {
  if (n_pos <= this->n_pos()) return;
  HS_CHECK(n_pos <= kPositionsMax, "rope positions");
  const std::lock_guard lock(reserving_);
  for (uint32_t first = this->n_pos(); first < n_pos; first += kBlock) {
    auto block = std::make_unique_for_overwrite<float[]>(size_t{kBlock} * config_.n_rot);
    fill_block(first, block.get());
    blocks_[first / kBlock] = std::move(block);
    n_pos_.store(first + kBlock, std::memory_order_release);
  }
}

void RopeTable::fill_block(uint32_t pos_first, float* out) const {
  const uint32_t n_pair = config_.n_rot / 2;
  const float theta_scale =
      std::pow(config_.freq_base, -2.0f / static_cast<float>(std::max(1u, config_.n_rot)));
  const std::vector<float> mix = yarn_mix(config_);
  float magnitude = config_.attn_factor;
  if (config_.ext_factor != 0.0f) magnitude *= 1.0f + 0.1f * std::log(1.0f / config_.freq_scale);
  for (uint32_t row = 0; row < kBlock; ++row) {
    float* cos_row = out + size_t{row} * config_.n_rot;
    float* sin_row = cos_row + n_pair;
    // Repeated multiplication, as ggml does it: the angles then agree with those of Q to the bit.
    float theta = static_cast<float>(pos_first + row);
    for (uint32_t i = 0; i < n_pair; ++i) {
      const float factor = config_.freq_factors.empty() ? 1.0f : config_.freq_factors[i];
      const float scaled = config_.freq_scale * (theta / factor);
      const float angle = mix[i] == 0.0f ? scaled : scaled * (1 - mix[i]) + theta / factor * mix[i];
      cos_row[i] = std::cos(angle) * magnitude;
      sin_row[i] = std::sin(angle) * magnitude;
      theta *= theta_scale;
    }
  }
}

void rotate_token(const RopeTable& table, uint32_t pos, uint32_t n_head, const Half* in,
                  Half* out) {
  HS_CHECK(pos < table.n_pos(), "position beyond the rope table");
  const RopeConfig& c = table.config();
  const size_t n_pair = c.n_rot / 2;
  for (uint32_t h = 0; h < n_head; ++h, in += c.d_head, out += c.d_head) {
    if (c.pairs == RopePairs::kHalves) {
      HWY_DYNAMIC_DISPATCH(RotateHalves)(table.cos_of(pos), table.sin_of(pos), n_pair, in, out);
    } else {
      HWY_DYNAMIC_DISPATCH(RotateInterleaved)
      (table.cos_of(pos), table.sin_of(pos), n_pair, in, out);
    }
    if (in != out) std::copy(in + c.n_rot, in + c.d_head, out + c.n_rot);
  }
}

void rotate_token(const RopeTable& table, uint32_t pos, uint32_t n_head, float* x) {
  HS_CHECK(pos < table.n_pos(), "position beyond the rope table");
  const RopeConfig& c = table.config();
  for (uint32_t h = 0; h < n_head; ++h, x += c.d_head) {
    HWY_DYNAMIC_DISPATCH(RotateFloats)
    (c.pairs, table.cos_of(pos), table.sin_of(pos), c.n_rot / 2, x);
  }
}

const char* target_name() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

void to_half(std::span<const float> in, Half* out) {
  HWY_DYNAMIC_DISPATCH(ToHalf)(in.data(), in.size(), out);
}

void to_float(std::span<const Half> in, float* out) {
  HWY_DYNAMIC_DISPATCH(ToFloat)(in.data(), in.size(), out);
}

}  // namespace headstart::kernels
#endif  // HWY_ONCE
