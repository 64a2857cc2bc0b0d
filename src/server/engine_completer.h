// server/engine_completer.h: a loaded engine as the server's Completer.
#pragma once

#include "server/completer.h"

namespace headstart::server {

class EngineCompleter final : public Completer {
 public:
  // `engine` must outlive this.
  EngineCompleter(exec::Engine& engine, std::string file_name);

  const std::string& model_name() const override { return engine_.model_name(); }
  uint32_t n_ctx() const override { return engine_.n_ctx(); }
  int32_t n_vocab() const override { return engine_.tokenizer().n_vocab(); }
  ModelInfo info() const override { return info_; }
  Result<model::ChatPrompt> apply(const model::ChatInput& chat) const override;
  std::vector<Token> tokenize(std::string_view text, bool add_special,
                              bool parse_special) const override;
  std::string piece(Token token) const override;
  Result<void> check(const model::SamplingOptions& options) const override;
  Result<exec::Completion> complete(const exec::CompletionRequest& request) override;
  exec::EngineStats stats() const override { return engine_.stats(); }
  std::vector<exec::SlotState> slots() const override { return engine_.slots(); }
  Result<exec::SlotMoved> save_slot(uint32_t id, const std::filesystem::path& dir) override {
    return engine_.save_slot(id, dir);
  }
  Result<exec::SlotMoved> restore_slot(uint32_t id, const std::filesystem::path& dir) override {
    return engine_.restore_slot(id, dir);
  }
  Result<exec::SlotMoved> erase_slot(uint32_t id) override { return engine_.erase_slot(id); }

 private:
  exec::Engine& engine_;
  ModelInfo info_;
};

}  // namespace headstart::server
