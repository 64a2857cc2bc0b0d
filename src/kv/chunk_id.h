// kv/chunk_id.h: how a chunk of K,V is named.
//
// A name covers everything that the bytes depend on; a model's or a file's name never counts.
//
//   fingerprint   the model: GGUF bytes and what changes K,V (model/fingerprint.h)
//   numeric       how it was computed: executor, kernels, instruction set, live KV type
//   prefix key    SHA-256(parent's prefix key ‖ token ids); the root is made of fingerprint and
//   salt content key   SHA-256(fingerprint ‖ salt ‖ token ids): position-free, for reuse with
//   repair
//
// The numeric identity stands beside the prefix key instead of inside its root, so that one walk
// over the children of a key finds the chunks of every identity
// (docs/decisions/0003-identity-beside-the-key.md).
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/token.h"

namespace headstart::kv {

using headstart::Token;

inline constexpr uint32_t kChunkTokensMax = 144;

// A salt keeps those who share a store apart: another salt, other keys.
inline constexpr size_t kSaltBytesMax = 256;

Digest prefix_root(const Digest& fingerprint, std::string_view salt);
Digest extend_prefix(const Digest& parent, std::span<const Token> tokens);
Digest content_key(const Digest& fingerprint, std::string_view salt, std::span<const Token> tokens);

struct ChunkId {
  Digest prefix_key;
  Digest numeric;
  auto operator<=>(const ChunkId&) const = default;
  // 64 + 1 + 16 characters: the prefix key, '-', the first 8 bytes of the numeric identity.
  std::string to_string() const;
};

struct ChunkIdHash {
  size_t operator()(const ChunkId& id) const {
    return DigestHash()(id.prefix_key) ^ DigestHash()(id.numeric);
  }
};

}  // namespace headstart::kv
