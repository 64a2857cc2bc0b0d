#include "server/admission.h"

#include <algorithm>
#include <string>
#include <utility>

namespace headstart::server {
namespace {

const char* prompt_field(const ApiRequest& request) {
  return request.endpoint == Endpoint::kChat ? "messages" : "prompt";
}

bool in_vocabulary(Token token, const Completer& completer) {
  return token >= 0 && token < completer.n_vocab();
}

ApiResult<std::vector<Token>> prompt_tokens(ApiRequest& request, const Completer& completer) {
  if (request.endpoint == Endpoint::kChat) {
    auto text = completer.render(request.messages);
    if (!text.ok()) {
      ApiError error = from_engine(text.error());
      error.param = "messages";
      return tl::unexpected(error);
    }
    return completer.tokenize(*text);
  }
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    return completer.tokenize(*text);
  }
  auto& tokens = std::get<std::vector<Token>>(request.prompt);
  for (const Token token : tokens) {
    if (!in_vocabulary(token, completer)) {
      return tl::unexpected(bad_field("prompt", "holds a token id that this model lacks"));
    }
  }
  return std::move(tokens);
}

ApiError too_long(const char* field, size_t n_prompt, uint32_t n_ctx) {
  ApiError error = bad_field(field, "");
  error.message = "This model's maximum context length is " + std::to_string(n_ctx) +
                  " tokens, but the prompt has " + std::to_string(n_prompt) +
                  ". Shorten it, or start the server with a larger context (-c).";
  error.code = "context_length_exceeded";
  error.n_prompt_tokens = n_prompt;
  error.n_ctx = n_ctx;
  return error;
}

}  // namespace

ApiResult<exec::CompletionRequest> admit(ApiRequest request, const Completer& completer,
                                         uint32_t random_seed) {
  const char* field = prompt_field(request);
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    if (!in_vocabulary(token, completer)) {
      return tl::unexpected(bad_field("logit_bias", "names a token id that this model lacks"));
    }
  }
  auto tokens = prompt_tokens(request, completer);
  if (!tokens) return tl::unexpected(tokens.error());
  if (tokens->empty()) {
    return tl::unexpected(bad_field(field, "holds no tokens"));
  }
  const uint32_t n_ctx = completer.n_ctx();
  // A prompt that only warms the cache may fill the context; any other needs room for one token.
  if (tokens->size() > n_ctx || (tokens->size() == n_ctx && request.max_tokens > 0)) {
    return tl::unexpected(too_long(field, tokens->size(), n_ctx));
  }
  exec::CompletionRequest out;
  const auto n_prompt = static_cast<uint32_t>(tokens->size());
  out.tokens = std::move(*tokens);
  out.n_predict = std::min(request.max_tokens, n_ctx - n_prompt);
  out.sampling = std::move(request.sampling);
  out.sampling.seed = request.seed.value_or(random_seed);
  out.stop = std::move(request.stop);
  out.reuse = request.reuse;
  out.n_propose_max = request.n_propose_max;
  out.salt = std::move(request.salt);
  return out;
}

}  // namespace headstart::server
