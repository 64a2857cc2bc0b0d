#include "server/admission.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

namespace headstart::server {
namespace {

using model::ChatPrompt;

const char* prompt_field(const ApiRequest& request) {
  return request.endpoint == Endpoint::kChat ? "messages" : "prompt";
}

bool in_vocabulary(Token token, const Completer& completer) {
  return token >= 0 && token < completer.n_vocab();
}

// Markers such as <|im_end|> count as single tokens in raw prompts too: clients of /v1/completions
// send chats that they rendered themselves.
ApiResult<std::vector<Token>> prompt_tokens(ApiRequest& request, const Completer& completer) {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    return completer.tokenize(*text, /*add_special=*/true, /*parse_special=*/true);
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

ApiError refused(const Error& error, const char* param) {
  ApiError out = from_engine(error);
  out.param = param;
  return out;
}

std::vector<Token> markers(const std::string& text, const Completer& completer) {
  return completer.tokenize(text, /*add_special=*/false, /*parse_special=*/true);
}

std::string escaped(const std::string& word) {
  std::string out;
  for (const char c : word) {
    if (std::string_view(R"(.^$|()*+?[]{}\/-)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

void add_trigger(const model::GrammarTrigger& trigger, const Completer& completer,
                 model::GrammarOptions& grammar) {
  if (trigger.is_pattern) {
    grammar.trigger_patterns.push_back(trigger.text);
    return;
  }
  const auto tokens = markers(trigger.text, completer);
  if (tokens.size() == 1) {
    grammar.trigger_tokens.push_back(tokens[0]);
  } else {
    grammar.trigger_patterns.push_back(escaped(trigger.text));
  }
}

// Some tokenizers put a space before a text that begins with a marker.
std::vector<Token> prefill_of(const std::string& text, const Completer& completer) {
  auto tokens = markers(text, completer);
  if (!tokens.empty()) {
    const std::string first = completer.piece(tokens[0]);
    const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    if (!first.empty() && space(first[0]) && !space(text[0])) tokens.erase(tokens.begin());
  }
  return tokens;
}

// The grammar that a template made, in this model's tokens.
model::GrammarOptions grammar_of(const ChatPrompt& prompt, const Completer& completer) {
  model::GrammarOptions grammar;
  grammar.gbnf = prompt.gbnf;
  grammar.lazy = prompt.lazy;
  for (const auto& trigger : prompt.triggers) add_trigger(trigger, completer, grammar);
  grammar.prefill = prefill_of(prompt.generation_prompt, completer);
  if (!prompt.thinking_start.empty()) {
    grammar.thinking_start = markers(prompt.thinking_start, completer);
    for (const std::string& end : prompt.thinking_ends) {
      grammar.thinking_ends.push_back(markers(end, completer));
    }
  }
  return grammar;
}

std::optional<ApiError> admit_chat(ApiRequest& request, const Completer& completer, Admitted& out) {
  request.chat.json_schema = request.format.json_schema;
  auto prompt = completer.apply(request.chat);
  if (!prompt.ok()) {
    const bool messages_only = request.chat.tools.empty() && request.chat.json_schema.empty();
    return refused(prompt.error(), messages_only ? "messages" : "");
  }
  out.request.tokens = completer.tokenize(prompt->text, true, true);
  for (const std::string& text : prompt->shown) {
    const auto tokens = markers(text, completer);
    if (tokens.size() == 1) out.request.shown.push_back(tokens[0]);
  }
  if (!prompt->gbnf.empty()) {
    request.sampling.options.grammar = grammar_of(*prompt, completer);
  } else {
    request.sampling.options.grammar.gbnf = request.format.gbnf;
  }
  auto& stop = request.sampling.stop;
  stop.insert(stop.end(), prompt->stops.begin(), prompt->stops.end());
  if (stop.size() > exec::kStopsMax)
    return bad_field("stop", "holds too many beside the template's own");
  out.parser = std::move(prompt->parser);
  return std::nullopt;
}

std::optional<ApiError> admit_text(ApiRequest& request, const Completer& completer, Admitted& out) {
  auto tokens = prompt_tokens(request, completer);
  if (!tokens) return tokens.error();
  out.request.tokens = *std::move(tokens);
  std::string& gbnf = request.sampling.options.grammar.gbnf;
  gbnf = request.format.gbnf;
  if (request.format.json_schema.empty()) return std::nullopt;
  auto of_schema = model::gbnf_of_schema(request.format.json_schema);
  if (!of_schema.ok()) return refused(of_schema.error(), "json_schema");
  gbnf = *std::move(of_schema);
  return std::nullopt;
}

// Biases of texts become those of their tokens.
std::optional<ApiError> settle_sampling(SamplingFields& fields, const Completer& completer) {
  auto& biases = fields.options.logit_bias;
  for (const auto& [text, bias] : fields.text_bias) {
    for (const Token t : completer.tokenize(text, false, false)) biases.emplace_back(t, bias);
  }
  if (biases.size() > model::kLogitBiasMax) return bad_field("logit_bias", "names too many tokens");
  for (const auto& [token, bias] : biases) {
    if (!in_vocabulary(token, completer)) {
      return bad_field("logit_bias", "names a token id that this model lacks");
    }
  }
  if (fields.options.repeat_last_n < 0) {
    fields.options.repeat_last_n = static_cast<int32_t>(completer.n_ctx());
  }
  const bool constrained = !fields.options.grammar.empty();
  const auto good = completer.check(fields.options);
  if (!good.ok()) return refused(good.error(), constrained ? "grammar" : "");
  return std::nullopt;
}

}  // namespace

ApiResult<Admitted> admit(ApiRequest request, const Completer& completer, uint32_t random_seed) {
  Admitted out;
  const bool chat = request.endpoint == Endpoint::kChat;
  auto error = chat ? admit_chat(request, completer, out) : admit_text(request, completer, out);
  if (!error) error = settle_sampling(request.sampling, completer);
  if (error) return tl::unexpected(*error);
  const char* field = prompt_field(request);
  const size_t n_prompt = out.request.tokens.size();
  if (n_prompt == 0) return tl::unexpected(bad_field(field, "holds no tokens"));
  const uint32_t n_ctx = completer.n_ctx();
  // A prompt that only warms the cache may fill the context; any other needs room for one token.
  if (n_prompt > n_ctx || (n_prompt == n_ctx && request.max_tokens > 0)) {
    return tl::unexpected(too_long(field, n_prompt, n_ctx));
  }
  out.request.n_predict = std::min(request.max_tokens, n_ctx - static_cast<uint32_t>(n_prompt));
  out.request.sampling = std::move(request.sampling.options);
  out.request.sampling.seed = request.sampling.seed.value_or(random_seed);
  out.request.stop = std::move(request.sampling.stop);
  out.request.n_top_logprobs = request.n_top_logprobs;
  out.request.reuse = request.reuse;
  out.request.n_propose_max = request.n_propose_max;
  out.request.salt = std::move(request.salt);
  return out;
}

}  // namespace headstart::server
