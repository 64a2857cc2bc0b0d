// server/completion_request.h: the JSON body of a completion call as a typed request.
//
// Pure: bytes in, a request or the client's error out. Every field has a type, a range and a
// maximum size; unknown fields are accepted, and null means absent. A field that would change the
// answer but is not supported (echo, mirostat, …) is refused, never ignored.
//
// The fields of a chat are read in chat_fields.h, those of sampling in sampling_fields.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/token.h"
#include "server/api_error.h"
#include "server/chat_fields.h"
#include "server/sampling_fields.h"
#include "store/store.h"

namespace headstart::server {

// OpenAI's two, and llama-server's own /completion.
enum class Endpoint { kChat, kCompletions, kNative };

inline constexpr uint32_t kChoicesMax = 8;
inline constexpr uint32_t kTimeoutMsMax = 24 * 3600 * 1000;
inline constexpr uint32_t kRestOfContext = UINT32_MAX;

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChat;
  model::ChatInput chat;                                 // kChat; at least one message
  std::variant<std::string, std::vector<Token>> prompt;  // the others
  AnswerFormat format;
  SamplingFields sampling;
  uint32_t max_tokens = kRestOfContext;    // 0 fills the cache
  uint32_t n_choice = 1;                   // answers, each with a seed of its own
  std::optional<uint32_t> n_top_logprobs;  // nothing: no probabilities
  std::optional<store::ReuseMode> reuse;
  std::optional<uint32_t> n_propose_max;
  std::string salt;
  bool stream = false;
  bool include_usage = false;
  bool return_progress = false;        // streams only: events while the prompt is prefilled
  std::optional<uint32_t> timeout_ms;  // for the whole answer, from acceptance
};

ApiResult<ApiRequest> parse_request(Endpoint endpoint, std::string_view body);

}  // namespace headstart::server
