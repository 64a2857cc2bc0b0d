// exec/calibration: the choice on numbers small enough to see it; files that are damaged, too large
// or of another machine change nothing; an engine follows what was kept.
#include "exec/calibration.h"

#include <gtest/gtest.h>

#include <fstream>

#include "exec/engine.h"
#include "exec/executor_choice.h"
#include "kernels/operands.h"
#include "model/fingerprint.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::exec {
namespace {

// Of prompts of 1, 64 and 512 tokens, and of a decoded one.
Calibration::Candidate candidate(const std::string& name, double s1, double s64, double s512,
                                 double decode_s) {
  return {name, {{1, s1}, {64, s64}, {512, s512}}, decode_s};
}

Calibration sample() {
  return {1, {candidate("f32", .02, .1, 1, .01), candidate("ggml", .01, .2, 2, .01)}};
}

TEST(Fastest, WeighsPromptAndAnswer) {
  EXPECT_EQ(fastest(sample(), false), "f32");
  Calibration slow_decode = sample();
  slow_decode.candidates[0].decode_s = .01 + 1.01 / 128;
  EXPECT_EQ(fastest(slow_decode, false), "ggml");
  EXPECT_EQ(fastest(slow_decode, true), "f32");
}

TEST(Fastest, TakesTheFirstOfEquals) {
  const Calibration equal{1, {candidate("f32", 1, 1, 1, 1), candidate("bf16", 1, 1, 1, 1)}};
  EXPECT_EQ(fastest(equal, false), "f32");
}

TEST(Fastest, NeedsTheSamePointOfAll) {
  Calibration c = sample();
  c.candidates[1].prefill.pop_back();
  EXPECT_EQ(fastest(c, false), std::nullopt);
  EXPECT_EQ(fastest(c, true), "f32");
}

TEST(Crossover, IsWhereEveryLongerOneIsFasterToo) {
  EXPECT_EQ(crossover(sample(), "f32", "ggml"), 64u);
  EXPECT_EQ(crossover(sample(), "ggml", "f32"), std::nullopt);
  EXPECT_EQ(crossover(sample(), "bf16", "ggml"), std::nullopt);
  Calibration all = sample();
  all.candidates[0].prefill[0].s = .001;
  EXPECT_EQ(crossover(all, "f32", "ggml"), 1u);
}

TEST(ParseCalibration, ReadsWhatIsWritten) {
  const auto c = parse_calibration(to_json(sample()));
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_EQ(to_json(*c), to_json(sample()));
}

TEST(ParseCalibration, RefusesEveryTruncation) {
  const std::string json = to_json(sample());
  for (size_t n = 0; n + 2 < json.size(); ++n) {  // the last byte is a newline
    EXPECT_FALSE(parse_calibration(json.substr(0, n)).ok()) << n;
  }
}

TEST(ParseCalibration, RefusesWhatIsOutOfBounds) {
  const std::string good = R"({"version":1,"threads":1,"candidates":[)"
                           R"({"name":"f32","prefill_s":[[1,0.5],[2,0.6]],"decode_s":0.1}]})";
  ASSERT_TRUE(parse_calibration(good).ok());
  const std::pair<const char*, const char*> wrong[] = {
      {"\"version\":1", "\"version\":2"},
      {"\"threads\":1", "\"threads\":0"},
      {"\"threads\":1", "\"threads\":513"},
      {"\"threads\":1", "\"threads\":\"1\""},
      {"\"name\":\"f32\"", "\"name\":\"\""},
      {"\"name\":\"f32\"", "\"name\":7"},
      {"[1,0.5]", "[1,0]"},
      {"[1,0.5]", "[1,-1]"},
      {"[1,0.5]", "[1,1e300]"},
      {"[1,0.5]", "[1,null]"},
      {"[1,0.5]", "[2,0.5]"},
      {"[1,0.5]", "[-1,0.5]"},
      {"[1,0.5]", "[0,0.5]"},
      {"[1,0.5]", "[4294967297,0.5]"},
      {"[1,0.5]", "[1]"},
      {"\"decode_s\":0.1", "\"decode_s\":\"0.1\""},
      {"[{\"name\"", "[[],{\"name\""},
      {"\"candidates\":[", "\"candidates\":{"},
  };
  for (const auto& [from, to] : wrong) {
    std::string bad = good;
    bad.replace(bad.find(from), std::string(from).size(), to);
    const auto c = parse_calibration(bad);
    ASSERT_FALSE(c.ok()) << bad;
    EXPECT_EQ(c.error().code, Code::kCorrupt) << bad;
  }
}

TEST(ParseCalibration, RefusesTooMuchAndTwice) {
  EXPECT_FALSE(parse_calibration(to_json(sample()) + std::string(kCalibrationBytesMax, ' ')).ok());
  Calibration twice = sample();
  twice.candidates.push_back(twice.candidates[0]);
  EXPECT_FALSE(parse_calibration(to_json(twice)).ok());
  Calibration many = sample();
  for (int i = 0; i < 8; ++i) many.candidates.push_back(candidate(std::to_string(i), 1, 1, 1, 1));
  EXPECT_FALSE(parse_calibration(to_json(many)).ok());
}

// A tiny model, and a home of its own for what is kept.
class KeptCalibration : public testing::Test {
 protected:
  void SetUp() override {
    test::write_tiny_gguf(test::tiny_model("llama"), model());
    if (const char* home = std::getenv("XDG_CACHE_HOME")) before_ = home;
    ASSERT_EQ(::setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1), 0);
  }
  void TearDown() override {
    before_ ? ::setenv("XDG_CACHE_HOME", before_->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
  }
  std::filesystem::path model() const { return dir_ / "tiny.gguf"; }
  std::filesystem::path file() const {
    return calibration_file(*calibration_dir(), *model::fingerprint(model(), {}));
  }
  // What computes, in an engine that is left the choice but for these.
  std::string kernels_of(const std::string& kernels, const std::string& operands = "auto") const {
    EngineOptions o;
    o.model_path = model();
    o.n_ctx = 64;
    o.n_threads = 1;
    o.reuse = store::ReuseMode::kOff;
    o.kernels = kernels;
    o.operands = operands;
    const auto engine = Engine::open(o);
    return engine.ok() ? (*engine)->stats().kernels : engine.error().message;
  }
  void keep(double ggml_s) const {
    const Calibration c{1, {candidate("f32", 1, 1, 1, 1), candidate("ggml", 1, 1, ggml_s, ggml_s)}};
    ASSERT_TRUE(save_calibration(file(), c).ok());
  }

  const test::TempDir dir_;
  std::optional<std::string> before_;
};

TEST_F(KeptCalibration, DecidesWhereTheChoiceIsFree) {
  const std::string usual = kernels_of("auto");
  ASSERT_TRUE(usual.starts_with("native/")) << usual;
  keep(0.5);
  EXPECT_TRUE(kernels_of("auto").starts_with("ggml")) << kernels_of("auto");
  EXPECT_TRUE(kernels_of("native").starts_with("native/"));
  EXPECT_TRUE(kernels_of("auto", "f32").starts_with("native/"));
  keep(2);
  EXPECT_TRUE(kernels_of("auto").starts_with("native/"));
  EXPECT_TRUE(kernels_of("ggml").starts_with("ggml"));
}

TEST_F(KeptCalibration, IsIgnoredWhereDamaged) {
  const std::string usual = kernels_of("auto");
  keep(0.5);
  for (const std::string& text : {std::string("{"), std::string(), std::string(1 << 17, ' ')}) {
    std::ofstream(file(), std::ios::trunc) << text;
    EXPECT_EQ(load_calibration(file()).has_value(), false);
    EXPECT_EQ(kernels_of("auto"), usual);
  }
}

TEST_F(KeptCalibration, IsOfOneModel) {
  keep(0.5);
  test::TinyModel other = test::tiny_model("llama");
  other.seed = 2;
  test::write_tiny_gguf(other, model());
  EXPECT_TRUE(kernels_of("auto").starts_with("native/"));
}

TEST_F(KeptCalibration, OperandsAreForcedOrRefused) {
  EXPECT_TRUE(kernels_of("auto", "f32").starts_with("native/"));
  EXPECT_NE(kernels_of("auto", "f16").find("--operands"), std::string::npos);
  const auto names = kernels::exact_operands();
  EXPECT_NE(kernels_of("ggml", "f32").find("--operands"), std::string::npos);
  const bool bf16 = std::find(names.begin(), names.end(), "bf16") != names.end();
  EXPECT_EQ(kernels_of("auto", "bf16").find("BF16") != std::string::npos, bf16);
}

}  // namespace
}  // namespace headstart::exec
