// server/engine_completer.h: a loaded engine as the server's Completer.
#pragma once

#include "server/completer.h"

namespace headstart::server {

class EngineCompleter final : public Completer {
 public:
  // `engine` must outlive this.
  explicit EngineCompleter(exec::Engine& engine) : engine_(engine) {}

  const std::string& model_name() const override;
  uint32_t n_ctx() const override;
  int32_t n_vocab() const override;
  Result<std::string> render(const std::vector<model::ChatMessage>& messages) const override;
  std::vector<Token> tokenize(std::string_view text) const override;
  Result<exec::Completion> complete(const exec::CompletionRequest& request) override;
  exec::EngineStats stats() const override;

 private:
  exec::Engine& engine_;
};

}  // namespace headstart::server
