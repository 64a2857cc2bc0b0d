// Proves that the support itself works: tiny GGUFs of every architecture and type load in libllama,
// give sane and repeatable logits, take text prompts; the comparators measure what they say.
//
// To add a case: give the architecture or type to the lists below.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "tests/support/compare.h"
#include "tests/support/llama_reference.h"
#include "tests/support/models.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::test {
namespace {

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> reference_logits(const TinyModel& model, const ReferenceOptions& options = {},
                                    size_t n_token = 100) {
  TempDir dir;
  write_tiny_gguf(model, dir / "tiny.gguf");
  auto reference = LlamaReference::open(dir / "tiny.gguf", options);
  EXPECT_TRUE(reference.ok()) << reference.error().message;
  if (!reference.ok()) return {};
  EXPECT_EQ((*reference)->n_vocab(), model.n_vocab);
  return (*reference)->logits(random_tokens(7, n_token, model.n_vocab), n_token);
}

class TinyGguf : public testing::TestWithParam<TinyModel> {};

TEST_P(TinyGguf, GivesSaneRepeatableLogits) {
  const std::vector<float> logits = reference_logits(GetParam());
  ASSERT_FALSE(logits.empty());
  const LogitDistance self = compare_logits(logits, logits, GetParam().n_vocab);
  EXPECT_TRUE(self.finite);
  EXPECT_GT(self.rms, 1.0);
  EXPECT_LT(self.rms, 5.0);
  EXPECT_EQ(reference_logits(GetParam()), logits);

  TinyModel other = GetParam();
  other.seed = 2;
  const LogitDistance apart = compare_logits(logits, reference_logits(other), other.n_vocab);
  EXPECT_GT(apart.kl_mean, 0.5) << apart.to_string();
}

std::vector<TinyModel> shapes() {
  std::vector<TinyModel> models;
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K}) {
      models.push_back(tiny_model(architecture, type));
    }
  }
  for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
                         GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K,
                         GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL}) {
    models.push_back(tiny_model("llama", type));
  }
  return models;
}

INSTANTIATE_TEST_SUITE_P(Shapes, TinyGguf, testing::ValuesIn(shapes()),
                         [](const auto& test) { return to_string(test.param); });

TEST(TinyGguf, IsDeterministic) {
  TempDir dir;
  write_tiny_gguf(tiny_model("qwen3", GGML_TYPE_Q4_0), dir / "a.gguf");
  write_tiny_gguf(tiny_model("qwen3", GGML_TYPE_Q4_0), dir / "b.gguf");
  EXPECT_EQ(bytes_of(dir / "a.gguf"), bytes_of(dir / "b.gguf"));
}

// Every rope setting, the window and a tied head must change the logits, or a test that compares
// them would prove nothing.
TEST(TinyGguf, SettingsShowInTheLogits) {
  const auto differs = [](const TinyModel& a, const TinyModel& b) {
    return compare_logits(reference_logits(a), reference_logits(b), a.n_vocab).kl_mean;
  };
  const TinyModel plain = tiny_model("llama");
  for (RopeScaling scaling : {RopeScaling::kLinear, RopeScaling::kYarn, RopeScaling::kLlama3}) {
    TinyModel scaled = plain;
    scaled.rope_scaling = scaling;
    EXPECT_GT(differs(plain, scaled), 1e-3) << static_cast<int>(scaling);
  }
  TinyModel other_base = plain;
  other_base.rope_freq_base = 500000.0f;
  EXPECT_GT(differs(plain, other_base), 1e-3);
  TinyModel tied = plain;
  tied.tied_head = true;
  EXPECT_GT(differs(plain, tied), 1e-3);
  const TinyModel gemma = tiny_model("gemma3");
  TinyModel wider = gemma;
  wider.sliding_window = 128;
  EXPECT_GT(differs(gemma, wider), 1e-3);
  EXPECT_GT(
      compare_logits(reference_logits(plain),
                     reference_logits(plain, {.type_k = GGML_TYPE_Q8_0, .type_v = GGML_TYPE_Q8_0}),
                     plain.n_vocab)
          .kl_mean,
      0.0);
}

TEST(TinyGguf, TakesText) {
  TempDir dir;
  TinyModel model = tiny_model("llama");
  model.chat_template = kTemplateWithBos;
  write_tiny_gguf(model, dir / "tiny.gguf");
  auto reference = LlamaReference::open(dir / "tiny.gguf");
  ASSERT_TRUE(reference.ok());
  const std::string text = "The history of computing, in the end: 1936 & ünïcode\nnext line";
  const std::vector<Token> tokens = (*reference)->encode(text, true, false);
  EXPECT_EQ(tokens.front(), kTinyBos);
  EXPECT_LT(tokens.size(), text.size());
  EXPECT_EQ((*reference)->decode(std::span(tokens).subspan(1)), text);
  EXPECT_THAT((*reference)->encode("<|im_start|>a<|im_end|>", false, true),
              testing::AllOf(testing::Contains(kTinyImStart), testing::Contains(kTinyImEnd)));
}

TEST(TinyGguf, OmitsWhatIsAsked) {
  TempDir dir;
  TinyModel model = tiny_model("llama");
  model.omit = {"blk.2.attn_k.weight"};
  write_tiny_gguf(model, dir / "tiny.gguf");
  EXPECT_FALSE(LlamaReference::open(dir / "tiny.gguf").ok());
  model = tiny_model("llama");
  model.architecture = "no-such-architecture";
  write_tiny_gguf(model, dir / "unknown.gguf");
  EXPECT_FALSE(LlamaReference::open(dir / "unknown.gguf").ok());
}

TEST(LlamaReference, GreedyFollowsTheLogits) {
  TempDir dir;
  const TinyModel model = tiny_model("llama");
  write_tiny_gguf(model, dir / "tiny.gguf");
  auto reference = LlamaReference::open(dir / "tiny.gguf");
  ASSERT_TRUE(reference.ok());
  std::vector<Token> tokens = random_tokens(3, 40, model.n_vocab);
  std::vector<float> logits;
  const std::vector<Token> generated = (*reference)->greedy(tokens, 5, &logits);
  ASSERT_EQ(generated.size(), 5u);
  ASSERT_EQ(logits.size(), 5u * model.n_vocab);
  for (size_t i = 0; i < generated.size(); ++i) {
    const std::vector<float> fresh = (*reference)->logits(tokens, 1);
    const auto seen = std::span(logits).subspan(i * model.n_vocab, model.n_vocab);
    EXPECT_LT(compare_logits(fresh, seen, model.n_vocab).max_abs, 0.05);
    EXPECT_EQ(static_cast<Token>(best_two(seen).first), generated[i]);
    tokens.push_back(generated[i]);
  }
}

TEST(Compare, MeasuresDistance) {
  const std::vector<float> p = {1, 2, 3, 0, 5, 4.5f, 0, 0};
  std::vector<float> q = p;
  EXPECT_TRUE(compare_logits(p, q, 4).bit_equal);
  EXPECT_EQ(kl_divergence(std::span(p).first(4), std::span(p).first(4)), 0.0);
  q[5] = 5.25f;
  const LogitDistance distance = compare_logits(p, q, 4);
  EXPECT_FALSE(distance.bit_equal);
  EXPECT_EQ(distance.n_row, 2u);
  EXPECT_DOUBLE_EQ(distance.max_abs, 0.75);
  EXPECT_EQ(distance.n_top1_differs, 1u);
  EXPECT_DOUBLE_EQ(distance.margin_max, 0.5);
  EXPECT_NEAR(distance.kl_max, kl_divergence(std::span(p).last(4), std::span(q).last(4)), 1e-12);
  q[0] = NAN;
  EXPECT_FALSE(compare_logits(p, q, 4).finite);

  // KL of (3/4, 1/4) against (1/2, 1/2), by hand.
  const std::vector<float> skewed = {std::log(3.0f), 0.0f}, even = {0.0f, 0.0f};
  EXPECT_NEAR(kl_divergence(skewed, even), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
}

TEST(Compare, RandomTokensAreRepeatable) {
  EXPECT_EQ(random_tokens(1, 50, 512), random_tokens(1, 50, 512));
  EXPECT_NE(random_tokens(1, 50, 512), random_tokens(2, 50, 512));
  for (Token token : random_tokens(1, 1000, 512)) {
    EXPECT_GT(token, kTinyImEnd);
    EXPECT_LT(token, 512);
  }
}

TEST(Models, MissingFileNamesTheCommand) {
  setenv("HEADSTART_TEST_QWEN", "/nonexistent/model.gguf", 1);
  const auto path = model_path(RealModel::kQwen);
  unsetenv("HEADSTART_TEST_QWEN");
  ASSERT_FALSE(path.ok());
  EXPECT_THAT(path.error().message, testing::HasSubstr("./run model qwen"));
}

TEST(TempDir, IsRemoved) {
  std::filesystem::path path;
  {
    TempDir dir;
    path = dir.path();
    std::ofstream(dir / "file") << "x";
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace headstart::test
