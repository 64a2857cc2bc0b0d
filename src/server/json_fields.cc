#include "server/json_fields.h"

#include <cmath>
#include <vector>

#include "exec/text_stream.h"

namespace headstart::server {

// Counts nesting and values before the parser allocates anything: 16 MiB of "[[[[" or "{},{},"
// would otherwise become gigabytes of tree.
std::optional<ApiError> check_shape(std::string_view text) {
  size_t values = 1;
  std::vector<size_t> members;  // of each open bracket; 0 and counted from 1 on for objects only
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      members.push_back(c == '{' ? 1 : 0);
      if (members.size() > kJsonDepthMax) return bad_field("", "the JSON is nested too deeply");
    } else if (c == ']' || c == '}') {
      if (!members.empty()) members.pop_back();
    } else if (c == ',') {
      ++values;
      if (!members.empty() && members.back() > 0 && ++members.back() > kJsonMembersMax) {
        return bad_field("", "the JSON has an object with too many members");
      }
    }
    if (values > kJsonValuesMax) return bad_field("", "the JSON holds too many values");
  }
  return std::nullopt;
}

bool is_utf8(std::string_view bytes) { return exec::valid_utf8(bytes) == bytes; }

Json byte_values(std::string_view bytes) {
  Json out = Json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiResult<Json> parse_object(std::string_view body) {
  if (auto error = check_shape(body)) return tl::unexpected(*error);
  Json root = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return tl::unexpected(bad_field("", "the body must be one JSON object in UTF-8"));
  }
  return root;
}

const Json* Fields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<double> Fields::number(const char* name, double min, double max) {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) return fail(name, "must be a number");
  const double number = value->get<double>();
  if (number >= min && number <= max) return number;  // false for NaN too
  return fail(name, "must lie between " + Json(min).dump() + " and " + Json(max).dump());
}

std::optional<int64_t> Fields::integer(const char* name, int64_t min, int64_t max) {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) return fail(name, "must be an integer");
  int64_t integer = 0;
  bool fits = true;
  if (value->is_number_float()) {  // 16.0 is an integer to JavaScript, and so to JSON
    const double number = value->get<double>();
    if (number != std::trunc(number)) return fail(name, "must be an integer");
    fits = std::fabs(number) < 9.0e18;
    if (fits) integer = static_cast<int64_t>(number);
  } else if (value->is_number_unsigned()) {
    fits = value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    integer = fits ? static_cast<int64_t>(value->get<uint64_t>()) : 0;
  } else {
    integer = value->get<int64_t>();
  }
  if (fits && integer >= min && integer <= max) return integer;
  return fail(name, "must lie between " + std::to_string(min) + " and " + std::to_string(max));
}

std::optional<bool> Fields::boolean(const char* name) {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  return fail(name, "must be true or false");
}

std::string Fields::text(const char* name, size_t bytes_max) {
  const Json* value = find(name);
  if (!value) return {};
  if (!value->is_string()) {
    fail(name, "must be a string");
    return {};
  }
  if (value->get_ref<const std::string&>().size() <= bytes_max) return value->get<std::string>();
  fail(name, "must be at most " + std::to_string(bytes_max) + " bytes");
  return {};
}

const Json* Fields::object(const char* name) {
  const Json* value = find(name);
  if (!value || value->is_object()) return value;
  fail(name, "must be an object");
  return nullptr;
}

const Json* Fields::list(const char* name, size_t size_max) {
  const Json* value = find(name);
  if (!value) return nullptr;
  if (value->is_array() && value->size() <= size_max) return value;
  fail(name, "must be a list of at most " + std::to_string(size_max));
  return nullptr;
}

void Fields::refuse(const char* name) {
  const Json* value = find(name);
  if (!value) return;
  const bool asks_nothing = (value->is_boolean() && !value->get<bool>()) ||
                            (value->is_string() && value->get_ref<const std::string&>().empty()) ||
                            (value->is_structured() && value->empty());
  if (!asks_nothing) set_error(unsupported_field(path(name), "is not supported"));
}

void Fields::refuse_unless(const char* name, double off) {
  const Json* value = find(name);
  if (!value || (value->is_number() && value->get<double>() == off)) return;
  set_error(
      unsupported_field(path(name), "is not supported: leave it out, or set " + Json(off).dump()));
}

std::nullopt_t Fields::fail(const char* name, std::string_view message) {
  set_error(bad_field(path(name), message));
  return std::nullopt;
}

}  // namespace headstart::server
