#include "server/completion_response.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace headstart::server {
namespace {

using json = nlohmann::ordered_json;

// A model may write bytes that are no UTF-8; the client gets replacement characters, never a 500.
std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string event(const json& value) { return "data: " + dump(value) + "\n\n"; }

const char* reason(exec::FinishReason finish) {
  return finish == exec::FinishReason::kStop ? "stop" : "length";
}

json or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

json usage_of(const exec::Completion& c) {
  const auto n_generated = static_cast<uint32_t>(c.tokens.size());
  return {{"prompt_tokens", c.n_prompt},
          {"completion_tokens", n_generated},
          {"total_tokens", c.n_prompt + n_generated},
          {"prompt_tokens_details", {{"cached_tokens", c.n_cached}}}};
}

// Where the time to the first token went, counted from acceptance.
json extension_of(const AnswerHead& head, const exec::Completion& c, double queue_ms) {
  return {{"ttft_ms", queue_ms + c.ttft_ms},
          {"queue_ms", queue_ms},
          {"wait_ms", c.wait_ms},
          {"lookup_ms", c.lookup_ms},
          {"load_ms", c.load_ms},
          {"compute_ms", c.compute_ms},
          {"n_cached_rounded", c.n_cached_rounded},
          {"n_proposed", c.n_proposed},
          {"n_accepted", c.n_accepted},
          {"prefill_tok_s", c.prefill_tok_s},
          {"decode_tok_s", c.decode_tok_s},
          {"seed", head.seed}};
}

json envelope(const AnswerHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

bool is_chat(const AnswerHead& head) { return head.endpoint == Endpoint::kChat; }

// One chunk of a stream with one choice; `content` is a delta for chat, a text for completions.
json chunk(const AnswerHead& head, json content, json finish_reason) {
  json out = envelope(head, is_chat(head) ? "chat.completion.chunk" : "text_completion");
  out["choices"] = json::array({{{"index", 0},
                                 {is_chat(head) ? "delta" : "text", std::move(content)},
                                 {"logprobs", nullptr},
                                 {"finish_reason", std::move(finish_reason)}}});
  // With include_usage OpenAI sends the field in every chunk.
  if (head.include_usage) out["usage"] = nullptr;
  return out;
}

json error_of(const ApiError& error) {
  json inner = {{"message", error.message},
                {"type", error.type},
                {"param", or_null(error.param)},
                {"code", or_null(error.code)}};
  if (error.n_prompt_tokens) inner["n_prompt_tokens"] = *error.n_prompt_tokens;
  if (error.n_ctx) inner["n_ctx"] = *error.n_ctx;
  return {{"error", std::move(inner)}};
}

json card_of(const ModelCard& card) {
  return {{"id", card.id},
          {"object", "model"},
          {"created", card.created},
          {"owned_by", "headstart"},
          {"meta", {{"n_ctx", card.n_ctx}, {"n_vocab", card.n_vocab}}}};
}

}  // namespace

std::string answer_body(const AnswerHead& head, const exec::Completion& completion,
                        double queue_ms) {
  json out = envelope(head, is_chat(head) ? "chat.completion" : "text_completion");
  json choice = {{"index", 0}};
  if (is_chat(head)) {
    choice["message"] = {{"role", "assistant"}, {"content", completion.text}, {"refusal", nullptr}};
  } else {
    choice["text"] = completion.text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = reason(completion.finish);
  out["choices"] = json::array({std::move(choice)});
  out["usage"] = usage_of(completion);
  out["headstart"] = extension_of(head, completion, queue_ms);
  return dump(out);
}

std::string first_event(const AnswerHead& head) {
  if (!is_chat(head)) return {};
  return event(chunk(head, {{"role", "assistant"}, {"content", ""}}, nullptr));
}

std::string text_event(const AnswerHead& head, std::string_view piece) {
  json content = std::string(piece);
  if (is_chat(head)) content = json{{"content", std::move(content)}};
  return event(chunk(head, std::move(content), nullptr));
}

std::string last_events(const AnswerHead& head, const exec::Completion& completion,
                        double queue_ms) {
  json last = chunk(head, is_chat(head) ? json::object() : json(""), reason(completion.finish));
  std::string out;
  if (head.include_usage) {
    out = event(last);
    last = envelope(head, is_chat(head) ? "chat.completion.chunk" : "text_completion");
    last["choices"] = json::array();
    last["usage"] = usage_of(completion);
  }
  last["headstart"] = extension_of(head, completion, queue_ms);
  return out + event(last) + "data: [DONE]\n\n";
}

std::string error_event(const ApiError& error) { return event(error_of(error)); }

std::string error_body(const ApiError& error) { return dump(error_of(error)); }

std::string model_body(const ModelCard& card) { return dump(card_of(card)); }

std::string model_list_body(const ModelCard& card) {
  return dump({{"object", "list"}, {"data", json::array({card_of(card)})}});
}

}  // namespace headstart::server
