// Proves the exact bytes of answers and streams: clients break on each of these details.
#include "server/completion_response.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headstart::server {
namespace {

using nlohmann::json;

AnswerHead chat_head() { return {Endpoint::kChat, "chatcmpl-1", 1700000000, "m", 7, false}; }

exec::Completion completion() {
  exec::Completion c;
  c.text = "Hello";
  c.tokens = {1, 2, 3};
  c.finish = exec::FinishReason::kStop;
  c.n_prompt = 100;
  c.n_cached = 99;
  c.n_cached_rounded = 10;
  c.n_proposed = 8;
  c.n_accepted = 5;
  c.ttft_ms = 20;
  c.lookup_ms = 1;
  c.load_ms = 2;
  c.compute_ms = 17;
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

TEST(CompletionResponse, BeginsChatStreamsWithTheRole) {
  EXPECT_EQ(first_event(chat_head()),
            "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\","
            "\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,"
            "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
            "\"finish_reason\":null}]}\n\n");
}

TEST(CompletionResponse, EndsChatStreamsWithAReason) {
  const auto e = events(last_events(chat_head(), completion(), 30));
  ASSERT_EQ(e.size(), 2u);
  EXPECT_EQ(e[0]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(e[0]["choices"][0]["delta"], json::object());
  EXPECT_FALSE(e[0].contains("usage"));
  EXPECT_EQ(e[0]["headstart"]["ttft_ms"], 50);
  EXPECT_EQ(e[0]["headstart"]["queue_ms"], 30);
  EXPECT_EQ(e[1], "[DONE]");
}

TEST(CompletionResponse, SendsUsageOnlyWhereAsked) {
  AnswerHead head = chat_head();
  EXPECT_FALSE(events(text_event(head, "x"))[0].contains("usage"));
  head.include_usage = true;
  EXPECT_TRUE(events(text_event(head, "x"))[0].at("usage").is_null());
  const auto e = events(last_events(head, completion(), 0));
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

TEST(CompletionResponse, StreamsTextForCompletions) {
  AnswerHead head = chat_head();
  head.endpoint = Endpoint::kCompletions;
  EXPECT_EQ(first_event(head), "");
  const auto text = events(text_event(head, "a\nb"))[0];
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["text"], "a\nb");
  const auto last = events(last_events(head, completion(), 0))[0];
  EXPECT_EQ(last["choices"][0]["text"], "");
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
}

TEST(CompletionResponse, AnswersWhole) {
  exec::Completion c = completion();
  c.finish = exec::FinishReason::kLength;
  const json chat = json::parse(answer_body(chat_head(), c, 0));
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat["usage"]["prompt_tokens_details"]["cached_tokens"], 99);
  EXPECT_EQ(chat["headstart"]["seed"], 7);
  AnswerHead head = chat_head();
  head.endpoint = Endpoint::kCompletions;
  const json text = json::parse(answer_body(head, c, 0));
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["text"], "Hello");
}

TEST(CompletionResponse, SurvivesBytesThatAreNoText) {
  exec::Completion c = completion();
  c.text = "a\xff";
  EXPECT_EQ(json::parse(answer_body(chat_head(), c, 0))["choices"][0]["message"]["content"],
            "a\xef\xbf\xbd");
}

TEST(CompletionResponse, WritesErrors) {
  EXPECT_EQ(error_body(bad_field("n", "must be 1")),
            R"({"error":{"message":"'n' must be 1","type":"invalid_request_error",)"
            R"("param":"n","code":"invalid_value"}})");
  ApiError error;
  error.message = "m";
  error.n_prompt_tokens = 9;
  error.n_ctx = 8;
  EXPECT_EQ(error_event(error),
            "data: {\"error\":{\"message\":\"m\",\"type\":\"invalid_request_error\","
            "\"param\":null,\"code\":null,\"n_prompt_tokens\":9,\"n_ctx\":8}}\n\n");
}

TEST(CompletionResponse, MapsErrorsOfTheEngine) {
  EXPECT_EQ(from_engine({Code::kInvalidArgument, ""}).status, 400);
  EXPECT_EQ(from_engine({Code::kUnsupported, ""}).status, 400);
  EXPECT_EQ(from_engine({Code::kExhausted, ""}).status, 503);
  EXPECT_EQ(from_engine({Code::kUnavailable, ""}).status, 503);
  EXPECT_EQ(from_engine({Code::kCancelled, ""}).status, 503);
  EXPECT_EQ(from_engine({Code::kIo, ""}).status, 500);
  EXPECT_EQ(from_engine({Code::kIo, ""}).type, "server_error");
}

TEST(CompletionResponse, ListsTheModel) {
  const json list = json::parse(model_list_body({"m", 5, 2048, 100}));
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "m");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["meta"]["n_ctx"], 2048);
  EXPECT_EQ(json::parse(model_body({"m", 5, 2048, 100})), list["data"][0]);
}

}  // namespace
}  // namespace headstart::server
