#include "server/answer_json.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

namespace headstart::server {
namespace {

// OpenAI's form of a token that is not UTF-8 by itself: bytes:\xe2\x82.
std::string shown(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

Json prob_of(const model::TokenProb& p) {
  return {{"token", shown(p.text)}, {"logprob", p.logprob}, {"bytes", byte_values(p.text)}};
}

Json chat_logprobs(std::span<const model::TokenProbs> probs) {
  Json content = Json::array();
  for (const auto& p : probs) {
    Json entry = prob_of(p.picked);
    entry["top_logprobs"] = Json::array();
    for (const auto& top : p.top) entry["top_logprobs"].push_back(prob_of(top));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json text_logprobs(std::span<const model::TokenProbs> probs, size_t& n_text_byte) {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const auto& p : probs) {
    tokens.push_back(shown(p.picked.text));
    values.push_back(p.picked.logprob);
    offsets.push_back(n_text_byte);
    n_text_byte += p.picked.text.size();
    Json top = Json::object();
    for (const auto& t : p.top) top[shown(t.text)] = t.logprob;
    // OpenAI's holds the token itself too, however unlikely it was.
    if (!p.top.empty()) top[shown(p.picked.text)] = p.picked.logprob;
    tops.push_back(p.top.empty() ? Json(nullptr) : std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

double per(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace

std::string event(const Json& value) { return "data: " + dump(value) + "\n\n"; }

Json envelope(const AnswerHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

const char* object_of_chunks(const AnswerHead& head) {
  return head.endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion";
}

Json chunk(const AnswerHead& head, uint32_t index, Json content, Json logprobs,
           Json finish_reason) {
  Json out = envelope(head, object_of_chunks(head));
  const char* name = head.endpoint == Endpoint::kChat ? "delta" : "text";
  out["choices"] = Json::array({{{"index", index},
                                 {name, std::move(content)},
                                 {"logprobs", std::move(logprobs)},
                                 {"finish_reason", std::move(finish_reason)}}});
  // With include_usage OpenAI sends the field in every chunk.
  if (head.include_usage) out["usage"] = nullptr;
  return out;
}

Json usage_of(std::span<const Answer> answers) {
  const exec::Completion& first = *answers.front().completion;
  uint64_t n_generated = 0;
  for (const Answer& a : answers) n_generated += a.completion->tokens.size();
  return {{"prompt_tokens", first.n_prompt},
          {"completion_tokens", n_generated},
          {"total_tokens", first.n_prompt + n_generated},
          {"prompt_tokens_details", {{"cached_tokens", first.n_cached}}}};
}

Json timings_of(const exec::Completion& c) {
  const double n_prompt = c.n_prompt - c.n_cached;
  const auto n_predicted = static_cast<double>(c.tokens.size());
  Json out = {{"cache_n", c.n_cached},
              {"prompt_n", c.n_prompt - c.n_cached},
              {"prompt_ms", c.ttft_ms},
              {"prompt_per_token_ms", per(c.ttft_ms, n_prompt)},
              {"prompt_per_second", per(n_prompt * 1e3, c.ttft_ms)},
              {"predicted_n", c.tokens.size()},
              {"predicted_ms", c.decode_ms},
              {"predicted_per_token_ms", per(c.decode_ms, n_predicted)},
              {"predicted_per_second", per(n_predicted * 1e3, c.decode_ms)}};
  if (c.n_proposed > 0) {
    out["draft_n"] = c.n_proposed;
    out["draft_n_accepted"] = c.n_accepted;
  }
  return out;
}

// Which token of the prompt cost the reuse of what follows it; null where none did.
Json divergence_of(const exec::Completion& c) {
  if (!c.divergence) return nullptr;
  return {{"token", c.divergence->pos},
          {"prompt_text", c.divergence->prompt_text},
          {"stored_text", c.divergence->stored_text}};
}

Json extension_of(const AnswerHead& head, const Answer& answer) {
  const exec::Completion& c = *answer.completion;
  return {{"ttft_ms", answer.queue_ms + c.ttft_ms},
          {"queue_ms", answer.queue_ms},
          {"wait_ms", c.wait_ms},
          {"lookup_ms", c.lookup_ms},
          {"load_ms", c.load_ms},
          {"compute_ms", c.compute_ms},
          {"n_cached_exact", c.n_cached - c.n_cached_rounded},
          {"n_cached_rounded", c.n_cached_rounded},
          {"n_computed", c.n_prompt - c.n_cached},
          {"divergence", divergence_of(c)},
          {"n_proposed", c.n_proposed},
          {"n_accepted", c.n_accepted},
          {"prefill_tok_s", c.prefill_tok_s},
          {"decode_tok_s", c.decode_tok_s},
          {"seed", head.seed}};
}

void add_totals(Json& out, const AnswerHead& head, std::span<const Answer> answers,
                bool with_usage) {
  if (with_usage) out["usage"] = usage_of(answers);
  out["timings"] = timings_of(*answers.front().completion);
  out["headstart"] = extension_of(head, answers.front());
}

Json logprobs_of(Endpoint endpoint, std::span<const model::TokenProbs> probs, size_t& n_text_byte) {
  if (probs.empty()) return nullptr;
  return endpoint == Endpoint::kChat ? chat_logprobs(probs) : text_logprobs(probs, n_text_byte);
}

Json native_probs_of(std::span<const model::TokenProbs> probs) {
  Json out = Json::array();
  const auto entry_of = [](const model::TokenProb& p) {
    Json entry = {{"id", p.token}};
    entry.update(prob_of(p));
    return entry;
  };
  for (const auto& p : probs) {
    Json entry = entry_of(p.picked);
    entry["top_logprobs"] = Json::array();
    for (const auto& top : p.top) entry["top_logprobs"].push_back(entry_of(top));
    out.push_back(std::move(entry));
  }
  return out;
}

std::string tool_call_id(const AnswerHead& head, uint32_t choice, size_t call) {
  return fmt::format("call_{}_{}_{}", head.id.substr(head.id.find('-') + 1), choice, call);
}

Json tool_call_of(const model::ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

model::ChatMessage message_of(const AnswerHead& head, uint32_t choice,
                              const exec::Completion& completion) {
  const bool cut_short = completion.finish == exec::FinishReason::kLength;
  auto parsed = head.parser.parse(completion.text, cut_short);
  if (!parsed.ok()) return {"assistant", completion.text};
  for (size_t i = 0; i < parsed->tool_calls.size(); ++i) {
    if (parsed->tool_calls[i].id.empty()) {
      parsed->tool_calls[i].id = tool_call_id(head, choice, i);
    }
  }
  return *std::move(parsed);
}

const char* finish_reason(exec::FinishReason finish, bool has_tool_calls) {
  if (finish == exec::FinishReason::kLength) return "length";
  return has_tool_calls ? "tool_calls" : "stop";
}

}  // namespace headstart::server
