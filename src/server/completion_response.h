// server/completion_response.h: whole answers and errors as the JSON that clients read.
//
// Pure. Streams are in server/choice_stream.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/answer_json.h"
#include "server/api_error.h"

namespace headstart::server {

// The answer of a call without stream; at least one choice.
std::string answer_body(const AnswerHead& head, std::span<const Answer> answers);

std::string error_body(const ApiError& error);
// Ends a broken stream. No [DONE] follows: the answer is not whole.
std::string error_event(const ApiError& error);

struct ModelCard {
  std::string id;
  int64_t created = 0;
  uint32_t n_ctx = 0;
  int32_t n_vocab = 0;
};
std::string model_body(const ModelCard& card);
std::string model_list_body(const ModelCard& card);

// llama-server's own answer, and the last event of its stream, where the content was sent before.
Json native_answer(const AnswerHead& head, const Answer& answer, bool with_content);

}  // namespace headstart::server
