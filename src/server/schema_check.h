// server/schema_check.h: JSON schemas from outside, within what the converter can take.
//
// llama.cpp's converter calls itself for what a schema holds and follows references without a
// bound, and matches names with regular expressions that call themselves for each letter. A schema
// that passes here cannot exhaust its stack or its time.
//
//   threads  pure
#pragma once

#include <cstddef>
#include <string>

#include "server/json_fields.h"

namespace headstart::server {

inline constexpr size_t kSchemaBytesMax = 256 * 1024;
inline constexpr size_t kSchemaDepthMax = 32;
inline constexpr size_t kSchemaNameBytesMax = 128;   // of a property
inline constexpr size_t kSchemaTextBytesMax = 1024;  // of a pattern or a reference
inline constexpr size_t kSchemaPropertiesMax = 256;  // of one object
inline constexpr size_t kSchemaRefsMax = 512;

// `param` names the schema in the error. It is not checked whether the schema has a grammar:
// model::gbnf_of_schema() says that.
std::optional<ApiError> check_schema(const Json& schema, const std::string& param);

}  // namespace headstart::server
