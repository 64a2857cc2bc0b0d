// kernels/rope.h: rotates f16 K rows to their position, the same way in computing and in loading.
//
// The live cache holds f16(rope(f16(k))). That is exact only if one function rotates in both
// places: this one. Angles come from a RopeTable, made once for each position and model.
//
//   shapes   outermost first
//   threads  any at once
//   source   angle definition: ggml_rope_ext (frequency factors, linear and YaRN scaling)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace headstart::kernels {

using Half = uint16_t;  // IEEE 754 binary16, as bits

enum class RopePairs : uint8_t {
  kInterleaved,  // pairs (0,1), (2,3), …: llama
  kHalves,       // pairs (i, i + n_rot/2): NeoX; qwen2, qwen3, gemma3
};

struct RopeConfig {
  RopePairs pairs = RopePairs::kHalves;
  uint32_t d_head = 0;
  uint32_t n_rot = 0;  // leading dimensions that rotate; even, at most d_head
  float freq_base = 10000.0f;
  float freq_scale = 1.0f;
  float ext_factor = 0.0f;   // YaRN mix, 0 or 1
  float attn_factor = 1.0f;  // scales cos and sin
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  uint32_t n_ctx_orig = 0;  // context length that the model was trained with
  // [n_rot / 2], empty: all 1 (rope_freqs.weight of Llama 3)
  std::vector<float> freq_factors = {};

  bool operator==(const RopeConfig&) const = default;
};

// cos and sin for positions [0, n_pos), grown on demand. Positions lie in blocks that never move,
// so that some threads read while another reserves.
class RopeTable {
 public:
  static constexpr uint32_t kPositionsMax = 1u << 24;

  explicit RopeTable(RopeConfig config);
  // Makes positions below n_pos, at most kPositionsMax, available to this thread.
  void reserve(uint32_t n_pos);
  uint32_t n_pos() const { return n_pos_.load(std::memory_order_acquire); }
  const RopeConfig& config() const { return config_; }
  // pos is below what this thread has reserved.
  const float* cos_of(uint32_t pos) const {
    return blocks_[pos / kBlock].get() + size_t{pos % kBlock} * config_.n_rot;
  }
  const float* sin_of(uint32_t pos) const { return cos_of(pos) + config_.n_rot / 2; }

 private:
  static constexpr uint32_t kBlock = 1024;
  void fill_block(uint32_t pos_first, float* out) const;  // [kBlock, 2, n_rot / 2]

  RopeConfig config_;
  std::mutex reserving_;
  std::atomic<uint32_t> n_pos_ = 0;
  std::vector<std::unique_ptr<float[]>> blocks_;  // [kPositionsMax / kBlock]
};

// out[h] = f16(rope(in[h], pos)) for the n_head heads of one token. in and out may be the same.
void rotate_token(const RopeTable& table, uint32_t pos, uint32_t n_head, const Half* in, Half* out);

// The same for queries, which stay f32: x [n_head, d_head] in place.
void rotate_token(const RopeTable& table, uint32_t pos, uint32_t n_head, float* x);

// The instruction set that these functions run on, chosen at run time; part of numeric identity.
const char* target_name();

// f16 <-> f32, round to nearest even.
void to_half(std::span<const float> in, Half* out);
void to_float(std::span<const Half> in, float* out);

}  // namespace headstart::kernels
