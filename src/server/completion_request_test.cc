// Proves that every form in which clients send a request is read, and that every wrong one is the
// client's error and names its field. To add a wrong one, add a row to a table below.
#include "server/completion_request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "server/schema_check.h"

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
  EXPECT_FLOAT_EQ(r.sampling.options.temperature, 1.0f);
  EXPECT_FLOAT_EQ(r.sampling.options.top_p, 1.0f);
  EXPECT_EQ(r.sampling.options.top_k, 40);
  EXPECT_FLOAT_EQ(r.sampling.options.min_p, 0.05f);
  EXPECT_FLOAT_EQ(r.sampling.options.repeat_penalty, 1.0f);
  EXPECT_EQ(r.max_tokens, kRestOfContext);
  EXPECT_FALSE(r.sampling.seed.has_value());
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
  EXPECT_FLOAT_EQ(r.sampling.options.temperature, 1.0f);
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
  EXPECT_EQ(r.chat.messages.size(), 1u);
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
  ASSERT_EQ(r.chat.messages.size(), 6u);
  EXPECT_EQ(r.chat.messages[0].content, "s");
  EXPECT_EQ(r.chat.messages[1].role, "system");  // templates do not know developer
  EXPECT_EQ(r.chat.messages[1].parts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.chat.messages[2].content, "");
  EXPECT_EQ(r.chat.messages[3].content, "");
  EXPECT_EQ(r.chat.messages[4].content, "");
  EXPECT_EQ(r.chat.messages[5].role, "tool");
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
  EXPECT_EQ(chat(chat_with(R"("stop":"a")")).sampling.stop, std::vector<std::string>{"a"});
  EXPECT_EQ(chat(chat_with(R"("stop":["a","b"])")).sampling.stop,
            (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(chat(chat_with(R"("stop":[])")).sampling.stop.empty());
  EXPECT_EQ(chat(chat_with(R"("stop":["","b"])")).sampling.stop, std::vector<std::string>{"b"});
  EXPECT_TRUE(chat(chat_with(R"("stop":"")")).sampling.stop.empty());
}

TEST(CompletionRequest, ReadsSampling) {
  const model::SamplingOptions s =
      chat(chat_with(
               R"("temperature":0,"top_p":0.5,"top_k":-1,"min_p":0,"presence_penalty":-2,
                  "frequency_penalty":1.5,"repeat_penalty":1.1,"logit_bias":{"12":-100,"7":0.5})"))
          .sampling.options;
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
  EXPECT_EQ(chat(chat_with(R"("seed":42)")).sampling.seed, 42u);
  EXPECT_EQ(chat(chat_with(R"("seed":0)")).sampling.seed, 0u);
  EXPECT_FALSE(chat(chat_with(R"("seed":-1)")).sampling.seed.has_value());
  // Large and negative seeds are all usable, and none becomes libllama's "choose one".
  EXPECT_TRUE(chat(chat_with(R"("seed":-9223372036854775808)")).sampling.seed.has_value());
  EXPECT_EQ(chat(chat_with(R"("seed":4294967295)")).sampling.seed, UINT32_MAX - 1);
  EXPECT_NE(chat(chat_with(R"("seed":4294967296)")).sampling.seed,
            chat(chat_with(R"("seed":0)")).sampling.seed);
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
      {R"("n":"1")", "n"},
      {R"("n":9)", "n"},
      {R"("best_of":2)", "best_of"},
      {R"("echo":true)", "echo"},
      {R"("suffix":"x")", "suffix"},
      {R"("top_logprobs":5)", "top_logprobs"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function"})", "tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"x"}})", "tool_choice"},
      {R"("tools":{})", "tools"},
      {R"("tools":[5])", "tools[0]"},
      {R"("tools":[{"type":"web_search"}])", "tools[0]"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"function":{"name":"a b"}}])", "tools[0].function.name"},
      {R"("tools":[{"function":{"name":""}}])", "tools[0].function.name"},
      {R"("tools":[{"function":{"name":"a"}},{"function":{"name":"a"}}])",
       "tools[1].function.name"},
      {R"("tools":[{"function":{"name":"a","parameters":[]}}])", "tools[0].function.parameters"},
      {R"("functions":[{}])", "functions"},
      {R"("parallel_tool_calls":1)", "parallel_tool_calls"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":5}})",
       "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_object"},"grammar":"root ::= [a]")", "grammar"},
      {R"("response_format":{"type":"json_object"},"json_schema":{})", "json_schema"},
      {R"("json_schema":"x")", "json_schema"},
      {R"("grammar":"root ::= [a]","tools":[{"function":{"name":"a"}}])", "grammar"},
      {R"("reasoning_format":"loud")", "reasoning_format"},
      {R"("chat_template_kwargs":{"enable_thinking":"no"})", "chat_template_kwargs"},
      {R"("logit_bias":[["a"]])", "logit_bias"},
      {R"("logit_bias":[[1,true]])", "logit_bias"},
      {R"("logit_bias":[[-1,1]])", "logit_bias"},
      {R"("logprobs":5)", "logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("mirostat":2)", "mirostat"},
      {R"("dry_multiplier":0.8)", "dry_multiplier"},
      {R"("samplers":["top_k"])", "samplers"},
      {R"("typical_p":2)", "typical_p"},
      {R"("repeat_last_n":-2)", "repeat_last_n"},
      {R"("response_format":"json")", "response_format"},
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
      {R"("messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}])",
       "messages[0].tool_calls[0].function"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":""}}]}])",
       "messages[0].tool_calls[0].function.name"},
      {R"("messages":[{"role":"user","tool_calls":[{"function":{"name":"f"}}]}])",
       "messages[0].tool_calls"},
      {R"("messages":[{"role":"assistant","function_call":{"name":"f"}}])",
       "messages[0].function_call"},
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
  const std::string stop(kStopBytesMax, 's'), salt(kv::kSaltBytesMax, 's');
  EXPECT_EQ(chat(chat_with("\"stop\":\"" + stop + "\"")).sampling.stop.size(), 1u);
  EXPECT_EQ(refused(Endpoint::kChat, chat_with("\"stop\":\"" + stop + "s\"")).param, "stop");
  EXPECT_EQ(chat(chat_with("\"cache_salt\":\"" + salt + "\"")).salt, salt);
  EXPECT_EQ(refused(Endpoint::kChat, chat_with("\"cache_salt\":\"" + salt + "s\"")).param,
            "cache_salt");
}

TEST(CompletionRequest, ReadsToolsAndCalls) {
  const ApiRequest r = chat(
      R"({"messages":[{"role":"user","content":"w?"},
            {"role":"assistant","content":null,"tool_calls":[
              {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},
              {"id":"c2","type":"function","function":{"name":"g","arguments":{"x":[1]}}},
              {"id":"c3","function":{"name":"h"}}]},
            {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"sunny"}]}],
          "tools":[{"type":"function","function":{"name":"f","description":"d","strict":true,
            "parameters":{"type":"object","properties":{"b":{"type":"integer"},
              "a":{"type":"integer"}}}}},{"type":"function","function":{"name":"g"}}],
          "tool_choice":{"type":"function","function":{"name":"g"}},"parallel_tool_calls":false})");
  const auto& calls = r.chat.messages[1].tool_calls;
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].arguments, R"({"b":1,"a":2})");
  EXPECT_EQ(calls[1].arguments, R"({"x":[1]})");
  EXPECT_EQ(calls[2].arguments, "{}");
  EXPECT_EQ(calls[2].id, "c3");
  EXPECT_EQ(r.chat.messages[2].tool_call_id, "c1");
  EXPECT_EQ(r.chat.messages[2].content, "sunny");
  ASSERT_EQ(r.chat.tools.size(), 2u);
  EXPECT_EQ(r.chat.tools[0].description, "d");
  // The order of properties is the order in which they are written.
  EXPECT_EQ(r.chat.tools[0].parameters,
            R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"integer"}}})");
  EXPECT_EQ(r.chat.tools[1].parameters, "{}");
  EXPECT_EQ(r.chat.tool_choice, model::ToolChoice::kRequired);
  EXPECT_EQ(r.chat.tool_name, "g");
  EXPECT_EQ(r.chat.parallel_tool_calls, false);
}

TEST(CompletionRequest, ReadsWhatTheAnswerMustBe) {
  const auto schema = [](const std::string& fields) {
    return chat(chat_with(fields)).format.json_schema;
  };
  EXPECT_EQ(schema(""), "");
  EXPECT_EQ(schema(R"("response_format":{"type":"text"})"), "");
  EXPECT_EQ(schema(R"("response_format":{"type":"json_object"})"), R"({"type":"object"})");
  EXPECT_EQ(schema(R"("response_format":{"type":"json_object","schema":{"type":"array"}})"),
            R"({"type":"array"})");
  EXPECT_EQ(schema(R"("response_format":{"type":"json_schema","json_schema":{"name":"n",
                      "strict":true,"schema":{"type":"null"}}})"),
            R"({"type":"null"})");
  EXPECT_EQ(schema(R"("json_schema":{"type":"null"})"), R"({"type":"null"})");
  EXPECT_EQ(chat(chat_with(R"("grammar":"root ::= [a]")")).format.gbnf, "root ::= [a]");
}

TEST(CompletionRequest, ReadsProbabilitiesAndChoices) {
  EXPECT_FALSE(chat(chat_with("")).n_top_logprobs.has_value());
  EXPECT_EQ(chat(chat_with(R"("logprobs":true)")).n_top_logprobs, 0u);
  EXPECT_EQ(chat(chat_with(R"("logprobs":true,"top_logprobs":3)")).n_top_logprobs, 3u);
  EXPECT_EQ(completions(R"({"prompt":"x","logprobs":0})").n_top_logprobs, 0u);
  EXPECT_EQ(completions(R"({"prompt":"x","logprobs":5})").n_top_logprobs, 5u);
  EXPECT_FALSE(completions(R"({"prompt":"x","logprobs":false})").n_top_logprobs.has_value());
  EXPECT_EQ(chat(chat_with(R"("n":8)")).n_choice, 8u);
  EXPECT_EQ(completions(R"({"prompt":"x","n":3,"best_of":3})").n_choice, 3u);
}

TEST(CompletionRequest, ReadsBothFormsOfBias) {
  const auto s = chat(chat_with(R"("logit_bias":[[5,1.5],["yes",-3],[7,false]])")).sampling;
  ASSERT_EQ(s.options.logit_bias.size(), 2u);
  EXPECT_EQ(s.options.logit_bias[0], (std::pair<Token, float>{5, 1.5f}));
  EXPECT_EQ(s.options.logit_bias[1].first, 7);
  EXPECT_TRUE(std::isinf(s.options.logit_bias[1].second));
  ASSERT_EQ(s.text_bias.size(), 1u);
  EXPECT_EQ(s.text_bias[0], (std::pair<std::string, float>{"yes", -3.0f}));
}

TEST(CompletionRequest, TakesDefaultsOfLlamaServerOnItsOwnEndpoint) {
  const auto r = parse_request(Endpoint::kNative, R"({"prompt":"x"})");
  ASSERT_TRUE(r);
  EXPECT_FLOAT_EQ(r->sampling.options.temperature, 0.8f);
  EXPECT_FLOAT_EQ(r->sampling.options.top_p, 0.95f);
  EXPECT_EQ(r->max_tokens, kRestOfContext);
  EXPECT_EQ(parse_request(Endpoint::kNative, R"({"prompt":"x","n_predict":3})")->max_tokens, 3u);
  EXPECT_FALSE(parse_request(Endpoint::kNative, R"({"prompt":"x","n":2})"));
}

// Each of these would end the process or never end in llama.cpp's converter.
TEST(CompletionRequest, RefusesSchemasThatExhaust) {
  const auto nested = [](std::string open, std::string close, size_t n) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += open;
    text += R"({"type":"null"})";
    for (size_t i = 0; i < n; ++i) text += close;
    return text;
  };
  std::string web = R"({"$defs":{)";  // every definition is any of all of them
  for (int i = 0; i < 24; ++i) {
    web += (i ? ",\"d" : "\"d") + std::to_string(i) + R"(":{"anyOf":[)";
    for (int j = 0; j < 12; ++j) {
      web += std::string(j ? "," : "") + R"({"$ref":"#/$defs/d)" + std::to_string((i + j) % 24) +
             "\"}";
    }
    web += "]}";
  }
  web += R"(},"$ref":"#/$defs/d0"})";
  std::string wide = R"({"properties":{"a":{})";
  for (size_t i = 0; i < kSchemaPropertiesMax; ++i) wide += ",\"p" + std::to_string(i) + "\":{}";
  wide += "}}";
  for (const std::string& schema :
       {nested(R"({"items":)", "}", kSchemaDepthMax + 1),
        std::string(R"({"$defs":{"a":{"$ref":"#/$defs/a"}},"allOf":[{"$ref":"#/$defs/a"}]})"),
        std::string(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},
                       "$ref":"#/$defs/a"})"),
        std::string(R"({"$ref":"#/)") + std::string(kSchemaTextBytesMax, '/') + "\"}",
        std::string(R"({"properties":{")") + std::string(kSchemaNameBytesMax + 1, ' ') +
            R"(":{}}})",
        std::string(R"({"pattern":"^)") + std::string(kSchemaTextBytesMax, 'a') + R"($"})", web,
        wide}) {
    const ApiError error = refused(Endpoint::kChat, chat_with("\"json_schema\":" + schema));
    EXPECT_EQ(error.param, "json_schema") << schema.substr(0, 100);
  }
  // What people write passes.
  EXPECT_TRUE(parse_request(
      Endpoint::kChat, chat_with(R"("json_schema":{"$defs":{"node":{"type":"object","properties":{
        "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}}}},"$ref":"#/$defs/node"})")));
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
