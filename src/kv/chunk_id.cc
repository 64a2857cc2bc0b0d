#include "kv/chunk_id.h"

#include <bit>

namespace headstart::kv {
namespace {

// Tokens and lengths are hashed as they lie in memory.
static_assert(std::endian::native == std::endian::little, "keys are defined over little-endian");

// Length first, so that no salt can be mistaken for another salt and the tokens after it.
void add_salt(Sha256& hash, std::string_view salt) {
  uint64_t size = salt.size();
  hash.update(std::as_bytes(std::span(&size, 1))).update(salt);
}

}  // namespace

Digest prefix_root(const Digest& fingerprint, std::string_view salt) {
  Sha256 hash;
  hash.update("headstart prefix 1").update(std::as_bytes(std::span(fingerprint)));
  add_salt(hash, salt);
  return hash.finish();
}

Digest extend_prefix(const Digest& parent, std::span<const Token> tokens) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(parent))).update(std::as_bytes(tokens));
  return hash.finish();
}

Digest content_key(const Digest& fingerprint, std::string_view salt,
                   std::span<const Token> tokens) {
  Sha256 hash;
  hash.update("headstart content 1").update(std::as_bytes(std::span(fingerprint)));
  add_salt(hash, salt);
  return hash.update(std::as_bytes(tokens)).finish();
}

std::string ChunkId::to_string() const {
  return to_hex(prefix_key) + '-' + to_hex(std::span(numeric).first(8));
}

}  // namespace headstart::kv
