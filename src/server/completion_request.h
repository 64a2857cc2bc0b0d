// server/completion_request.h: the JSON body of a completion call as a typed request.
//
// Pure: bytes in, a request or the client's error out. Every field has a type, a range and a
// maximum size; unknown fields are accepted, and null means absent. A field that would change the
// answer but is not supported (tools, logprobs, n > 1, …) is refused, never ignored.
//
// Fields that are absent get OpenAI's defaults where OpenAI has the field, llama.cpp's where it has
// not (docs/decisions/0006-server.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/token.h"
#include "model/chat_template.h"
#include "model/sampler.h"
#include "server/api_error.h"
#include "store/store.h"

namespace headstart::server {

enum class Endpoint { kChat, kCompletions };

inline constexpr size_t kJsonDepthMax = 128;
inline constexpr size_t kJsonValuesMax = 1 << 19;  // bounds the parsed tree at some 50 MB
inline constexpr size_t kMessagesMax = 16384;
inline constexpr size_t kStopsMax = 16;
inline constexpr size_t kStopBytesMax = 256;
inline constexpr size_t kLogitBiasMax = 1024;
inline constexpr size_t kSaltBytesMax = 256;
inline constexpr uint32_t kRestOfContext = UINT32_MAX;

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::vector<model::ChatMessage> messages;              // kChat; at least one
  std::variant<std::string, std::vector<Token>> prompt;  // kCompletions
  uint32_t max_tokens = kRestOfContext;                  // 0 fills the cache
  model::SamplingOptions sampling;                       // its seed is set by admission
  std::optional<uint32_t> seed;                          // nothing: choose one
  std::vector<std::string> stop;
  std::optional<store::ReuseMode> reuse;
  std::optional<uint32_t> n_propose_max;
  std::string salt;
  bool stream = false;
  bool include_usage = false;
};

ApiResult<ApiRequest> parse_request(Endpoint endpoint, std::string_view body);

}  // namespace headstart::server
