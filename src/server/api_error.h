// server/api_error.h: what a client is told when its call fails.
//
// Becomes {"error": {"message", "type", "param", "code"}} (server/completion_response.h). Clients
// retry 5xx and give up on 4xx, so bad input is always 4xx and only passing trouble is 503. The
// message may quote numbers and field names, never the text of a prompt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "base/error.h"

namespace headstart::server {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field that is wrong; empty: null
  std::string code;   // for programs; empty: null
  // Only for a prompt that is longer than the context.
  std::optional<uint64_t> n_prompt_tokens, n_ctx;
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

// A field that is wrong in itself: "'param' what". Without param, the whole body is.
ApiError bad_field(std::string_view param, std::string_view what);
// A field that is understood, but that this server cannot honour.
ApiError unsupported_field(std::string_view param, std::string_view what);
// Passing trouble: the same call may succeed later.
ApiError unavailable(std::string_view code, std::string message);
// The request's time is over.
ApiError deadline_exceeded();
// What HTTP itself refuses: the status says it all.
ApiError of_status(int status);
// How an error of the engine looks from outside.
ApiError from_engine(const Error& error);

}  // namespace headstart::server
