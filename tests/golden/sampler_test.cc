// Proves that our sampler picks what llama.cpp's common_sampler picks from the same logits, with
// every option and with grammars, and that probabilities are those of the logits.
//
// To add a case: a row in cases(). Both sides read the logits of one libllama context, which goes
// on with the reference's token.
#include "model/sampler.h"

#include <gtest/gtest.h>
#include <llama.h>
#include <sampling.h>

#include <cmath>
#include <functional>
#include <string_view>

#include "model/llama_log.h"
#include "model/token_probs.h"
#include "tests/support/models.h"

namespace headstart::test {
namespace {

constexpr const char* kPrompt =
    "<|im_start|>user\nDescribe a cat as JSON.<|im_end|>\n<|im_start|>assistant\n";
constexpr const char* kJson = R"(root ::= "{" ws "\"name\"" ws ":" ws string ws "}"
string ::= "\"" [^"\\\x00-\x1F]{1,30} "\""
ws ::= [ \n]{0,2})";

struct Case {
  const char* name;
  // The same options to both sides.
  std::function<void(model::SamplingOptions&, common_params_sampling&)> set;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

void set_grammar(model::SamplingOptions& o, common_params_sampling& p, const char* gbnf) {
  o.grammar.gbnf = gbnf;
  p.grammar = {COMMON_GRAMMAR_TYPE_USER, gbnf};
}

void set_temperature(model::SamplingOptions& o, common_params_sampling& p, float t) {
  o.temperature = p.temp = t;
}

std::vector<Case> cases() {
  using O = model::SamplingOptions;
  using P = common_params_sampling;
  return {
      {"greedy", [](O&, P&) {}},
      {"random", [](O& o, P& p) { set_temperature(o, p, 0.8f); }},
      {"hot",
       [](O& o, P& p) {
         set_temperature(o, p, 1.5f);
         o.top_k = p.top_k = 0;
         o.top_p = p.top_p = 1.0f;
         o.min_p = p.min_p = 0.0f;
       }},
      {"typical",
       [](O& o, P& p) {
         set_temperature(o, p, 1.0f);
         o.typical_p = p.typ_p = 0.6f;
       }},
      {"sigma",
       [](O& o, P& p) {
         set_temperature(o, p, 1.2f);
         o.top_n_sigma = p.top_n_sigma = 1.5f;
       }},
      {"xtc",
       [](O& o, P& p) {
         set_temperature(o, p, 1.0f);
         o.xtc_probability = p.xtc_probability = 0.7f;
         o.xtc_threshold = p.xtc_threshold = 0.05f;
       }},
      {"dynatemp",
       [](O& o, P& p) {
         set_temperature(o, p, 1.0f);
         o.dynatemp_range = p.dynatemp_range = 0.5f;
         o.dynatemp_exponent = p.dynatemp_exponent = 1.5f;
       }},
      {"penalties",
       [](O& o, P& p) {
         o.repeat_penalty = p.penalty_repeat = 1.4f;
         o.frequency_penalty = p.penalty_freq = 0.5f;
         o.presence_penalty = p.penalty_present = 0.5f;
         o.repeat_last_n = p.penalty_last_n = 24;
       }},
      {"bias",
       [](O& o, P& p) {
         set_temperature(o, p, 1.0f);
         o.logit_bias = {{28, 9.0f}, {30, -100.0f}};
         p.logit_bias = {{28, 9.0f}, {30, -100.0f}};
       }},
      {"grammar_greedy", [](O& o, P& p) { set_grammar(o, p, kJson); }},
      {"grammar_random",
       [](O& o, P& p) {
         set_temperature(o, p, 1.3f);
         set_grammar(o, p, kJson);
       }},
      {"grammar_lazy",
       [](O& o, P& p) {
         set_temperature(o, p, 0.9f);
         set_grammar(o, p, "root ::= \"python\" \" sat\"{3,5} \".\"");
         o.grammar.lazy = p.grammar_lazy = true;
         o.grammar.trigger_patterns = {"python"};
         p.grammar_triggers = {{COMMON_GRAMMAR_TRIGGER_TYPE_WORD, "python"}};
       }},
  };
}

// A libllama context that has read kPrompt.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& gguf) {
    model::quiet_libllama();
    model_ = llama_model_load_from_file(gguf.c_str(), llama_model_default_params());
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_threads = params.n_threads_batch = 1;
    context_ = llama_init_from_model(model_, params);
    prompt_ = common_tokenize(vocab(), kPrompt, true, true);
    read(prompt_);
  }
  ~Reader() {
    llama_free(context_);
    llama_model_free(model_);
  }
  void read(std::vector<Token> tokens) {
    const auto batch = llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size()));
    ASSERT_EQ(llama_decode(context_, batch), 0);
  }
  std::span<const float> logits() const {
    return {llama_get_logits_ith(context_, -1), static_cast<size_t>(llama_vocab_n_tokens(vocab()))};
  }
  const llama_vocab* vocab() const { return llama_model_get_vocab(model_); }
  const std::vector<Token>& prompt() const { return prompt_; }
  llama_model* handle() const { return model_; }
  llama_context* context() const { return context_; }

 private:
  llama_model* model_;
  llama_context* context_;
  std::vector<Token> prompt_;
};

class SamplerParity : public testing::TestWithParam<Case> {};

TEST_P(SamplerParity, PicksWhatCommonSamplerPicks) {
  const auto path = model_path(RealModel::kSmolLm2);
  ASSERT_TRUE(path.ok()) << path.error().message;
  Reader reader(*path);
  model::SamplingOptions options;
  common_params_sampling params;
  options.seed = params.seed = 7;
  params.temp = 0.0f;
  GetParam().set(options, params);
  common_sampler_ptr reference(common_sampler_init(reader.handle(), params));
  ASSERT_TRUE(reference);
  auto ours = model::Sampler::open(options, reader.vocab());
  ASSERT_TRUE(ours.ok()) << ours.error().message;
  for (const Token t : reader.prompt()) {
    common_sampler_accept(reference.get(), t, /*is_generated=*/false);
    (*ours)->accept(t);
  }
  std::string text;
  for (int i = 0; i < 40; ++i) {
    const Token want = common_sampler_sample(reference.get(), reader.context(), -1);
    common_sampler_accept(reference.get(), want, /*is_generated=*/true);
    ASSERT_EQ((*ours)->sample(reader.logits()), want) << "token " << i << " after: " << text;
    if (llama_vocab_is_eog(reader.vocab(), want)) break;
    text += common_token_to_piece(reader.vocab(), want);
    reader.read({want});
  }
  if (std::string_view(GetParam().name) == "grammar_lazy") {
    EXPECT_NE(text.find("python sat sat sat"), std::string::npos) << "it never woke: " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Options, SamplerParity, testing::ValuesIn(cases()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(SamplerTest, ADeadEndIsNoToken) {
  const auto path = model_path(RealModel::kSmolLm2);
  ASSERT_TRUE(path.ok()) << path.error().message;
  Reader reader(*path);
  for (const float temperature : {0.0f, 1.0f}) {
    model::SamplingOptions options;
    options.temperature = temperature;
    options.grammar.gbnf = R"(root ::= [^\x00-\U0010FFFF])";
    auto sampler = model::Sampler::open(options, reader.vocab());
    ASSERT_TRUE(sampler.ok()) << sampler.error().message;
    EXPECT_EQ((*sampler)->sample(reader.logits()), model::Sampler::kNoToken);
  }
}

TEST(SamplerTest, IgnoreEosNeverEnds) {
  const auto path = model_path(RealModel::kSmolLm2);
  ASSERT_TRUE(path.ok()) << path.error().message;
  Reader reader(*path);
  std::vector<float> logits(reader.logits().begin(), reader.logits().end());
  const Token eos = llama_vocab_eos(reader.vocab());
  logits[static_cast<size_t>(eos)] = 1e6f;
  model::SamplingOptions options;
  auto plain = model::Sampler::open(options, reader.vocab());
  options.ignore_eos = true;
  auto endless = model::Sampler::open(options, reader.vocab());
  ASSERT_TRUE(plain.ok() && endless.ok());
  EXPECT_EQ((*plain)->sample(logits), eos);
  EXPECT_FALSE(llama_vocab_is_eog(reader.vocab(), (*endless)->sample(logits)));
}

// In double, by the definition.
TEST(TokenProbsTest, AreTheSoftmaxOfTheLogits) {
  std::vector<float> logits;
  for (int i = 0; i < 1000; ++i) logits.push_back(30.0f * std::sin(static_cast<float>(i * i)));
  logits[17] = logits[400];  // equal ones
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  const auto probs = model::token_probs(logits, 5, 20);
  EXPECT_NEAR(probs.picked.logprob, logits[5] - std::log(sum), 1e-4);
  ASSERT_EQ(probs.top.size(), 20u);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (size_t i = 0; i < probs.top.size(); ++i) {
    EXPECT_NEAR(probs.top[i].logprob, sorted[i] - std::log(sum), 1e-4) << i;
    EXPECT_EQ(logits[static_cast<size_t>(probs.top[i].token)], sorted[i]) << i;
  }
}

}  // namespace
}  // namespace headstart::test
