// kv/live_kv.h: the K,V that attention reads, for one sequence.
//
// For each layer K and V, contiguous by token: [n_ctx, n_head_kv, d_head], f16 or q8_0, K after
// RoPE. The address space of the whole context is reserved at once, so rows never move and one
// thread may fill a layer while another computes with a different one; memory is taken by the
// pages that are written and given back by release().
//
//   units    bytes
//   threads  distinct rows may be written at once; the caller orders writes before reads
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/rope.h"
#include "kv/chunk_format.h"

namespace headstart::kv {

enum class LiveType : uint8_t { kF16, kQ8_0 };

// Errors: kInvalidArgument, listing what is supported.
Result<LiveType> live_type_from_name(std::string_view name);
std::string_view to_string(LiveType type);

class LiveKv {
 public:
  // Errors: kExhausted (address space), kUnsupported (q8_0 with a head size that is no multiple of
  // 32).
  static Result<std::unique_ptr<LiveKv>> open(const KvShape& shape, LiveType type_k,
                                              LiveType type_v, uint32_t n_ctx);
  ~LiveKv();
  LiveKv(const LiveKv&) = delete;
  LiveKv& operator=(const LiveKv&) = delete;

  const KvShape& shape() const { return shape_; }
  LiveType type(Part part) const { return types_[static_cast<size_t>(part)]; }
  uint32_t n_ctx() const { return n_ctx_; }
  size_t row_bytes(Part part) const { return row_bytes_[static_cast<size_t>(part)]; }
  std::byte* row(uint32_t layer, Part part, uint32_t pos) const;
  std::span<std::byte> mapping() const { return {base_, mapped_bytes_}; }
  // Bytes that n_token tokens take.
  uint64_t bytes_for(uint32_t n_token) const;

  // Writes one token's values, f16 [n_head_kv, d_head], K already rotated.
  void write(uint32_t layer, Part part, uint32_t pos, std::span<const Half> values);
  // Gives the memory of tokens from `n_token` on back to the system; their K,V are gone.
  void release(uint32_t n_token);

 private:
  LiveKv() = default;
  KvShape shape_;
  LiveType types_[2] = {};
  size_t row_bytes_[2] = {};
  size_t region_bytes_[2] = {};  // of one layer, whole pages
  uint32_t n_ctx_ = 0;
  std::byte* base_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace headstart::kv
