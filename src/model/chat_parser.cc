#include "model/chat_parser.h"

#include <chat.h>

#include <exception>

namespace headstart::model {
namespace {

// The library's JSON parser calls itself at each bracket; a text of brackets would end the stack.
constexpr int kBracketsMax = 256;

bool nests_too_deeply(const std::string& text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') {
      if (++depth > kBracketsMax) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<ChatMessage> ChatParser::parse(const std::string& text, bool partial) const {
  ChatMessage out;
  out.role = "assistant";
  if (plain()) {
    out.content = text;
    return out;
  }
  if (nests_too_deeply(text)) {
    return Error{Code::kInvalidArgument, "the answer nests brackets too deeply"};
  }
  try {
    common_chat_msg message = common_chat_parse(text, partial, *params_);
    out.content = std::move(message.content);
    out.reasoning = std::move(message.reasoning_content);
    for (auto& call : message.tool_calls) {
      out.tool_calls.push_back(
          {std::move(call.id), std::move(call.name), std::move(call.arguments)});
    }
  } catch (const std::exception&) {
    return Error{Code::kInvalidArgument, "the answer is not in the template's format"};
  }
  return out;
}

}  // namespace headstart::model
