// model/chat_template.h: messages to prompt text with the model's own Jinja template, and what the
// answer to that prompt must look like.
//
// All of it is done by llama.cpp's common library.
//   threads  const methods may be called from any thread at once
//   source   chat.h
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/chat_parser.h"

struct llama_model;
struct common_chat_templates;

namespace headstart::model {

struct ChatTool {
  std::string name;
  std::string description;
  std::string parameters;  // a JSON schema
};

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::vector<ChatTool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name;                    // kRequired: this one; empty: any
  std::optional<bool> parallel_tool_calls;  // nothing: if the template knows how
  std::string json_schema;                  // what the answer must be; empty: anything
  ReasoningFormat reasoning_format = ReasoningFormat::kAuto;
  bool enable_thinking = true;
  std::map<std::string, std::string> template_kwargs;  // JSON texts, by name
};

// A word that wakes a lazy grammar, or a regular expression for one.
struct GrammarTrigger {
  std::string text;
  bool is_pattern = false;
};

// A prompt and how its answer is written and read.
struct ChatPrompt {
  std::string text;  // ready for encode(add_special = true, parse_special = true)
  std::string gbnf;  // empty: the answer may be anything
  bool lazy = false;
  std::vector<GrammarTrigger> triggers;
  std::string generation_prompt;   // the end of `text` that the answer goes on from
  std::vector<std::string> shown;  // control tokens that the parser must see
  std::vector<std::string> stops;  // more stop strings
  std::string thinking_start;      // empty: the model does not think
  std::vector<std::string> thinking_ends;
  ChatParser parser;
};

class ChatTemplate {
 public:
  // Errors: kUnsupported where the model brings a template that does not parse.
  static Result<std::unique_ptr<ChatTemplate>> open(const llama_model* model);
  // A template alone. Errors: as above.
  static Result<std::unique_ptr<ChatTemplate>> of(const std::string& jinja);
  ~ChatTemplate();

  // Errors: kInvalidArgument (the template refuses the messages, a schema has no grammar, or a call
  // is required of a template that has none).
  Result<ChatPrompt> apply(const ChatInput& input) const;
  // Messages alone; the text of apply().
  Result<std::string> render(const std::vector<ChatMessage>& messages) const;

  std::string source() const;                        // Jinja
  std::map<std::string, bool> capabilities() const;  // as llama.cpp names them

 private:
  explicit ChatTemplate(common_chat_templates* templates);
  static Result<std::unique_ptr<ChatTemplate>> init(const llama_model* model,
                                                    const std::string& jinja);
  Result<ChatPrompt> require_call(const ChatInput& input, ChatPrompt prompt) const;
  common_chat_templates* templates_;
  bool plain_ = false;  // without tools and schema an answer is its text and nothing else
  bool parallel_tool_calls_ = false;
};

}  // namespace headstart::model
