// server/completer.h: all that the server asks of a model.
//
// The engine stands behind it in server/engine_completer.h, a scripted one in the tests, so that
// parsing, queueing, streaming and cancelling are tested without a model.
//
//   threads  every method may be called from any thread at once; complete() may make its callers
//            wait for each other (the request queue calls it from as many threads as it is told)
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "exec/engine.h"

namespace headstart::server {

// What clients ask about the model.
struct ModelInfo {
  std::string file_name;  // without its folder
  std::string chat_template;
  std::map<std::string, bool> chat_template_caps;
  std::string bos_token, eos_token;  // empty: none
};

class Completer {
 public:
  virtual ~Completer() = default;

  virtual const std::string& model_name() const = 0;
  virtual uint32_t n_ctx() const = 0;
  virtual int32_t n_vocab() const = 0;
  virtual ModelInfo info() const = 0;
  // Errors: kInvalidArgument where the model's template refuses the messages, or where a schema
  // has no grammar.
  virtual Result<model::ChatPrompt> apply(const model::ChatInput& chat) const = 0;
  // As model::Tokenizer::encode().
  virtual std::vector<Token> tokenize(std::string_view text, bool add_special,
                                      bool parse_special) const = 0;
  // The bytes of a token, of a control token its marker.
  virtual std::string piece(Token token) const = 0;
  // Errors: kInvalidArgument where complete() would refuse them.
  virtual Result<void> check(const model::SamplingOptions& options) const = 0;
  // As exec::Engine::complete: returns soon after request.cancel is asked to stop.
  virtual Result<exec::Completion> complete(const exec::CompletionRequest& request) = 0;
  virtual exec::EngineStats stats() const = 0;
  // As exec::Engine's.
  virtual std::vector<exec::SlotState> slots() const = 0;
  virtual Result<exec::SlotMoved> save_slot(uint32_t id, const std::filesystem::path& dir) = 0;
  virtual Result<exec::SlotMoved> restore_slot(uint32_t id, const std::filesystem::path& dir) = 0;
  virtual Result<exec::SlotMoved> erase_slot(uint32_t id) = 0;
};

}  // namespace headstart::server
