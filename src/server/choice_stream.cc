#include "server/choice_stream.h"

#include <cmath>
#include <utility>

#include "server/completion_response.h"

namespace headstart::server {
namespace {

// What `now` has more than `before`; empty where it does not begin with it.
std::string_view growth(std::string_view before, std::string_view now) {
  return now.starts_with(before) ? now.substr(before.size()) : std::string_view();
}

}  // namespace

std::string ChoiceStream::begin() {
  if (std::exchange(begun_, true) || head_.endpoint != Endpoint::kChat) return {};
  return event(chunk(head_, index_, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
}

Json ChoiceStream::take_logprobs() {
  return logprobs_of(head_.endpoint, std::exchange(probs_, {}), n_text_byte_);
}

std::string ChoiceStream::send(Json content) {
  return event(chunk(head_, index_, std::move(content), take_logprobs(), nullptr));
}

std::string ChoiceStream::send_calls(const model::ChatMessage& message, bool whole) {
  std::string out;
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const model::ToolCall& call = message.tool_calls[i];
    const bool settled = whole || !call.arguments.empty() || i + 1 < message.tool_calls.size();
    if (!settled) break;
    if (i == sent_.tool_calls.size()) {
      sent_.tool_calls.push_back(
          {call.id.empty() ? tool_call_id(head_, index_, i) : call.id, call.name, ""});
      Json first = {{"index", i}};
      first.update(tool_call_of(sent_.tool_calls[i]));
      out += send({{"tool_calls", Json::array({std::move(first)})}});
    }
    std::string& sent = sent_.tool_calls[i].arguments;
    const std::string_view more = growth(sent, call.arguments);
    if (more.empty()) continue;
    Json next = {{"index", i}, {"function", {{"arguments", more}}}};
    out += send({{"tool_calls", Json::array({std::move(next)})}});
    sent = call.arguments;
  }
  return out;
}

std::string ChoiceStream::send_delta(const model::ChatMessage& message, bool whole) {
  std::string out;
  if (const auto more = growth(sent_.reasoning, message.reasoning); !more.empty()) {
    out += send({{"reasoning_content", more}});
    sent_.reasoning = message.reasoning;
  }
  if (const auto more = growth(sent_.content, message.content); !more.empty()) {
    out += send({{"content", more}});
    sent_.content = message.content;
  }
  return out + send_calls(message, whole);
}

std::string ChoiceStream::push_chat(TextEnd end) {
  // Where the text was cut short its last call is, too: its name is whole, its arguments are not.
  const bool whole = end == TextEnd::kWhole;
  auto message = head_.parser.parse(text_, /*partial=*/!whole);
  if (message.ok()) return send_delta(*message, whole);
  // What the parser refuses is content, if nothing else was made of it.
  const bool untouched = sent_.tool_calls.empty() && sent_.reasoning.empty();
  return end != TextEnd::kOpen && untouched ? send_delta({"assistant", text_}, whole)
                                            : std::string();
}

std::string ChoiceStream::push(std::string_view text, std::vector<model::TokenProbs> probs) {
  std::move(probs.begin(), probs.end(), std::back_inserter(probs_));
  if (text.empty()) return {};
  if (head_.endpoint == Endpoint::kNative) {
    Json out = {{"index", 0}, {"content", text}, {"stop", false}};
    if (!probs_.empty()) {
      out["completion_probabilities"] = native_probs_of(std::exchange(probs_, {}));
    }
    return event(out);
  }
  std::string out = begin();
  if (head_.endpoint == Endpoint::kCompletions) return out + send(text);
  if (head_.parser.plain()) return out + send({{"content", text}});
  text_ += text;
  return out + push_chat(TextEnd::kOpen);
}

// llama-server's field, in a chunk of each endpoint's own form.
std::string ChoiceStream::progress(const PromptProgress& progress) {
  std::string out;
  Json carrier;
  if (head_.endpoint == Endpoint::kNative) {
    carrier = {{"index", 0}, {"content", ""}, {"stop", false}};
  } else {
    out = begin();  // the role comes first, whatever a stream goes on with
    const bool chat = head_.endpoint == Endpoint::kChat;
    carrier = chunk(head_, index_, chat ? Json::object() : Json(""), nullptr, nullptr);
  }
  carrier["prompt_progress"] = {{"total", progress.n_total},
                                {"cache", progress.n_cached},
                                {"processed", progress.n_done},
                                {"time_ms", std::llround(progress.time_ms)}};
  return out + event(carrier);
}

std::string ChoiceStream::finish(const exec::Completion& completion,
                                 std::span<const Answer> totals) {
  if (head_.endpoint == Endpoint::kNative) {
    return event(native_answer(head_, totals.front(), /*with_content=*/false));
  }
  std::string out = begin();
  const bool chat = head_.endpoint == Endpoint::kChat;
  if (chat && !head_.parser.plain()) {
    const bool cut = completion.finish == exec::FinishReason::kLength;
    out += push_chat(cut ? TextEnd::kCut : TextEnd::kWhole);
  }
  Json last = chunk(head_, index_, chat ? Json::object() : Json(""), take_logprobs(),
                    finish_reason(completion.finish, !sent_.tool_calls.empty()));
  if (!totals.empty()) add_totals(last, head_, totals, /*with_usage=*/false);
  return out + event(last);
}

ChoiceStreams::ChoiceStreams(const AnswerHead& head, size_t n_choice)
    : head_(head), answers_(n_choice), n_open_(n_choice) {
  for (uint32_t i = 0; i < n_choice; ++i) streams_.emplace_back(head, i);
}

std::string ChoiceStreams::push(uint32_t i, std::string_view text,
                                std::vector<model::TokenProbs> probs) {
  return streams_[i].push(text, std::move(probs));
}

std::string ChoiceStreams::finish(uint32_t i, const Answer& answer,
                                  std::vector<model::TokenProbs> probs) {
  answers_[i] = answer;
  --n_open_;
  const bool native = head_.endpoint == Endpoint::kNative;
  const bool with_totals = native || (finished() && !head_.include_usage);
  std::string out = streams_[i].push({}, std::move(probs));
  out += streams_[i].finish(*answer.completion, with_totals ? std::span<const Answer>(answers_)
                                                            : std::span<const Answer>());
  if (!finished() || native) return out;  // a native stream just ends
  if (head_.include_usage) {
    Json usage = envelope(head_, object_of_chunks(head_));
    usage["choices"] = Json::array();
    add_totals(usage, head_, answers_, /*with_usage=*/true);
    out += event(usage);
  }
  return out + "data: [DONE]\n\n";
}

}  // namespace headstart::server
