#include "server/completion_response.h"

#include <utility>

namespace headstart::server {
namespace {

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json error_of(const ApiError& error) {
  Json inner = {{"message", error.message},
                {"type", error.type},
                {"param", or_null(error.param)},
                {"code", or_null(error.code)}};
  if (error.n_prompt_tokens) inner["n_prompt_tokens"] = *error.n_prompt_tokens;
  if (error.n_ctx) inner["n_ctx"] = *error.n_ctx;
  return {{"error", std::move(inner)}};
}

Json card_of(const ModelCard& card) {
  return {{"id", card.id},
          {"object", "model"},
          {"created", card.created},
          {"owned_by", "headstart"},
          {"meta", {{"n_ctx", card.n_ctx}, {"n_vocab", card.n_vocab}}}};
}

// OpenAI's has no content where there are only calls.
Json message_json(const model::ChatMessage& message) {
  const bool calls = !message.tool_calls.empty();
  Json out = {{"role", "assistant"},
              {"content", calls ? or_null(message.content) : Json(message.content)},
              {"refusal", nullptr}};
  if (!message.reasoning.empty()) out["reasoning_content"] = message.reasoning;
  for (const auto& call : message.tool_calls) out["tool_calls"].push_back(tool_call_of(call));
  return out;
}

Json choice_of(const AnswerHead& head, uint32_t index, const exec::Completion& completion) {
  Json choice = {{"index", index}};
  bool calls = false;
  if (head.endpoint == Endpoint::kChat) {
    const auto message = message_of(head, index, completion);
    calls = !message.tool_calls.empty();
    choice["message"] = message_json(message);
  } else {
    choice["text"] = completion.text;
  }
  size_t n_text_byte = 0;
  choice["logprobs"] = logprobs_of(head.endpoint, completion.probs, n_text_byte);
  choice["finish_reason"] = finish_reason(completion.finish, calls);
  return choice;
}

}  // namespace

std::string answer_body(const AnswerHead& head, std::span<const Answer> answers) {
  if (head.endpoint == Endpoint::kNative) {
    return dump(native_answer(head, answers.front(), /*with_content=*/true));
  }
  Json out =
      envelope(head, head.endpoint == Endpoint::kChat ? "chat.completion" : "text_completion");
  out["choices"] = Json::array();
  for (uint32_t i = 0; i < answers.size(); ++i) {
    out["choices"].push_back(choice_of(head, i, *answers[i].completion));
  }
  add_totals(out, head, answers, /*with_usage=*/true);
  return dump(out);
}

Json native_answer(const AnswerHead& head, const Answer& answer, bool with_content) {
  const exec::Completion& c = *answer.completion;
  const bool cut_short = c.finish == exec::FinishReason::kLength;
  Json out = {{"index", 0},
              {"content", with_content ? c.text : ""},
              {"tokens", c.tokens},
              {"stop", true},
              {"model", head.model},
              {"tokens_predicted", c.tokens.size()},
              {"tokens_evaluated", c.n_prompt},
              {"tokens_cached", c.n_cached},
              {"truncated", false},
              {"stop_type", cut_short        ? "limit"
                            : c.stop.empty() ? "eos"
                                             : "word"},
              {"stopping_word", c.stop}};
  if (with_content && !c.probs.empty()) out["completion_probabilities"] = native_probs_of(c.probs);
  add_totals(out, head, std::span(&answer, 1), /*with_usage=*/false);
  return out;
}

std::string error_event(const ApiError& error) { return event(error_of(error)); }

std::string error_body(const ApiError& error) { return dump(error_of(error)); }

std::string model_body(const ModelCard& card) { return dump(card_of(card)); }

std::string model_list_body(const ModelCard& card) {
  return dump({{"object", "list"}, {"data", Json::array({card_of(card)})}});
}

}  // namespace headstart::server
