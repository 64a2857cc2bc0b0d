// Proves what a template makes of messages and tools, and what its parser makes of answers. To add
// a kind of template, add it to tests/support/chat_templates.h.
#include "model/chat_template.h"

#include <gtest/gtest.h>

#include "tests/support/chat_templates.h"

namespace headstart::model {
namespace {

constexpr const char* kCity =
    R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})";

std::unique_ptr<ChatTemplate> open(const char* jinja) {
  auto opened = ChatTemplate::of(jinja);
  EXPECT_TRUE(opened.ok()) << opened.error().message;
  return opened.ok() ? *std::move(opened) : nullptr;
}

ChatInput asking(std::vector<ChatTool> tools, ToolChoice choice = ToolChoice::kAuto) {
  ChatInput input;
  input.messages = {{"user", "hi"}};
  input.tools = std::move(tools);
  input.tool_choice = choice;
  return input;
}

ChatPrompt apply(const ChatTemplate& t, const ChatInput& input) {
  auto prompt = t.apply(input);
  EXPECT_TRUE(prompt.ok()) << prompt.error().message;
  return prompt.ok() ? *std::move(prompt) : ChatPrompt{};
}

const std::vector<ChatTool> kTools = {{"weather", "of a city", kCity}, {"time", "now", "{}"}};

TEST(ChatTemplate, PlainAnswersNeedNoParser) {
  const auto t = open(test::kPlainTemplate);
  const ChatPrompt prompt = apply(*t, asking({}));
  EXPECT_EQ(prompt.text, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_TRUE(prompt.parser.plain());
  EXPECT_EQ(prompt.gbnf, "");
  EXPECT_TRUE(apply(*open(test::kToolTemplate), asking({})).parser.plain());
  EXPECT_FALSE(apply(*open(test::kThinkTemplate), asking({})).parser.plain());
}

TEST(ChatTemplate, OffersTools) {
  const auto t = open(test::kToolTemplate);
  const ChatPrompt prompt = apply(*t, asking(kTools));
  EXPECT_NE(prompt.text.find("weather"), std::string::npos);
  EXPECT_TRUE(prompt.lazy);  // a call may come, but need not
  ASSERT_FALSE(prompt.triggers.empty());
  EXPECT_NE(prompt.triggers[0].text.find("<tool_call>"), std::string::npos);
  EXPECT_FALSE(prompt.parser.plain());
  EXPECT_EQ(apply(*t, asking(kTools, ToolChoice::kNone)).gbnf, "");
}

TEST(ChatTemplate, ARequiredCallIsBegun) {
  const auto t = open(test::kToolTemplate);
  const ChatPrompt free = apply(*t, asking(kTools));
  const ChatPrompt bound = apply(*t, asking(kTools, ToolChoice::kRequired));
  EXPECT_FALSE(bound.lazy);
  EXPECT_TRUE(bound.text.starts_with(free.text));
  EXPECT_TRUE(bound.text.ends_with("<tool_call>\n")) << bound.text;
  EXPECT_TRUE(bound.text.ends_with(bound.generation_prompt));
  const auto message =
      bound.parser.parse("{\"name\": \"time\", \"arguments\": {}}\n</tool_call>", false);
  ASSERT_TRUE(message.ok());
  ASSERT_EQ(message->tool_calls.size(), 1u);
  EXPECT_EQ(message->tool_calls[0].name, "time");
}

TEST(ChatTemplate, ANamedToolKeepsThePromptAndBindsTheAnswer) {
  const auto t = open(test::kToolTemplate);
  ChatInput input = asking(kTools, ToolChoice::kRequired);
  const ChatPrompt any = apply(*t, input);
  input.tool_name = "time";
  const ChatPrompt named = apply(*t, input);
  EXPECT_EQ(named.text, any.text);
  EXPECT_NE(any.gbnf.find("weather"), std::string::npos);
  EXPECT_EQ(named.gbnf.find("weather"), std::string::npos);
  EXPECT_NE(named.gbnf.find("time"), std::string::npos);
}

TEST(ChatTemplate, RefusesToRequireWhatTheModelLacks) {
  const auto t = open(test::kPlainTemplate);
  EXPECT_TRUE(t->apply(asking(kTools)).ok());  // it may just answer
  const auto refused = t->apply(asking(kTools, ToolChoice::kRequired));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("tool_choice"), std::string::npos);
}

TEST(ChatTemplate, RendersCallsAndTheirResults) {
  const auto t = open(test::kToolTemplate);
  ChatInput input;
  ChatMessage call{"assistant", ""};
  call.tool_calls = {{"c1", "weather", R"({"city":"Paris"})"}};
  ChatMessage result{"tool", "sunny"};
  result.tool_call_id = "c1";
  input.messages = {{"user", "hi"}, call, result};
  const std::string text = apply(*t, input).text;
  EXPECT_NE(text.find("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("<tool_response>\nsunny"), std::string::npos);
  input.messages[1].tool_calls[0].arguments = "{not JSON";
  EXPECT_FALSE(t->apply(input).ok());
}

TEST(ChatTemplate, BindsAnswersToASchema) {
  const auto t = open(test::kPlainTemplate);
  ChatInput input = asking({});
  input.json_schema = kCity;
  const ChatPrompt prompt = apply(*t, input);
  EXPECT_NE(prompt.gbnf.find("city"), std::string::npos);
  EXPECT_FALSE(prompt.lazy);
  EXPECT_EQ(prompt.parser.parse(R"({"city":"Rome"})", false)->content, R"({"city":"Rome"})");
  input.json_schema = R"({"type":"monster"})";
  EXPECT_FALSE(t->apply(input).ok());
}

TEST(ChatParser, TakesThoughtsOut) {
  const auto t = open(test::kThinkTemplate);
  ChatInput input = asking({});
  const std::string text = "<think>\nhm\n</think>\n\nhello";
  const auto message = apply(*t, input).parser.parse(text, false);
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->content, "hello");
  EXPECT_NE(message->reasoning.find("hm"), std::string::npos);
  input.reasoning_format = ReasoningFormat::kNone;
  EXPECT_EQ(apply(*t, input).parser.parse(text, false)->reasoning, "");
}

TEST(ChatParser, RefusesBracketsThatWouldEndTheStack) {
  const auto t = open(test::kToolTemplate);
  const ChatPrompt prompt = apply(*t, asking(kTools));
  const std::string call = "<tool_call>\n{\"name\": \"time\", \"arguments\": {\"a\": ";
  EXPECT_FALSE(prompt.parser.parse(call + std::string(1'000'000, '['), true).ok());
  EXPECT_TRUE(prompt.parser.parse(call + std::string(100, '['), true).ok());
}

}  // namespace
}  // namespace headstart::model
