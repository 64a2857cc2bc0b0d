#include "server/engine_completer.h"

namespace headstart::server {

const std::string& EngineCompleter::model_name() const { return engine_.model_name(); }

uint32_t EngineCompleter::n_ctx() const { return engine_.n_ctx(); }

int32_t EngineCompleter::n_vocab() const { return engine_.tokenizer().n_vocab(); }

Result<std::string> EngineCompleter::render(const std::vector<model::ChatMessage>& messages) const {
  return engine_.chat_template().render(messages);
}

// Markers such as <|im_end|> count as single tokens in raw prompts too: clients of /v1/completions
// send chats that they rendered themselves.
std::vector<Token> EngineCompleter::tokenize(std::string_view text) const {
  return engine_.tokenizer().encode(text, /*add_special=*/true, /*parse_special=*/true);
}

Result<exec::Completion> EngineCompleter::complete(const exec::CompletionRequest& request) {
  return engine_.complete(request);
}

exec::EngineStats EngineCompleter::stats() const { return engine_.stats(); }

}  // namespace headstart::server
