// server/completer.h: all that the server asks of a model.
//
// The engine stands behind it in server/engine_completer.h, a scripted one in the tests, so that
// parsing, queueing, streaming and cancelling are tested without a model.
//
//   threads  every method may be called from any thread at once; complete() may make its callers
//            wait for each other (the request queue calls it from as many threads as it is told)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/engine.h"

namespace headstart::server {

class Completer {
 public:
  virtual ~Completer() = default;

  virtual const std::string& model_name() const = 0;
  virtual uint32_t n_ctx() const = 0;
  virtual int32_t n_vocab() const = 0;
  // Errors: kInvalidArgument where the model's template refuses the messages.
  virtual Result<std::string> render(const std::vector<model::ChatMessage>& messages) const = 0;
  virtual std::vector<Token> tokenize(std::string_view text) const = 0;
  // As exec::Engine::complete: returns soon after request.cancel is asked to stop.
  virtual Result<exec::Completion> complete(const exec::CompletionRequest& request) = 0;
  virtual exec::EngineStats stats() const = 0;
};

}  // namespace headstart::server
