#include "server/api_error.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

namespace headstart::server {

ApiError bad_field(std::string_view param, std::string_view what) {
  ApiError error;
  error.message = param.empty() ? std::string(what) : fmt::format("'{}' {}", param, what);
  error.param = param;
  error.code = "invalid_value";
  return error;
}

ApiError unsupported_field(std::string_view param, std::string_view what) {
  ApiError error = bad_field(param, what);
  error.code = "unsupported_value";
  return error;
}

ApiError unavailable(std::string_view code, std::string message) {
  ApiError error;
  error.status = 503;
  error.message = std::move(message);
  error.type = "unavailable_error";
  error.code = code;
  return error;
}

ApiError deadline_exceeded() {
  ApiError error;
  error.status = 504;
  error.message = "the answer was not ready within the request's deadline";
  error.type = "timeout_error";
  error.code = "deadline_exceeded";
  return error;
}

ApiError of_status(int status) {
  ApiError error;
  error.status = status;
  switch (status) {
    case 400: error.message = "malformed HTTP request"; break;
    case 404: error.message = "no such path"; break;
    case 405: error.message = "this path does not take this method"; break;
    case 408: error.message = "the request did not arrive in time"; break;
    case 413: error.message = "the body is too large"; break;
    case 414: error.message = "the URI is too long"; break;
    case 415: error.message = "send the body as JSON, without content coding"; break;
    case 416: error.message = "ranges are not supported"; break;
    case 431: error.message = "the headers are too many or too long"; break;
    default: error.message = "the request failed";
  }
  if (status == 404) error.code = "not_found";
  if (status >= 500) error.type = "server_error";
  return error;
}

ApiError from_engine(const Error& error) {
  switch (error.code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported: {
      ApiError bad;
      bad.message = error.message;
      bad.code = "invalid_value";
      return bad;
    }
    case Code::kExhausted: return unavailable("exhausted", error.message);
    case Code::kUnavailable: return unavailable("unavailable", error.message);
    case Code::kCancelled: return unavailable("cancelled", "the request was cancelled");
    case Code::kNotFound:
    case Code::kCorrupt:
    case Code::kIo: break;
  }
  ApiError internal;
  internal.status = 500;
  internal.message = error.message;
  internal.type = "server_error";
  internal.code = "internal_error";
  return internal;
}

}  // namespace headstart::server
