// Proves the exact events of streams: clients break on each of these details. Tool calls are read
// by a client's rules here and compared with what the library makes of the whole text.
//
// To add an answer of a model: a text to kAnswers.
#include "server/choice_stream.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/chat_template.h"
#include "server/completion_response.h"
#include "tests/support/chat_templates.h"

namespace headstart::server {
namespace {

using nlohmann::json;

AnswerHead chat_head() { return {Endpoint::kChat, "chatcmpl-1", 1700000000, "m", 7, false, {}}; }

exec::Completion completion(std::string text = "Hello") {
  exec::Completion c;
  c.text = std::move(text);
  c.tokens = {1, 2, 3};
  c.finish = exec::FinishReason::kStop;
  c.n_prompt = 100;
  c.n_cached = 99;
  c.n_cached_rounded = 10;
  c.n_proposed = 8;
  c.n_accepted = 5;
  c.ttft_ms = 20;
  return c;
}

// The data lines of an SSE text, [DONE] as a string.
std::vector<json> events(const std::string& text) {
  std::vector<json> out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find("\n\n", at);
    EXPECT_EQ(text.substr(at, 6), "data: ");
    const std::string data = text.substr(at + 6, end - at - 6);
    EXPECT_EQ(data.find('\n'), std::string::npos);
    out.push_back(data == "[DONE]" ? json(data) : json::parse(data));
    at = end + 2;
  }
  return out;
}

TEST(ChoiceStream, BeginsChatStreamsWithTheRole) {
  const AnswerHead head = chat_head();
  ChoiceStreams streams(head, 1);
  EXPECT_EQ(streams.push(0, "", {}), "");
  EXPECT_EQ(streams.push(0, "x", {}),
            "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\","
            "\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,"
            "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
            "\"finish_reason\":null}]}\n\n"
            "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\","
            "\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,"
            "\"delta\":{\"content\":\"x\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  EXPECT_EQ(events(streams.push(0, "y", {})).size(), 1u);
}

TEST(ChoiceStream, EndsChatStreamsWithAReason) {
  const AnswerHead head = chat_head();
  const exec::Completion c = completion();
  const auto e = events(ChoiceStreams(head, 1).finish(0, {&c, 30}, {}));
  ASSERT_EQ(e.size(), 3u);
  EXPECT_EQ(e[0]["choices"][0]["delta"]["role"], "assistant");  // even of an answer without text
  EXPECT_EQ(e[1]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(e[1]["choices"][0]["delta"], json::object());
  EXPECT_FALSE(e[1].contains("usage"));
  EXPECT_EQ(e[1]["headstart"]["ttft_ms"], 50);
  EXPECT_EQ(e[1]["headstart"]["queue_ms"], 30);
  EXPECT_EQ(e[1]["timings"]["cache_n"], 99);
  EXPECT_EQ(e[2], "[DONE]");
}

TEST(ChoiceStream, SendsUsageOnlyWhereAsked) {
  AnswerHead head = chat_head();
  const exec::Completion c = completion();
  ChoiceStreams without(head, 1);
  EXPECT_FALSE(events(without.push(0, "x", {}))[1].contains("usage"));
  head.include_usage = true;
  ChoiceStreams streams(head, 1);
  EXPECT_TRUE(events(streams.push(0, "x", {}))[1].at("usage").is_null());
  const auto e = events(streams.finish(0, {&c, 0}, {}));
  ASSERT_EQ(e.size(), 3u);
  EXPECT_EQ(e[0]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(e[1]["choices"], json::array());
  EXPECT_EQ(e[1]["usage"], json::parse(R"({"prompt_tokens":100,"completion_tokens":3,
      "total_tokens":103,"prompt_tokens_details":{"cached_tokens":99}})"));
  EXPECT_EQ(e[1]["headstart"]["n_cached_rounded"], 10);
  EXPECT_EQ(e[1]["headstart"]["n_proposed"], 8);
  EXPECT_EQ(e[1]["headstart"]["n_accepted"], 5);
  EXPECT_EQ(e[2], "[DONE]");
}

TEST(ChoiceStream, StreamsTextForCompletions) {
  AnswerHead head = chat_head();
  head.endpoint = Endpoint::kCompletions;
  const exec::Completion c = completion();
  ChoiceStreams streams(head, 1);
  const auto text = events(streams.push(0, "a\nb", {}));
  ASSERT_EQ(text.size(), 1u);  // no role
  EXPECT_EQ(text[0]["object"], "text_completion");
  EXPECT_EQ(text[0]["choices"][0]["text"], "a\nb");
  const auto last = events(streams.finish(0, {&c, 0}, {}))[0];
  EXPECT_EQ(last["choices"][0]["text"], "");
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
}

TEST(ChoiceStream, StreamsAsLlamaServer) {
  AnswerHead head = chat_head();
  head.endpoint = Endpoint::kNative;
  const exec::Completion c = completion();
  ChoiceStreams streams(head, 1);
  const auto text = events(streams.push(0, "Hello", {}));
  ASSERT_EQ(text.size(), 1u);
  EXPECT_EQ(text[0]["content"], "Hello");
  EXPECT_EQ(text[0]["stop"], false);
  const auto last = events(streams.finish(0, {&c, 0}, {}));
  ASSERT_EQ(last.size(), 1u);  // no [DONE]
  EXPECT_EQ(last[0]["content"], "");
  EXPECT_EQ(last[0]["stop"], true);
  EXPECT_EQ(last[0]["tokens_predicted"], 3);
}

TEST(ChoiceStream, MixesChoicesAndEndsOnce) {
  const AnswerHead head = chat_head();
  const exec::Completion c = completion();
  ChoiceStreams streams(head, 2);
  EXPECT_EQ(events(streams.push(1, "b", {}))[1]["choices"][0]["index"], 1);
  const auto first = events(streams.finish(1, {&c, 0}, {}));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0]["choices"][0]["finish_reason"], "stop");
  EXPECT_FALSE(first[0].contains("headstart"));
  EXPECT_FALSE(streams.finished());
  streams.push(0, "a", {});
  const auto last = events(streams.finish(0, {&c, 0}, {}));
  ASSERT_EQ(last.size(), 2u);
  EXPECT_TRUE(last[0].contains("headstart"));
  EXPECT_EQ(last[1], "[DONE]");
  EXPECT_TRUE(streams.finished());
}

TEST(ChoiceStream, ProbabilitiesComeWithTheirTextAndNoneIsLost) {
  AnswerHead head = chat_head();
  head.endpoint = Endpoint::kCompletions;
  const exec::Completion c = completion();
  const model::TokenProbs he{{1, -1.0f, "He"}, {}}, llo{{2, -2.0f, "llo"}, {}};
  ChoiceStreams streams(head, 1);
  const json first = events(streams.push(0, "He", {he}))[0]["choices"][0]["logprobs"];
  EXPECT_EQ(first["tokens"], json::parse(R"(["He"])"));
  EXPECT_EQ(first["text_offset"], json::parse("[0]"));
  EXPECT_TRUE(events(streams.push(0, "l", {}))[0]["choices"][0]["logprobs"].is_null());
  const json last = events(streams.finish(0, {&c, 0}, {llo}))[0]["choices"][0]["logprobs"];
  EXPECT_EQ(last["token_logprobs"], json::parse("[-2.0]"));
  EXPECT_EQ(last["text_offset"], json::parse("[2]"));
}

// What a client puts together from the deltas of a stream, by the rules that clients have.
struct Received {
  std::string content, reasoning, finish_reason;
  std::vector<model::ToolCall> calls;
};

Received receive(const std::vector<json>& stream) {
  Received r;
  for (const json& e : stream) {
    if (e == "[DONE]" || e["choices"].empty()) continue;
    const json& choice = e["choices"][0];
    if (!choice["finish_reason"].is_null()) r.finish_reason = choice["finish_reason"];
    const json& delta = choice["delta"];
    r.content += delta.value("content", "");
    r.reasoning += delta.value("reasoning_content", "");
    for (const json& call : delta.value("tool_calls", json::array())) {
      const size_t i = call["index"];
      if (i == r.calls.size()) {  // the first of a call, which holds all but its arguments
        EXPECT_EQ(call["type"], "function");
        EXPECT_EQ(call["function"]["arguments"], "");
        EXPECT_NE(call["function"]["name"], "");
        r.calls.push_back({call["id"], call["function"]["name"], ""});
        EXPECT_NE(r.calls[i].id, "");
        continue;
      }
      EXPECT_EQ(i + 1, r.calls.size()) << "calls come one after the other";
      if (i >= r.calls.size()) return r;
      EXPECT_EQ(call.size(), 2u) << call;
      EXPECT_EQ(call["function"].size(), 1u) << call;
      r.calls[i].arguments += call["function"]["arguments"].get<std::string>();
    }
  }
  return r;
}

struct Answered {
  const char* text;
  bool think = false;
};
void PrintTo(const Answered& answered, std::ostream* out) {
  *out << json(std::string(answered.text)).dump();
}
const Answered kAnswers[] = {
    {"Hello there."},
    {""},
    {"a < b, <tool, <tool_cal"},
    {"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris \\\"x\\\"\"}}\n"
     "</tool_call>"},
    {"I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n"
     "</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>\n"
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"},
    {"<think>\nhm, <b>\n</think>\n\nhello", true},
    {"no thought", true},
};

class ChoiceStreamOfModels : public testing::TestWithParam<Answered> {};

TEST_P(ChoiceStreamOfModels, DeltasAddUpToTheMessage) {
  const std::string text = GetParam().text;
  const auto t =
      model::ChatTemplate::of(GetParam().think ? test::kThinkTemplate : test::kToolTemplate);
  ASSERT_TRUE(t.ok());
  model::ChatInput input;
  input.messages = {{"user", "hi"}};
  if (!GetParam().think) {
    input.tools = {{"weather", "", R"({"type":"object","properties":{"city":{"type":"string"}}})"},
                   {"time", "", "{}"}};
  }
  input.parallel_tool_calls = true;
  const auto prompt = (*t)->apply(input);
  ASSERT_TRUE(prompt.ok()) << prompt.error().message;
  const auto expected = prompt->parser.parse(text, /*partial=*/false);
  AnswerHead head = chat_head();
  head.parser = prompt->parser;
  const exec::Completion c = completion(text);
  for (const size_t n : {size_t{1}, size_t{3}, size_t{7}, size_t{1000}}) {
    ChoiceStreams streams(head, 1);
    std::vector<json> all;
    for (size_t at = 0; at < text.size(); at += n) {
      for (json& e : events(streams.push(0, text.substr(at, n), {}))) all.push_back(std::move(e));
    }
    const size_t n_before_end = all.size();
    for (json& e : events(streams.finish(0, {&c, 0}, {}))) all.push_back(std::move(e));
    const Received got = receive(all);
    EXPECT_EQ(got.content, expected.ok() ? expected->content : text);
    EXPECT_EQ(got.reasoning, expected.ok() ? expected->reasoning : "");
    const size_t n_call = expected.ok() ? expected->tool_calls.size() : 0;
    ASSERT_EQ(got.calls.size(), n_call);
    for (size_t i = 0; i < n_call; ++i) {
      EXPECT_EQ(got.calls[i].name, expected->tool_calls[i].name);
      EXPECT_EQ(got.calls[i].arguments, expected->tool_calls[i].arguments);
      EXPECT_TRUE(json::accept(got.calls[i].arguments)) << got.calls[i].arguments;
    }
    EXPECT_EQ(got.finish_reason, n_call > 0 ? "tool_calls" : "stop");
    // It streams: most of it does not wait for the end.
    if (n == 1 && text.size() > 8) {
      EXPECT_GT(n_before_end, text.size() / 8) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Answers, ChoiceStreamOfModels, testing::ValuesIn(kAnswers));

TEST(ChoiceStream, WhatTheParserRefusesIsContent) {
  const auto t = model::ChatTemplate::of(test::kToolTemplate);
  ASSERT_TRUE(t.ok());
  model::ChatInput input;
  input.messages = {{"user", "hi"}};
  input.tools = {{"time", "", "{}"}};
  const auto prompt = (*t)->apply(input);
  ASSERT_TRUE(prompt.ok());
  AnswerHead head = chat_head();
  head.parser = prompt->parser;
  const std::string text = std::string(1000, '[') + "!";
  exec::Completion c = completion(text);
  for (const auto finish : {exec::FinishReason::kStop, exec::FinishReason::kLength}) {
    c.finish = finish;
    ChoiceStreams streams(head, 1);
    auto all = events(streams.push(0, text, {}));
    for (json& e : events(streams.finish(0, {&c, 0}, {}))) all.push_back(std::move(e));
    EXPECT_EQ(receive(all).content, text);
    // A stream says what the whole answer says.
    const json whole = json::parse(answer_body(head, std::vector<Answer>{{&c, 0}}));
    EXPECT_EQ(whole["choices"][0]["message"]["content"], text);
  }
}

TEST(ChoiceStream, ACutCallEndsWithLength) {
  const auto t = model::ChatTemplate::of(test::kToolTemplate);
  ASSERT_TRUE(t.ok());
  model::ChatInput input;
  input.messages = {{"user", "hi"}};
  input.tools = {{"weather", "", R"({"type":"object","properties":{"city":{"type":"string"}}})"}};
  const auto prompt = (*t)->apply(input);
  ASSERT_TRUE(prompt.ok());
  AnswerHead head = chat_head();
  head.parser = prompt->parser;
  exec::Completion c =
      completion("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Pa");
  c.finish = exec::FinishReason::kLength;
  ChoiceStreams streams(head, 1);
  auto all = events(streams.push(0, c.text, {}));
  for (json& e : events(streams.finish(0, {&c, 0}, {}))) all.push_back(std::move(e));
  const Received got = receive(all);
  EXPECT_EQ(got.finish_reason, "length");
  ASSERT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(got.calls[0].arguments, R"({"city": "Pa)");
}

}  // namespace
}  // namespace headstart::server
