// server/json_fields.h: bodies as JSON within limits, and the fields of one object.
//
// Null means absent. Unknown fields are never looked at.
//
//   threads  pure; a Fields has one owner
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace headstart::server {

// Objects keep the order in which they were sent: that of a schema's properties is the order in
// which a model writes them.
using Json = nlohmann::ordered_json;

inline constexpr size_t kJsonDepthMax = 128;
inline constexpr size_t kJsonValuesMax = 1 << 19;  // bounds the parsed tree at some 50 MB
inline constexpr size_t kJsonMembersMax = 2048;    // of one object: they are looked up one by one

// A model may write bytes that are no UTF-8; the client gets replacement characters, never a 500.
std::string dump(const Json& value);

// Tokens may be parts of a UTF-8 sequence: whether these bytes are text, and their values.
bool is_utf8(std::string_view bytes);
Json byte_values(std::string_view bytes);

// The body as one object. Errors: not JSON, not an object, nested too deeply, too many values.
ApiResult<Json> parse_object(std::string_view body);
// Whether text may be parsed as JSON by those who set no limits; it need not be JSON.
std::optional<ApiError> check_shape(std::string_view text);

// The fields of one object. The first error is kept and later reads change nothing, so that a
// parser reads straight through and asks once.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Null where the field is absent or null.
  const Json* find(const char* name) const;
  std::optional<double> number(const char* name, double min, double max);
  std::optional<int64_t> integer(const char* name, int64_t min, int64_t max);
  std::optional<bool> boolean(const char* name);
  std::string text(const char* name, size_t bytes_max);
  const Json* object(const char* name);
  const Json* list(const char* name, size_t size_max);

  // Refuses a field that holds anything but what asks for nothing.
  void refuse(const char* name);
  // Refuses a number that is not the one that asks for nothing.
  void refuse_unless(const char* name, double off);

  std::string path(const char* name) const { return prefix_ + name; }
  std::nullopt_t fail(const char* name, std::string_view message);
  void set_error(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

}  // namespace headstart::server
