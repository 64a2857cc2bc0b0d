// server/api_keys.h: the keys that open the server, and the principals that they stand for.
//
// A key is never kept as text, only as digests, so that nothing that is logged, stored or dumped
// can hold it:
//   proof    HMAC of the key under a random value of this process; what a presented key is
//            compared by
//   secret   HMAC under the key itself; the principal, from which the salts of its chunks are made
//
//   threads  immutable once made
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace headstart::server {

inline constexpr size_t kKeyBytesMax = 512;
inline constexpr size_t kKeysMax = 1024;
inline constexpr size_t kKeyFileBytesMax = 1024 * 1024;

struct KeyFile {
  std::vector<std::string> keys;
  bool readable_by_others = false;
};
// One key a line; spaces around it, empty lines and lines that begin with # are left out. Errors:
// kIo, kInvalidArgument (names the line, never what it holds).
Result<KeyFile> read_key_file(const std::filesystem::path& path);

class ApiKeys {
 public:
  ApiKeys();
  // Errors: kInvalidArgument where one is empty, too long or cannot stand in a header, or where
  // there are too many.
  static Result<ApiKeys> of(std::span<const std::string> keys);

  bool empty() const { return keys_.empty(); }
  // The principal of a presented key. Takes as long whichever key it is, or none.
  std::optional<Digest> find(std::string_view presented) const;

 private:
  struct Key {
    Digest proof, secret;
  };
  std::string process_secret_;
  std::vector<Key> keys_;
};

// The salt of a principal's request: none has the salt of another principal, and without the key
// none can be made. `client_salt` parts what one principal stores.
std::string salt_of(const Digest& principal, std::string_view client_salt);

}  // namespace headstart::server
