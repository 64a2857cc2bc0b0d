// Proves that every form in which clients send a request is read, and that every wrong one is the
// client's error and names its field. To add a wrong one, add a row to a table below.
#include "server/completion_request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace headstart::server {
namespace {

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::string chat_with(const std::string& fields) {
  return std::string("{") + kMessages + (fields.empty() ? "" : "," + fields) + "}";
}

ApiRequest chat(const std::string& body) {
  auto request = parse_request(Endpoint::kChat, body);
  EXPECT_TRUE(request) << body << ": " << request.error().message;
  return request ? *request : ApiRequest{};
}

ApiRequest completions(const std::string& body) {
  auto request = parse_request(Endpoint::kCompletions, body);
  EXPECT_TRUE(request) << body << ": " << request.error().message;
  return request ? *request : ApiRequest{};
}

ApiError refused(Endpoint endpoint, const std::string& body) {
  auto request = parse_request(endpoint, body);
  EXPECT_FALSE(request) << body.substr(0, 200);
  return request ? ApiError{} : request.error();
}

TEST(CompletionRequest, TakesDefaultsOfOpenAi) {
  const ApiRequest r = chat(chat_with(""));
  EXPECT_FLOAT_EQ(r.sampling.temperature, 1.0f);
  EXPECT_FLOAT_EQ(r.sampling.top_p, 1.0f);
  EXPECT_EQ(r.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(r.sampling.min_p, 0.05f);
  EXPECT_FLOAT_EQ(r.sampling.repeat_penalty, 1.0f);
  EXPECT_EQ(r.max_tokens, kRestOfContext);
  EXPECT_FALSE(r.seed.has_value());
  EXPECT_FALSE(r.stream);
  EXPECT_FALSE(r.reuse.has_value());
  EXPECT_EQ(completions(R"({"prompt":"x"})").max_tokens, 16u);
}

TEST(CompletionRequest, ReadsNullAsAbsent) {
  const ApiRequest r = chat(chat_with(
      R"("model":null,"max_tokens":null,"max_completion_tokens":null,"temperature":null,
         "top_p":null,"top_k":null,"min_p":null,"presence_penalty":null,"frequency_penalty":null,
         "repeat_penalty":null,"logit_bias":null,"seed":null,"stop":null,"n":null,"stream":null,
         "stream_options":null,"headstart":null,"cache_salt":null,"tools":null,"tool_choice":null,
         "functions":null,"response_format":null,"logprobs":null,"top_logprobs":null,"user":null,
         "grammar":null,"json_schema":null)"));
  EXPECT_FLOAT_EQ(r.sampling.temperature, 1.0f);
  EXPECT_EQ(r.max_tokens, kRestOfContext);
  const ApiRequest c = completions(
      R"({"prompt":"x","suffix":null,"echo":null,"best_of":null,"logprobs":null,"stop":null})");
  EXPECT_EQ(std::get<std::string>(c.prompt), "x");
}

TEST(CompletionRequest, AcceptsUnknownAndHarmlessFields) {
  const ApiRequest r = chat(chat_with(
      R"("model":"gpt-4","store":true,"metadata":{"a":[1]},"parallel_tool_calls":true,"tools":[],
         "tool_choice":"none","response_format":{"type":"text"},"n":1,"logprobs":false,
         "reasoning_effort":"low","user":"u")"));
  EXPECT_EQ(r.messages.size(), 1u);
}

TEST(CompletionRequest, ReadsEveryFormOfContent) {
  const ApiRequest r = chat(
      R"({"messages":[
        {"role":"system","content":"s"},
        {"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
        {"role":"assistant","content":null,"tool_calls":null},
        {"role":"assistant"},
        {"role":"user","content":[],"name":"n"},
        {"role":"tool","content":"t","tool_call_id":"1"}]})");
  ASSERT_EQ(r.messages.size(), 6u);
  EXPECT_EQ(r.messages[0].content, "s");
  EXPECT_EQ(r.messages[1].role, "system");  // templates do not know developer
  EXPECT_EQ(r.messages[1].content, "a\nb");
  EXPECT_EQ(r.messages[2].content, "");
  EXPECT_EQ(r.messages[3].content, "");
  EXPECT_EQ(r.messages[4].content, "");
  EXPECT_EQ(r.messages[5].role, "tool");
}

TEST(CompletionRequest, ReadsLengths) {
  EXPECT_EQ(chat(chat_with(R"("max_tokens":0)")).max_tokens, 0u);
  EXPECT_EQ(chat(chat_with(R"("max_tokens":1)")).max_tokens, 1u);
  EXPECT_EQ(chat(chat_with(R"("max_tokens":2.0)")).max_tokens, 2u);
  EXPECT_EQ(chat(chat_with(R"("max_tokens":-1)")).max_tokens, kRestOfContext);
  EXPECT_EQ(chat(chat_with(R"("max_tokens":5,"max_completion_tokens":7)")).max_tokens, 7u);
  EXPECT_EQ(chat(chat_with(R"("max_tokens":5,"max_completion_tokens":null)")).max_tokens, 5u);
  EXPECT_EQ(completions(R"({"prompt":"x","max_tokens":-1})").max_tokens, kRestOfContext);
}

TEST(CompletionRequest, ReadsEveryFormOfPrompt) {
  EXPECT_EQ(std::get<std::string>(completions(R"({"prompt":""})").prompt), "");
  EXPECT_EQ(std::get<std::string>(completions(R"({"prompt":["one"]})").prompt), "one");
  const std::vector<Token> expected = {1, 2, 3};
  EXPECT_EQ(std::get<std::vector<Token>>(completions(R"({"prompt":[1,2,3]})").prompt), expected);
  EXPECT_EQ(std::get<std::vector<Token>>(completions(R"({"prompt":[[1,2,3]]})").prompt), expected);
  EXPECT_TRUE(std::get<std::vector<Token>>(completions(R"({"prompt":[]})").prompt).empty());
}

TEST(CompletionRequest, ReadsStops) {
  EXPECT_EQ(chat(chat_with(R"("stop":"a")")).stop, std::vector<std::string>{"a"});
  EXPECT_EQ(chat(chat_with(R"("stop":["a","b"])")).stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(chat(chat_with(R"("stop":[])")).stop.empty());
  EXPECT_EQ(chat(chat_with(R"("stop":["","b"])")).stop, std::vector<std::string>{"b"});
  EXPECT_TRUE(chat(chat_with(R"("stop":"")")).stop.empty());
}

TEST(CompletionRequest, ReadsSampling) {
  const model::SamplingOptions s =
      chat(chat_with(
               R"("temperature":0,"top_p":0.5,"top_k":-1,"min_p":0,"presence_penalty":-2,
                  "frequency_penalty":1.5,"repeat_penalty":1.1,"logit_bias":{"12":-100,"7":0.5})"))
          .sampling;
  EXPECT_EQ(s.temperature, 0.0f);
  EXPECT_EQ(s.top_p, 0.5f);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0.0f);
  EXPECT_EQ(s.presence_penalty, -2.0f);
  EXPECT_EQ(s.frequency_penalty, 1.5f);
  EXPECT_EQ(s.repeat_penalty, 1.1f);
  ASSERT_EQ(s.logit_bias.size(), 2u);
  EXPECT_EQ(s.logit_bias[0], (std::pair<Token, float>{12, -100.0f}));
}

TEST(CompletionRequest, ReadsSeeds) {
  EXPECT_EQ(chat(chat_with(R"("seed":42)")).seed, 42u);
  EXPECT_EQ(chat(chat_with(R"("seed":0)")).seed, 0u);
  EXPECT_FALSE(chat(chat_with(R"("seed":-1)")).seed.has_value());
  // Large and negative seeds are all usable, and none becomes libllama's "choose one".
  EXPECT_TRUE(chat(chat_with(R"("seed":-9223372036854775808)")).seed.has_value());
  EXPECT_EQ(chat(chat_with(R"("seed":4294967295)")).seed, UINT32_MAX - 1);
  EXPECT_NE(chat(chat_with(R"("seed":4294967296)")).seed, chat(chat_with(R"("seed":0)")).seed);
}

TEST(CompletionRequest, ReadsReuseAndSalt) {
  EXPECT_EQ(chat(chat_with(R"("headstart":{"reuse":"off"})")).reuse, store::ReuseMode::kOff);
  EXPECT_EQ(chat(chat_with(R"("headstart":{"reuse":"strict"})")).reuse, store::ReuseMode::kStrict);
  EXPECT_EQ(chat(chat_with(R"("headstart":{"reuse":"exact"})")).reuse, store::ReuseMode::kExact);
  EXPECT_FALSE(chat(chat_with(R"("headstart":{"other":1,"reuse":null})")).reuse.has_value());
  EXPECT_EQ(chat(chat_with(R"("cache_salt":"alice")")).salt, "alice");
}

TEST(CompletionRequest, ReadsTheMostTokensToPropose) {
  EXPECT_EQ(chat(chat_with(R"("headstart":{"n_propose_max":0})")).n_propose_max, 0u);
  EXPECT_EQ(chat(chat_with(R"("headstart":{"n_propose_max":7})")).n_propose_max, 7u);
  EXPECT_FALSE(chat(chat_with(R"("headstart":{"reuse":"off"})")).n_propose_max.has_value());
}

TEST(CompletionRequest, ReadsStreamOptions) {
  const ApiRequest r = chat(chat_with(R"("stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
  EXPECT_FALSE(chat(chat_with(R"("stream":true,"stream_options":{})")).include_usage);
}

struct Wrong {
  const char* fields;
  const char* param;
};

TEST(CompletionRequest, NamesTheWrongField) {
  const Wrong kWrong[] = {
      {R"("temperature":-0.1)", "temperature"},
      {R"("temperature":1e300)", "temperature"},
      {R"("temperature":"1")", "temperature"},
      {R"("top_p":1.01)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":2.5)", "top_k"},
      {R"("top_k":4294967296)", "top_k"},
      {R"("min_p":-1)", "min_p"},
      {R"("presence_penalty":2.1)", "presence_penalty"},
      {R"("frequency_penalty":-3)", "frequency_penalty"},
      {R"("repeat_penalty":0)", "repeat_penalty"},
      {R"("seed":1e30)", "seed"},
      {R"("seed":18446744073709551615)", "seed"},
      {R"("seed":"x")", "seed"},
      {R"("max_tokens":-2)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("max_tokens":9223372036854775808)", "max_tokens"},
      {R"("max_tokens":true)", "max_tokens"},
      {R"("max_completion_tokens":"many")", "max_completion_tokens"},
      {R"("stop":1)", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stop":{"a":1})", "stop"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
       "stop"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"99999999999999999999":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":{"1":null})", "logit_bias"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":true)", "stream_options"},
      {R"("stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("headstart":"off")", "headstart"},
      {R"("headstart":{"reuse":"approximate"})", "headstart.reuse"},
      {R"("headstart":{"reuse":1})", "headstart.reuse"},
      {R"("headstart":{"n_propose_max":-1})", "headstart.n_propose_max"},
      {R"("headstart":{"n_propose_max":"7"})", "headstart.n_propose_max"},
      {R"("cache_salt":5)", "cache_salt"},
      {R"("n":0)", "n"},
      {R"("n":2)", "n"},
      {R"("n":"1")", "n"},
      {R"("best_of":2)", "best_of"},
      {R"("echo":true)", "echo"},
      {R"("suffix":"x")", "suffix"},
      {R"("logprobs":true)", "logprobs"},
      {R"("logprobs":0)", "logprobs"},
      {R"("top_logprobs":5)", "top_logprobs"},
      {R"("tools":[{"type":"function"}])", "tools"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function"})", "tool_choice"},
      {R"("functions":[{}])", "functions"},
      {R"("response_format":{"type":"json_object"})", "response_format"},
      {R"("response_format":"json")", "response_format"},
      {R"("grammar":"root ::= x")", "grammar"},
      {R"("json_schema":{"type":"object"})", "json_schema"},
  };
  for (const Wrong& wrong : kWrong) {
    const ApiError error = refused(Endpoint::kChat, chat_with(wrong.fields));
    EXPECT_EQ(error.status, 400) << wrong.fields;
    EXPECT_EQ(error.param, wrong.param) << wrong.fields;
    EXPECT_EQ(error.type, "invalid_request_error");
    EXPECT_NE(error.message.find(wrong.param), std::string::npos) << error.message;
  }
}

TEST(CompletionRequest, NamesTheWrongMessage) {
  const Wrong kWrong[] = {
      {R"("x":1)", "messages"},
      {R"("messages":null)", "messages"},
      {R"("messages":[])", "messages"},
      {R"("messages":"hi")", "messages"},
      {R"("messages":["hi"])", "messages[0]"},
      {R"("messages":[{}])", "messages[0].role"},
      {R"("messages":[{"role":"user"},{"role":"king"}])", "messages[1].role"},
      {R"("messages":[{"role":1}])", "messages[0].role"},
      {R"("messages":[{"role":"user","content":5}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":{"a":1}}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":["a"]}])", "messages[0].content[0]"},
      {R"("messages":[{"role":"user","content":[{"text":"a"}]}])", "messages[0].content[0]"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])",
       "messages[0].content[0].text"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
       "messages[0].content[0]"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}])", "messages[0].tool_calls"},
  };
  for (const Wrong& wrong : kWrong) {
    const ApiError error = refused(Endpoint::kChat, std::string("{") + wrong.fields + "}");
    EXPECT_EQ(error.param, wrong.param) << wrong.fields;
  }
}

TEST(CompletionRequest, RefusesWrongPrompts) {
  for (const char* body : {R"({})", R"({"prompt":null})", R"({"prompt":5})", R"({"prompt":{}})",
                           R"({"prompt":["a","b"]})", R"({"prompt":[1,"a"]})", R"({"prompt":[-1]})",
                           R"({"prompt":[1.5]})", R"({"prompt":[4294967296]})",
                           R"({"prompt":[[1],[2]]})", R"({"prompt":[[[1]]]})"}) {
    EXPECT_EQ(refused(Endpoint::kCompletions, body).param, "prompt") << body;
  }
}

TEST(CompletionRequest, RefusesWhatIsNoJsonObject) {
  for (const std::string& body :
       {std::string(""), std::string("nonsense"), std::string("[1]"), std::string("\"text\""),
        std::string("null"), std::string(R"({"messages":[)"), chat_with("") + "x",
        std::string("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}"),
        std::string("{\"messages\":[{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}]}"),
        std::string(R"({"messages":[{"role":"user","content":"\ud800"}]})"),
        chat_with(R"("temperature":NaN)"), chat_with(R"("temperature":1e999)"),
        chat_with(R"("a":01)"), std::string(1, '\0')}) {
    const ApiError error = refused(Endpoint::kChat, body);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, "");
  }
}

TEST(CompletionRequest, RefusesTreesThatExhaust) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_request(Endpoint::kChat, chat_with("\"x\":" + nested(kJsonDepthMax - 1))));
  EXPECT_FALSE(parse_request(Endpoint::kChat, chat_with("\"x\":" + nested(kJsonDepthMax))));
  EXPECT_FALSE(parse_request(Endpoint::kChat, std::string(5'000'000, '[')));
  std::string many = "[";
  for (size_t i = 0; i < kJsonValuesMax; ++i) many += "{},";
  EXPECT_FALSE(parse_request(Endpoint::kChat, chat_with("\"x\":" + many + "0]")));
  // Brackets and commas inside a string are text, whatever is escaped there.
  const std::string text = std::string(R"(\"\\)") + std::string(kJsonValuesMax, ',') +
                           std::string(kJsonDepthMax * 2, '[');
  EXPECT_TRUE(parse_request(Endpoint::kCompletions, R"({"prompt":")" + text + "\"}"));
}

TEST(CompletionRequest, LimitsSizes) {
  const std::string stop(kStopBytesMax, 's'), salt(kSaltBytesMax, 's');
  EXPECT_EQ(chat(chat_with("\"stop\":\"" + stop + "\"")).stop.size(), 1u);
  EXPECT_EQ(refused(Endpoint::kChat, chat_with("\"stop\":\"" + stop + "s\"")).param, "stop");
  EXPECT_EQ(chat(chat_with("\"cache_salt\":\"" + salt + "\"")).salt, salt);
  EXPECT_EQ(refused(Endpoint::kChat, chat_with("\"cache_salt\":\"" + salt + "s\"")).param,
            "cache_salt");
}

TEST(CompletionRequest, KeepsPromptsOutOfMessages) {
  const std::string secret = "hunter2";
  for (const std::string& fields :
       {"\"stop\":{\"" + secret + "\":1}", "\"temperature\":\"" + secret + "\"",
        "\"logit_bias\":{\"" + secret + "\":1}", "\"headstart\":{\"reuse\":\"" + secret + "\"}"}) {
    EXPECT_EQ(refused(Endpoint::kChat, chat_with(fields)).message.find(secret), std::string::npos);
  }
}

}  // namespace
}  // namespace headstart::server
