// Proves, against libllama and on a tiny random GGUF for each architecture, that the decoder graph
// is right: bit for bit with reference numerics and the same shapes, and within stated bounds with
// the numerics that are used (K rounded to f16 before it is rotated, padded batches).
//
// To add an architecture or a variant of one (rope scaling, type, head layout): add its TinyModel
// to a list below.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/golden/subject.h"
#include "tests/support/compare.h"
#include "tests/support/llama_reference.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::test {
namespace {

// A multiple of 8, so that no batch is padded, and longer than gemma3's window of 64.
constexpr uint32_t kTokens = 200;
constexpr uint32_t kGenerated = 6;

// How far the numerics in use may be from libllama's: KL in nats, and how far libllama's best two
// logits may be apart where the best one differs. The tiny models' logits have an RMS of 2.
// Matrices that round their input to 8 bits magnify a last bit of K by three orders of magnitude;
// that the difference is rounding and no more, the tight bounds of f32 show. About three times what
// is seen.
struct Bounds {
  double kl_mean, kl_max, margin;
};

Bounds bounds_of(ggml_type weight_type) {
  switch (weight_type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16: return {5e-6, 3e-5, 0.03};
    case GGML_TYPE_BF16: return {2e-4, 1e-3, 0.05};
    default: return {5e-3, 2.5e-2, 0.6};
  }
}

void expect_close(const LogitDistance& d, const Bounds& bounds) {
  EXPECT_TRUE(d.finite);
  EXPECT_LT(d.kl_mean, bounds.kl_mean) << d.to_string();
  EXPECT_LT(d.kl_max, bounds.kl_max) << d.to_string();
  EXPECT_LT(d.margin_max, bounds.margin) << d.to_string();
}

ggml_type ggml_type_of(kv::LiveType type) {
  return type == kv::LiveType::kF16 ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
}

class TinyParity : public testing::TestWithParam<TinyModel> {
 protected:
  void SetUp() override {
    write_tiny_gguf(GetParam(), dir_ / "tiny.gguf");
    tokens_ = random_tokens(11, kTokens, GetParam().n_vocab);
  }

  // Opens both sides; libllama computes in batches of `n_block`, and so do we.
  void open(const SubjectOptions& options, uint32_t n_block = kTokens) {
    auto reference =
        LlamaReference::open(dir_ / "tiny.gguf", {.n_ubatch = n_block,
                                                  .type_k = ggml_type_of(options.type_k),
                                                  .type_v = ggml_type_of(options.type_v)});
    ASSERT_TRUE(reference.ok()) << reference.error().message;
    reference_ = *std::move(reference);
    auto subject = Subject::open(dir_ / "tiny.gguf", options);
    ASSERT_TRUE(subject.ok()) << subject.error().message;
    subject_ = *std::move(subject);
    blocks_ = token_block_major(kTokens, subject_->n_layer(), std::span(&n_block, 1));
  }

  LogitDistance prefill_distance() {
    return compare_logits(reference_->logits(tokens_, kTokens),
                          subject_->prefill(tokens_, blocks_, kTokens), GetParam().n_vocab);
  }

  // Of the tokens that libllama generates, after a prefill of both.
  LogitDistance decode_distance() {
    std::vector<float> expected;
    const std::vector<Token> text = reference_->greedy(tokens_, kGenerated + 1, &expected);
    subject_->prefill(tokens_, blocks_, 1);
    return compare_logits(std::span(expected).subspan(GetParam().n_vocab),
                          subject_->decode(std::span(text).first(kGenerated), kTokens),
                          GetParam().n_vocab);
  }

  TempDir dir_;
  std::vector<Token> tokens_;
  std::unique_ptr<LlamaReference> reference_;
  std::unique_ptr<Subject> subject_;
  Schedule blocks_;
};

TEST_P(TinyParity, ReferenceNumericsGiveTheSameBits) {
  for (uint32_t n_block : {kTokens, 40u}) {
    ASSERT_NO_FATAL_FAILURE(open({.reference_numerics = true}, n_block));
    const LogitDistance prefill = prefill_distance();
    EXPECT_TRUE(prefill.finite && prefill.bit_equal) << n_block << ": " << prefill.to_string();
    const LogitDistance decode = decode_distance();
    EXPECT_TRUE(decode.finite && decode.bit_equal) << n_block << ": " << decode.to_string();
  }
}

TEST_P(TinyParity, NumericsInUseAreClose) {
  for (exec::Kernels kernels : {exec::Kernels::kGgml, exec::Kernels::kNative}) {
    ASSERT_NO_FATAL_FAILURE(open({.kernels = kernels}));
    expect_close(prefill_distance(), bounds_of(GetParam().weight_type));
    expect_close(decode_distance(), bounds_of(GetParam().weight_type));
  }
}

std::vector<TinyModel> variants() {
  std::vector<TinyModel> models;
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K}) {
      models.push_back(tiny_model(architecture, type));
    }
  }
  for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                         GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K,
                         GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL}) {
    models.push_back(tiny_model("llama", type));
  }
  for (RopeScaling scaling : {RopeScaling::kLinear, RopeScaling::kYarn, RopeScaling::kLlama3}) {
    models.push_back(tiny_model("llama"));
    models.back().rope_scaling = scaling;
  }
  for (const char* architecture : {"qwen2", "qwen3"}) {
    models.push_back(tiny_model(architecture));
    models.back().rope_scaling = RopeScaling::kYarn;
  }
  models.push_back(tiny_model("gemma3"));  // as the larger ones: only the full layers are scaled
  models.back().rope_scaling = RopeScaling::kLinear;
  models.push_back(tiny_model("llama", GGML_TYPE_Q4_0));  // a head tied to repacked weights
  models.back().tied_head = true;
  models.push_back(tiny_model("gemma3"));
  models.back().sliding_window = 0;
  return models;
}

INSTANTIATE_TEST_SUITE_P(Variants, TinyParity, testing::ValuesIn(variants()),
                         [](const auto& test) { return to_string(test.param); });

// Never the same bits: we quantise f16 where libllama quantises f32, and heads whose size is a
// multiple of 64 libllama rotates by a Hadamard matrix first.
class TinyParityQ8 : public TinyParity {};

TEST_P(TinyParityQ8, QuantisedCacheIsClose) {
  for (kv::LiveType type_v : {kv::LiveType::kF16, kv::LiveType::kQ8_0}) {
    Bounds bounds = bounds_of(GetParam().weight_type);
    bounds.kl_mean += 2e-4;
    bounds.kl_max += 1e-3;
    bounds.margin += 0.05;
    for (exec::Kernels kernels : {exec::Kernels::kGgml, exec::Kernels::kNative}) {
      ASSERT_NO_FATAL_FAILURE(
          open({.type_k = kv::LiveType::kQ8_0, .type_v = type_v, .kernels = kernels}));
      expect_close(prefill_distance(), bounds);
      expect_close(decode_distance(), bounds);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, TinyParityQ8,
                         testing::Values(tiny_model("llama"), tiny_model("qwen2", GGML_TYPE_Q8_0),
                                         tiny_model("qwen3", GGML_TYPE_Q4_K),
                                         tiny_model("gemma3", GGML_TYPE_Q4_0)),
                         [](const auto& test) { return to_string(test.param); });

TEST(Opening, NamesAnUnknownArchitectureAndListsTheKnown) {
  TempDir dir;
  TinyModel model = tiny_model("llama");
  model.architecture = "falcon";
  write_tiny_gguf(model, dir / "tiny.gguf");
  const auto subject = Subject::open(dir / "tiny.gguf");
  ASSERT_FALSE(subject.ok());
  EXPECT_EQ(subject.error().code, Code::kUnsupported);
  for (const char* word : {"falcon", "llama", "qwen2", "qwen3", "gemma3"}) {
    EXPECT_THAT(subject.error().message, testing::HasSubstr(word));
  }
}

TEST(Opening, NamesWhatAFileLacks) {
  for (const char* missing : {"blk.2.attn_k.weight", "output_norm.weight", "token_embd.weight",
                              "llama.block_count", "llama.embedding_length"}) {
    TempDir dir;
    TinyModel model = tiny_model("llama");
    model.omit = {missing};
    write_tiny_gguf(model, dir / "tiny.gguf");
    const auto subject = Subject::open(dir / "tiny.gguf");
    ASSERT_FALSE(subject.ok()) << missing;
    EXPECT_THAT(subject.error().message, testing::HasSubstr(missing));
  }
}

TEST(Opening, RefusesTensorsThatItWouldIgnore) {
  TempDir dir;
  TinyModel model = tiny_model("llama");
  model.post_norm = true;  // a layer that llama does not have
  write_tiny_gguf(model, dir / "tiny.gguf");
  const auto subject = Subject::open(dir / "tiny.gguf");
  ASSERT_FALSE(subject.ok());
  EXPECT_EQ(subject.error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace headstart::test
