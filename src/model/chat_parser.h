// model/chat_parser.h: an assistant's text to a message: content, reasoning, tool calls.
//
// What a model writes for a call depends on its template, so a parser comes from
// ChatTemplate::apply() together with the prompt.
//
//   threads  const methods may be called from any thread at once
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

struct common_chat_parser_params;

namespace headstart::model {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON, as the model writes it
};

struct ChatMessage {
  std::string role;  // system, developer, user, assistant, tool
  std::string content;
  // Instead of content: texts that the template may keep apart.
  std::vector<std::string> parts = {};
  std::vector<ToolCall> tool_calls = {};
  std::string reasoning = {};
  std::string name = {};          // of a tool or a participant
  std::string tool_call_id = {};  // role tool: the call that this answers
};

// Where thoughts go: kNone leaves them in the content, kAuto and kDeepseek take them out.
enum class ReasoningFormat : uint8_t { kNone, kAuto, kDeepseek };

class ChatParser {
 public:
  ChatParser() = default;  // plain: the text is the content
  explicit ChatParser(std::shared_ptr<const common_chat_parser_params> params)
      : params_(std::move(params)) {}

  bool plain() const { return params_ == nullptr; }
  // `partial`: the text is the beginning of an answer; what it leaves open is not an error, and
  // arguments may end anywhere. Errors: kInvalidArgument (not what the template makes models write,
  // or brackets nested beyond all use).
  Result<ChatMessage> parse(const std::string& text, bool partial) const;

 private:
  std::shared_ptr<const common_chat_parser_params> params_;
};

}  // namespace headstart::model
