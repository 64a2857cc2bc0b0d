#include "model/chat_template.h"

#include <chat.h>
#include <llama.h>

#include "model/llama_log.h"

namespace headstart::model {

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::open(const llama_model* model) {
  quiet_libllama();
  try {
    common_chat_templates_ptr templates = common_chat_templates_init(model, "");
    return std::unique_ptr<ChatTemplate>(new ChatTemplate(templates.release()));
  } catch (const std::exception& e) {
    return Error{Code::kUnsupported,
                 std::string("the model's chat template does not parse: ") + e.what()};
  }
}

ChatTemplate::ChatTemplate(common_chat_templates* templates) : templates_(templates) {}
ChatTemplate::~ChatTemplate() { common_chat_templates_free(templates_); }

Result<std::string> ChatTemplate::render(const std::vector<ChatMessage>& messages) const {
  common_chat_templates_inputs inputs;
  for (const ChatMessage& m : messages) {
    common_chat_msg msg;
    msg.role = m.role == "developer" ? "system" : m.role;  // no template of today knows the role
    msg.content = m.content;
    inputs.messages.push_back(std::move(msg));
  }
  inputs.use_jinja = true;
  inputs.add_generation_prompt = true;
  try {
    return common_chat_templates_apply(templates_, inputs).prompt;
  } catch (const std::exception& e) {
    return Error{Code::kInvalidArgument,
                 std::string("the chat template refuses these messages: ") + e.what()};
  }
}

}  // namespace headstart::model
