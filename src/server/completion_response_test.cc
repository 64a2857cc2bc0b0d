// Proves the exact bytes of answers and streams: clients break on each of these details.
#include "server/completion_response.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headstart::server {
namespace {

using nlohmann::json;

AnswerHead chat_head() { return {Endpoint::kChat, "chatcmpl-1", 1700000000, "m", 7, false, {}}; }

std::string whole(const AnswerHead& head, const exec::Completion& completion) {
  const Answer answer{&completion, 0};
  return answer_body(head, std::span(&answer, 1));
}

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
  c.decode_ms = 3;
  return c;
}

TEST(CompletionResponse, AnswersWhole) {
  exec::Completion c = completion();
  c.finish = exec::FinishReason::kLength;
  const json chat = json::parse(whole(chat_head(), c));
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat["usage"]["prompt_tokens_details"]["cached_tokens"], 99);
  EXPECT_EQ(chat["headstart"]["seed"], 7);
  EXPECT_EQ(chat["timings"]["cache_n"], 99);
  EXPECT_EQ(chat["timings"]["prompt_n"], 1);
  EXPECT_EQ(chat["timings"]["prompt_per_second"], 50);
  EXPECT_EQ(chat["timings"]["predicted_n"], 3);
  EXPECT_EQ(chat["timings"]["predicted_per_second"], 1000);
  EXPECT_EQ(chat["timings"]["draft_n_accepted"], 5);
  AnswerHead head = chat_head();
  head.endpoint = Endpoint::kCompletions;
  const json text = json::parse(whole(head, c));
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["text"], "Hello");
}

// Case 19: what the user can change so that more is reused.
TEST(CompletionResponse, SaysWhereThePromptLeftTheStoredOne) {
  exec::Completion c = completion();
  EXPECT_TRUE(json::parse(whole(chat_head(), c))["headstart"]["divergence"].is_null());
  c.divergence = {12, "10:42 \"", "10:41"};
  const json said = json::parse(whole(chat_head(), c))["headstart"];
  EXPECT_EQ(said["divergence"]["token"], 12);
  EXPECT_EQ(said["divergence"]["prompt_text"], "10:42 \"");
  EXPECT_EQ(said["divergence"]["stored_text"], "10:41");
  EXPECT_EQ(said["n_cached_exact"], 89);
  EXPECT_EQ(said["n_computed"], 1);
}

TEST(CompletionResponse, SurvivesBytesThatAreNoText) {
  exec::Completion c = completion();
  c.text = "a\xff";
  EXPECT_EQ(json::parse(whole(chat_head(), c))["choices"][0]["message"]["content"],
            "a\xef\xbf\xbd");
}

TEST(CompletionResponse, CountsThePromptOnce) {
  const exec::Completion a = completion(), b = completion();
  const Answer answers[] = {{&a, 0}, {&b, 0}};
  const json body = json::parse(answer_body(chat_head(), answers));
  EXPECT_EQ(body["choices"].size(), 2u);
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 100);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_EQ(body["usage"]["total_tokens"], 106);
}

TEST(CompletionResponse, WritesProbabilities) {
  exec::Completion c = completion();
  c.probs = {{{1, -0.25f, "He"}, {{1, -0.25f, "He"}, {2, -2.0f, "\xE2\x82"}}},
             {{3, -3.0f, "llo"}, {{1, -0.25f, "He"}, {2, -2.0f, "\xE2\x82"}}}};
  const json content = json::parse(whole(chat_head(), c))["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "He");
  EXPECT_EQ(content[0]["logprob"], -0.25);
  EXPECT_EQ(content[0]["bytes"], json::parse("[72,101]"));
  EXPECT_EQ(content[0]["top_logprobs"][1]["token"], R"(bytes:\xe2\x82)");
  EXPECT_EQ(content[0]["top_logprobs"][1]["bytes"], json::parse("[226,130]"));
  AnswerHead head = chat_head();
  head.endpoint = Endpoint::kCompletions;
  const json text = json::parse(whole(head, c))["choices"][0]["logprobs"];
  EXPECT_EQ(text["tokens"], json::parse(R"(["He","llo"])"));
  EXPECT_EQ(text["token_logprobs"], json::parse("[-0.25,-3.0]"));
  EXPECT_EQ(text["text_offset"], json::parse("[0,2]"));
  EXPECT_EQ(text["top_logprobs"][1]["llo"], -3.0);  // though it is none of the likeliest
  EXPECT_EQ(text["top_logprobs"][1].size(), 3u);
}

TEST(CompletionResponse, AnswersAsLlamaServer) {
  exec::Completion c = completion();
  AnswerHead head = chat_head();
  head.endpoint = Endpoint::kNative;
  json body = json::parse(whole(head, c));
  EXPECT_EQ(body["content"], "Hello");
  EXPECT_EQ(body["tokens"], json::parse("[1,2,3]"));
  EXPECT_EQ(body["stop"], true);
  EXPECT_EQ(body["stop_type"], "eos");
  EXPECT_EQ(body["timings"]["predicted_n"], 3);
  c.stop = "END";
  EXPECT_EQ(json::parse(whole(head, c))["stop_type"], "word");
  EXPECT_EQ(json::parse(whole(head, c))["stopping_word"], "END");
  c.finish = exec::FinishReason::kLength;
  EXPECT_EQ(json::parse(whole(head, c))["stop_type"], "limit");
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
