#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace headstart {

struct Sha256::State {
  EVP_MD_CTX* ctx = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(ctx); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  HS_CHECK(EVP_DigestInit_ex(state_->ctx, EVP_sha256(), nullptr) == 1, "OpenSSL lacks SHA-256");
}
Sha256::~Sha256() = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  HS_CHECK(EVP_DigestUpdate(state_->ctx, bytes.data(), bytes.size()) == 1, "SHA-256 update");
  return *this;
}

Sha256& Sha256::update(std::string_view text) { return update(std::as_bytes(std::span(text))); }

Digest Sha256::finish() {
  Digest out;
  unsigned size = 0;
  HS_CHECK(EVP_DigestFinal_ex(state_->ctx, out.data(), &size) == 1 && size == out.size(),
           "SHA-256 finish");
  return out;
}

Digest hmac_sha256(std::string_view key, std::string_view text) {
  Digest out;
  unsigned size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  HS_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, text.size(),
                out.data(), &size) != nullptr &&
               size == out.size(),
           "HMAC-SHA256");
  return out;
}

bool equal_in_constant_time(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (uint8_t b : bytes) {
    out.push_back(kDigits[b >> 4]);
    out.push_back(kDigits[b & 15]);
  }
  return out;
}

Result<Digest> digest_from_hex(std::string_view hex) {
  Digest out;
  auto nibble = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  bool valid = hex.size() == out.size() * 2;
  for (size_t i = 0; valid && i < out.size(); ++i) {
    int high = nibble(hex[2 * i]), low = nibble(hex[2 * i + 1]);
    valid = high >= 0 && low >= 0;
    out[i] = static_cast<uint8_t>(high << 4 | low);
  }
  if (!valid) return Error{Code::kInvalidArgument, "a digest has 64 lower-case hexadecimal digits"};
  return out;
}

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace headstart
