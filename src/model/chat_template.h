// model/chat_template.h: messages to prompt text with the model's own Jinja template.
//
// Rendering is done by llama.cpp's common library.
//   threads  const methods may be called from any thread at once
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

struct llama_model;
struct common_chat_templates;

namespace headstart::model {

struct ChatMessage {
  std::string role;  // system, developer, user, assistant, tool
  std::string content;
};

class ChatTemplate {
 public:
  // Errors: kUnsupported where the model brings a template that does not parse.
  static Result<std::unique_ptr<ChatTemplate>> open(const llama_model* model);
  ~ChatTemplate();

  // The prompt, ready for encode(add_special = true, parse_special = true), ending where the
  // assistant's answer begins. Errors: kInvalidArgument (the template refuses the messages).
  Result<std::string> render(const std::vector<ChatMessage>& messages) const;

 private:
  explicit ChatTemplate(common_chat_templates* templates);
  common_chat_templates* templates_;
};

}  // namespace headstart::model
