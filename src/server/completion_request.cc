#include "server/completion_request.h"

#include <utility>

#include "kv/chunk_id.h"
#include "model/token_probs.h"

namespace headstart::server {
namespace {

// A text, a list of token ids, or a list that holds one of these.
void parse_prompt(Fields& fields, ApiRequest& request) {
  const Json* prompt = fields.find("prompt");
  if (!prompt) {
    fields.fail("prompt", "is missing");
    return;
  }
  if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
    if (prompt->size() > 1) {
      return fields.set_error(unsupported_field("prompt", "must be one prompt"));
    }
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
    return;
  }
  std::vector<Token> tokens;
  bool good = prompt->is_array();
  for (size_t i = 0; good && i < prompt->size(); ++i) {
    const Json& token = (*prompt)[i];
    // is_number_unsigned also says that it is not negative.
    good = token.is_number_unsigned() && token.get<uint64_t>() <= INT32_MAX;
    if (good) tokens.push_back(static_cast<Token>(token.get<uint64_t>()));
  }
  if (!good) {
    fields.fail("prompt", "must be a string or a list of token ids");
    return;
  }
  request.prompt = std::move(tokens);
}

// Clients of OpenAI's say max_tokens, newer ones max_completion_tokens, llama-server's n_predict.
void parse_length(Fields& fields, ApiRequest& request) {
  const bool chat = request.endpoint == Endpoint::kChat;
  const char* name = chat && fields.find("max_completion_tokens") ? "max_completion_tokens"
                     : fields.find("max_tokens")                  ? "max_tokens"
                                                                  : "n_predict";
  const int64_t min = std::string_view(name) == "n_predict" ? -2 : -1;  // both mean: no limit
  const auto n = fields.integer(name, min, INT32_MAX);
  if (n) {
    request.max_tokens = *n < 0 ? kRestOfContext : static_cast<uint32_t>(*n);
  } else if (request.endpoint == Endpoint::kCompletions) {
    request.max_tokens = 16;  // OpenAI's; a chat takes the rest, as there
  }
}

void parse_choices(Fields& fields, ApiRequest& request) {
  const auto n = fields.integer("n", 1, kChoicesMax).value_or(1);
  request.n_choice = static_cast<uint32_t>(n);
  if (request.endpoint == Endpoint::kNative && n > 1) {
    fields.set_error(unsupported_field("n", "must be 1 here; /v1/completions takes more"));
  }
  if (fields.integer("best_of", 1, INT32_MAX).value_or(n) != n) {
    fields.set_error(unsupported_field("best_of", "must be n: no answer is left out"));
  }
}

void parse_chat_logprobs(Fields& fields, ApiRequest& request) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto n_top = fields.integer("top_logprobs", 0, model::kTopTokensMax);
  if (wanted) {
    request.n_top_logprobs = static_cast<uint32_t>(n_top.value_or(0));
  } else if (n_top.value_or(0) > 0) {
    fields.fail("top_logprobs", "needs logprobs to be true");
  }
}

void parse_logprobs(Fields& fields, ApiRequest& request) {
  if (request.endpoint == Endpoint::kChat) return parse_chat_logprobs(fields, request);
  if (request.endpoint == Endpoint::kNative) {
    const auto n = fields.integer("n_probs", 0, model::kTopTokensMax).value_or(0);
    if (n > 0) request.n_top_logprobs = static_cast<uint32_t>(n);
    return;
  }
  const Json* value = fields.find("logprobs");
  if (!value || *value == false) return;
  if (const auto n = fields.integer("logprobs", 0, model::kTopTokensMax)) {
    request.n_top_logprobs = static_cast<uint32_t>(*n);
  }
}

void parse_extension(Fields& fields, ApiRequest& request) {
  request.salt = fields.text("cache_salt", kv::kSaltBytesMax);
  const Json* extension = fields.object("headstart");
  if (!extension) return;
  Fields own(*extension, "headstart.");
  if (const Json* reuse = own.find("reuse")) {
    if (*reuse == "off") {
      request.reuse = store::ReuseMode::kOff;
    } else if (*reuse == "strict") {
      request.reuse = store::ReuseMode::kStrict;
    } else if (*reuse == "exact") {
      request.reuse = store::ReuseMode::kExact;
    } else {
      own.fail("reuse", "must be off, strict or exact");
    }
  }
  if (const auto n = own.integer("n_propose_max", 0, UINT32_MAX)) {
    request.n_propose_max = static_cast<uint32_t>(*n);
  }
  if (own.error()) fields.set_error(*own.error());
}

void parse_stream(Fields& fields, ApiRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  request.return_progress = fields.boolean("return_progress").value_or(false);
  if (const auto ms = fields.integer("timeout_ms", 1, kTimeoutMsMax)) {
    request.timeout_ms = static_cast<uint32_t>(*ms);
  }
  if (const Json* options = fields.object("stream_options")) {
    Fields own(*options, "stream_options.");
    request.include_usage = own.boolean("include_usage").value_or(false);
    if (own.error()) fields.set_error(*own.error());
  }
}

void parse_messages_or_prompt(Fields& fields, ApiRequest& request) {
  if (request.endpoint == Endpoint::kChat) {
    parse_chat(fields, request.chat);
  } else {
    parse_prompt(fields, request);
  }
  parse_format(fields, request.format);
  const bool calls =
      !request.chat.tools.empty() && request.chat.tool_choice != model::ToolChoice::kNone;
  if (calls && !request.format.gbnf.empty()) {
    fields.fail("grammar", "cannot stand beside tools: the tools are a grammar");
  }
}

}  // namespace

ApiResult<ApiRequest> parse_request(Endpoint endpoint, std::string_view body) {
  const auto root = parse_object(body);
  if (!root) return tl::unexpected(root.error());
  Fields fields(*root);
  ApiRequest request;
  request.endpoint = endpoint;
  parse_messages_or_prompt(fields, request);
  parse_length(fields, request);
  parse_sampling(fields, endpoint == Endpoint::kNative, request.sampling);
  parse_choices(fields, request);
  parse_logprobs(fields, request);
  parse_stream(fields, request);
  parse_extension(fields, request);
  fields.refuse("echo");
  fields.refuse("suffix");
  if (fields.error()) return tl::unexpected(*fields.error());
  return request;
}

}  // namespace headstart::server
