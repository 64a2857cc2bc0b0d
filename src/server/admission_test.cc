// Proves what depends on the model: room in the context, token ids, templates.
#include "server/admission.h"

#include <gtest/gtest.h>

#include "server/fake_completer.h"

namespace headstart::server {
namespace {

ApiRequest raw(std::string text, uint32_t max_tokens) {
  ApiRequest request;
  request.endpoint = Endpoint::kCompletions;
  request.prompt = std::move(text);
  request.max_tokens = max_tokens;
  return request;
}

TEST(Admission, RendersMessages) {
  FakeCompleter model;
  ApiRequest request;
  request.chat.messages = {{"system", "a"}, {"user", "b"}};
  const auto admitted = admit(request, model, 0);
  ASSERT_TRUE(admitted);
  EXPECT_EQ(admitted->request.tokens, model.tokenize("<system>a<user>b", true, true));
}

TEST(Admission, NamesMessagesThatTheTemplateRefuses) {
  FakeCompleter model;
  ApiRequest request;
  request.chat.messages = {{"user", "refuse me"}};
  const auto admitted = admit(request, model, 0);
  ASSERT_FALSE(admitted);
  EXPECT_EQ(admitted.error().status, 400);
  EXPECT_EQ(admitted.error().param, "messages");
}

TEST(Admission, CutsLengthToTheContext) {
  FakeCompleter model;
  model.n_context = 10;
  EXPECT_EQ(admit(raw("1234", kRestOfContext), model, 0)->request.n_predict, 6u);
  EXPECT_EQ(admit(raw("1234", 7), model, 0)->request.n_predict, 6u);
  EXPECT_EQ(admit(raw("1234", 5), model, 0)->request.n_predict, 5u);
  EXPECT_EQ(admit(raw("1234", 0), model, 0)->request.n_predict, 0u);
}

TEST(Admission, RefusesPromptsBeyondTheContext) {
  FakeCompleter model;
  model.n_context = 10;
  EXPECT_TRUE(admit(raw("123456789", 1), model, 0));
  EXPECT_TRUE(admit(raw("1234567890", 0), model, 0));  // only fills the cache
  EXPECT_FALSE(admit(raw("1234567890", 1), model, 0));
  const auto admitted = admit(raw("12345678901", 0), model, 0);
  ASSERT_FALSE(admitted);
  EXPECT_EQ(admitted.error().status, 400);
  EXPECT_EQ(admitted.error().code, "context_length_exceeded");
  EXPECT_EQ(admitted.error().n_prompt_tokens, 11u);
  EXPECT_EQ(admitted.error().n_ctx, 10u);
}

TEST(Admission, RefusesEmptyPrompts) {
  FakeCompleter model;
  EXPECT_EQ(admit(raw("", 1), model, 0).error().param, "prompt");
}

TEST(Admission, ChecksTokenIds) {
  FakeCompleter model;
  ApiRequest request = raw("", 1);
  request.prompt = std::vector<Token>{0, 255};
  EXPECT_TRUE(admit(request, model, 0));
  request.prompt = std::vector<Token>{256};
  EXPECT_EQ(admit(request, model, 0).error().param, "prompt");
  request = raw("x", 1);
  request.sampling.options.logit_bias = {{256, 1.0f}};
  EXPECT_EQ(admit(request, model, 0).error().param, "logit_bias");
}

TEST(Admission, ChoosesASeedOnlyWhereNoneIsGiven) {
  FakeCompleter model;
  ApiRequest request = raw("x", 1);
  EXPECT_EQ(admit(request, model, 99)->request.sampling.seed, 99u);
  request.sampling.seed = 0;
  EXPECT_EQ(admit(request, model, 99)->request.sampling.seed, 0u);
}

TEST(Admission, TurnsTextsIntoTheirTokens) {
  FakeCompleter model;
  ApiRequest request = raw("x", 1);
  request.sampling.text_bias = {{"ab", 2.0f}};
  request.sampling.options.repeat_last_n = -1;
  const auto admitted = admit(request, model, 0);
  ASSERT_TRUE(admitted);
  EXPECT_EQ(admitted->request.sampling.logit_bias,
            (std::vector<std::pair<Token, float>>{{'a', 2.0f}, {'b', 2.0f}}));
  EXPECT_EQ(admitted->request.sampling.repeat_last_n, 1024);
  request.sampling.text_bias.assign(model::kLogitBiasMax, {"ab", 1.0f});
  EXPECT_EQ(admit(request, model, 0).error().param, "logit_bias");
}

TEST(Admission, ConstrainsByGrammarOrSchema) {
  FakeCompleter model;
  ApiRequest request = raw("x", 1);
  request.format.gbnf = "root ::= [a]";
  EXPECT_EQ(admit(request, model, 0)->request.sampling.grammar.gbnf, "root ::= [a]");
  request.format.gbnf = "root ::= nothing";
  EXPECT_EQ(admit(request, model, 0).error().param, "grammar");
  EXPECT_EQ(admit(request, model, 0).error().status, 400);
  request.format.gbnf.clear();
  request.format.json_schema = R"({"type":"boolean"})";
  EXPECT_NE(admit(request, model, 0)->request.sampling.grammar.gbnf.find("true"),
            std::string::npos);
  request.format.json_schema = R"({"type":"monster"})";
  EXPECT_EQ(admit(request, model, 0).error().param, "json_schema");
}

}  // namespace
}  // namespace headstart::server
