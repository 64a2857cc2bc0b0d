// server/model_endpoints.h: calls that ask the model's tokenizer, template and settings, and
// compute nothing: /tokenize, /detokenize, /apply-template, /props.
//
//   threads  any at once, as Completer's const methods
//   source   llama-server's README
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/completer.h"

namespace headstart::server {

// Body to body.
ApiResult<std::string> tokenize(const Completer& model, std::string_view body);
ApiResult<std::string> detokenize(const Completer& model, std::string_view body);
ApiResult<std::string> apply_template(const Completer& model, std::string_view body);
// `n_slot`: requests computed at once.
std::string props(const Completer& model, uint32_t n_slot);

}  // namespace headstart::server
