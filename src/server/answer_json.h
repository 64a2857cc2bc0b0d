// server/answer_json.h: the parts that answers are made of, whole or streamed.
//
// Pure. The choices come from what breaks clients (docs/decisions/0006-server.md,
// 0013-chat-and-sampling.md).
//
//   units    created in Unix seconds, times in milliseconds
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "exec/engine.h"
#include "model/chat_parser.h"
#include "server/completion_request.h"
#include "server/json_fields.h"

namespace headstart::server {

// What is the same in every part of one answer.
struct AnswerHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;
  int64_t created = 0;
  std::string model;
  uint32_t seed = 0;           // told in the extension, so that an answer can be had again
  bool include_usage = false;  // streams only
  model::ChatParser parser;    // chats only
};

// One finished choice. `queue_ms`: from acceptance to the start of its computing.
struct Answer {
  const exec::Completion* completion = nullptr;
  double queue_ms = 0;
};

// One event of a stream.
std::string event(const Json& value);

Json envelope(const AnswerHead& head, const char* object);
// One chunk with one choice; `content` is a delta for chat, a text for completions.
Json chunk(const AnswerHead& head, uint32_t index, Json content, Json logprobs, Json finish_reason);
const char* object_of_chunks(const AnswerHead& head);

// The prompt is counted once, whatever is made of it.
Json usage_of(std::span<const Answer> answers);
// As llama-server's.
Json timings_of(const exec::Completion& completion);
// Where the time to the first token went, counted from acceptance.
Json extension_of(const AnswerHead& head, const Answer& answer);
// usage, timings and the extension into `out`; the latter two are the first choice's, which paid
// for the prompt.
void add_totals(Json& out, const AnswerHead& head, std::span<const Answer> answers,
                bool with_usage);

// Null where `probs` is empty. `n_text_byte` counts the bytes of the texts before, for
// text_offset, and is moved on.
Json logprobs_of(Endpoint endpoint, std::span<const model::TokenProbs> probs, size_t& n_text_byte);
// llama-server's list of probabilities.
Json native_probs_of(std::span<const model::TokenProbs> probs);

// The id of a call that the model gave none.
std::string tool_call_id(const AnswerHead& head, uint32_t choice, size_t call);
Json tool_call_of(const model::ToolCall& call);

// The message in a finished chat text. A text that the parser refuses is its content.
model::ChatMessage message_of(const AnswerHead& head, uint32_t choice,
                              const exec::Completion& completion);
const char* finish_reason(exec::FinishReason finish, bool has_tool_calls);

}  // namespace headstart::server
