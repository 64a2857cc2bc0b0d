#include "server/engine_completer.h"

#include <llama.h>

#include <utility>

namespace headstart::server {

EngineCompleter::EngineCompleter(exec::Engine& engine, std::string file_name) : engine_(engine) {
  info_.file_name = std::move(file_name);
  info_.chat_template = engine.chat_template().source();
  info_.chat_template_caps = engine.chat_template().capabilities();
  const llama_vocab* vocab = engine.tokenizer().vocab();
  info_.bos_token = engine.tokenizer().piece(llama_vocab_bos(vocab), /*special=*/true);
  info_.eos_token = engine.tokenizer().piece(llama_vocab_eos(vocab), /*special=*/true);
}

Result<model::ChatPrompt> EngineCompleter::apply(const model::ChatInput& chat) const {
  return engine_.chat_template().apply(chat);
}

std::vector<Token> EngineCompleter::tokenize(std::string_view text, bool add_special,
                                             bool parse_special) const {
  return engine_.tokenizer().encode(text, add_special, parse_special);
}

std::string EngineCompleter::piece(Token token) const {
  return engine_.tokenizer().piece(token, /*special=*/true);
}

Result<void> EngineCompleter::check(const model::SamplingOptions& options) const {
  HS_ASSIGN_OR_RETURN(const auto sampler,
                      model::Sampler::open(options, engine_.tokenizer().vocab()));
  return {};
}

Result<exec::Completion> EngineCompleter::complete(const exec::CompletionRequest& request) {
  return engine_.complete(request);
}

}  // namespace headstart::server
