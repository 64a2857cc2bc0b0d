// base/hash.h: SHA-256 for identity and HMAC for secrets (OpenSSL), XXH3-64 for damage (xxHash).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace headstart {

using Digest = std::array<uint8_t, 32>;

// Feeds bytes, then finish() once. Not thread-safe; one owner.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text);
  Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// HMAC-SHA256: a digest that nobody can compute without `key`.
Digest hmac_sha256(std::string_view key, std::string_view text);
// Equal digests, in a time that does not depend on where they differ.
bool equal_in_constant_time(const Digest& a, const Digest& b);

std::string to_hex(std::span<const uint8_t> bytes);
// Errors: kInvalidArgument unless `hex` is exactly 64 lower-case hexadecimal digits.
Result<Digest> digest_from_hex(std::string_view hex);

uint64_t checksum(std::span<const std::byte> bytes);  // XXH3-64

struct DigestHash {
  size_t operator()(const Digest& d) const {
    size_t h;
    static_assert(sizeof(h) <= sizeof(Digest));
    __builtin_memcpy(&h, d.data(), sizeof(h));  // a digest is already uniform
    return h;
  }
};

}  // namespace headstart
