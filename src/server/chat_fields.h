// server/chat_fields.h: the fields of a chat: messages, tools, and what the answer must be.
//
//   threads  pure
//   source   https://platform.openai.com/docs/api-reference/chat, llama-server's README
#pragma once

#include <cstddef>
#include <string>

#include "model/chat_template.h"
#include "server/json_fields.h"

namespace headstart::server {

inline constexpr size_t kMessagesMax = 16384;
inline constexpr size_t kPartsMax = 4096;     // of one message
inline constexpr size_t kToolsMax = 128;      // OpenAI's
inline constexpr size_t kToolCallsMax = 128;  // of one message
inline constexpr size_t kToolNameBytesMax = 128;
inline constexpr size_t kTemplateArgsMax = 64;
inline constexpr size_t kTemplateArgBytesMax = 64 * 1024;

// Messages, tools, tool_choice, parallel_tool_calls, reasoning and template fields. What the answer
// must be comes from parse_format().
void parse_chat(Fields& fields, model::ChatInput& chat);

// What the answer must keep to, of response_format, json_schema and grammar; at most one of them.
struct AnswerFormat {
  std::string json_schema;
  std::string gbnf;
};
void parse_format(Fields& fields, AnswerFormat& format);

}  // namespace headstart::server
