#include "server/api_keys.h"

#include <openssl/rand.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

namespace headstart::server {
namespace {

constexpr size_t kProcessSecretBytes = 32;

std::string_view as_text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string_view trimmed(std::string_view line) {
  const auto first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

// Null where the key is good. Only what a header carries unchanged: visible ASCII.
const char* fault_of(std::string_view key) {
  if (key.empty()) return "is empty";
  if (key.size() > kKeyBytesMax) return "has more than 512 bytes";
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  return std::all_of(key.begin(), key.end(), visible)
             ? nullptr
             : "holds spaces or other bytes that no header can carry";
}

Result<std::string> read_small(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kKeyFileBytesMax + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad() || std::filesystem::is_directory(path)) {
    return Error{Code::kIo, "cannot read the keys in " + path.string()};
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kKeyFileBytesMax) {
    return Error{Code::kInvalidArgument, path.string() + " has more than 1 MiB; is it a key file?"};
  }
  return text;
}

}  // namespace

Result<KeyFile> read_key_file(const std::filesystem::path& path) {
  HS_ASSIGN_OR_RETURN(const std::string text, read_small(path));
  KeyFile file;
  struct stat status {};
  file.readable_by_others = ::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0;
  size_t n_line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const auto key = trimmed(std::string_view(text).substr(at, end - at));
    at = end + 1;
    ++n_line;
    if (key.empty() || key.front() == '#') continue;
    if (const char* fault = fault_of(key)) {
      return Error{Code::kInvalidArgument,
                   path.string() + ":" + std::to_string(n_line) + ": the API key " + fault};
    }
    file.keys.emplace_back(key);
  }
  if (file.keys.empty()) {
    return Error{Code::kInvalidArgument, path.string() + " holds no API key"};
  }
  return file;
}

ApiKeys::ApiKeys() : process_secret_(kProcessSecretBytes, '\0') {
  HS_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(process_secret_.data()),
                      static_cast<int>(process_secret_.size())) == 1,
           "OpenSSL has no random bytes");
}

Result<ApiKeys> ApiKeys::of(std::span<const std::string> keys) {
  if (keys.size() > kKeysMax) return Error{Code::kInvalidArgument, "more than 1024 API keys"};
  ApiKeys out;
  for (const std::string& key : keys) {
    if (const char* fault = fault_of(key)) {
      return Error{Code::kInvalidArgument, std::string("an API key ") + fault};
    }
    out.keys_.push_back(
        {hmac_sha256(out.process_secret_, key), hmac_sha256(key, "headstart principal")});
  }
  return out;
}

std::optional<Digest> ApiKeys::find(std::string_view presented) const {
  const Digest proof = hmac_sha256(process_secret_, presented.substr(0, kKeyBytesMax + 1));
  // All keys are looked at and each costs the same, so that the time tells nothing of a match.
  Digest secret{};
  uint8_t found = 0;
  for (const Key& key : keys_) {
    const auto mask = static_cast<uint8_t>(-int{equal_in_constant_time(proof, key.proof)});
    for (size_t i = 0; i < secret.size(); ++i) {
      secret[i] = static_cast<uint8_t>((secret[i] & ~mask) | (key.secret[i] & mask));
    }
    found |= mask;
  }
  return found ? std::optional(secret) : std::nullopt;
}

std::string salt_of(const Digest& principal, std::string_view client_salt) {
  return to_hex(hmac_sha256(as_text(principal), client_salt));
}

}  // namespace headstart::server
