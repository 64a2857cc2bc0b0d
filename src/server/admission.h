// server/admission.h: a typed request as the engine wants it, or why this model cannot serve it.
//
// Renders the model's template once, tokenizes, and settles what depends on the model: token ids in
// range, grammars, room in the context. Runs on the connection's thread, so that a prompt that
// cannot be served never takes a place in the queue.
#pragma once

#include <cstdint>

#include "server/completer.h"
#include "server/completion_request.h"

namespace headstart::server {

struct Admitted {
  exec::CompletionRequest request;  // of the first choice; it has no callbacks and no cancel
  model::ChatParser parser;         // reads its text
};

// `random_seed` is used where the client gave none. More tokens than the context has room for are
// cut to what fits, as llama-server does; a prompt that does not fit is refused.
ApiResult<Admitted> admit(ApiRequest request, const Completer& completer, uint32_t random_seed);

}  // namespace headstart::server
