// server/completion_response.h: answers as the bytes that clients read: JSON bodies and SSE events.
//
// Pure. A stream is first_event(), text_event() for each piece, then last_events(); or
// error_event() where it broke after the headers had gone. One id, one creation time and one model
// name stand in every chunk. The choices come from what breaks clients
// (docs/decisions/0006-server.md).
//
//   units    created in Unix seconds, times in milliseconds
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "exec/engine.h"
#include "server/api_error.h"
#include "server/completion_request.h"

namespace headstart::server {

// What is the same in every part of one answer.
struct AnswerHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;
  int64_t created = 0;
  std::string model;
  uint32_t seed = 0;           // told in the extension, so that an answer can be had again
  bool include_usage = false;  // streams only
};

// An SSE comment: shows proxies and clients that a long prefill is alive.
inline constexpr std::string_view kPing = ": ping\n\n";

// The answer of a call without stream. `queue_ms`: from acceptance to the start of its computing.
std::string answer_body(const AnswerHead& head, const exec::Completion& completion,
                        double queue_ms);

// Chat only: the role. Empty for completions, whose streams begin with text.
std::string first_event(const AnswerHead& head);
std::string text_event(const AnswerHead& head, std::string_view piece);
// The finish reason, the usage where asked for, and [DONE].
std::string last_events(const AnswerHead& head, const exec::Completion& completion,
                        double queue_ms);
// Ends a broken stream. No [DONE] follows: the answer is not whole.
std::string error_event(const ApiError& error);

std::string error_body(const ApiError& error);

struct ModelCard {
  std::string id;
  int64_t created = 0;
  uint32_t n_ctx = 0;
  int32_t n_vocab = 0;
};
std::string model_body(const ModelCard& card);
std::string model_list_body(const ModelCard& card);

}  // namespace headstart::server
