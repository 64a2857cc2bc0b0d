// bench/report: what a bench is asked for is done or refused, never ignored; figures are medians.
#include "bench/report.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "bench/model_benches.h"
#include "exec/calibration.h"
#include "exec/executor_choice.h"
#include "kernels/operands.h"
#include "model/fingerprint.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::bench {
namespace {

const Bench& named(const std::string& name) {
  for (const Bench& b : all_benches()) {
    if (b.name == name) return b;
  }
  HS_CHECK(false, "a bench of this name");
}

TEST(CheckOptions, RefusesWhatABenchWouldIgnore) {
  BenchOptions repeated, short_prompts;
  repeated.n_repeat = 2;
  short_prompts.rows = {64};
  for (const char* name : {"accuracy", "eviction"}) {
    EXPECT_FALSE(check_options(named(name), repeated).ok()) << name;
    EXPECT_FALSE(check_options(named(name), short_prompts).ok()) << name;
    EXPECT_TRUE(check_options(named(name), {}).ok()) << name;
  }
  BenchOptions operands;
  operands.operands = "int8";
  for (const char* name : {"sparse", "attention", "calibrate", "load", "eviction"}) {
    EXPECT_FALSE(check_options(named(name), operands).ok()) << name;
  }
  EXPECT_TRUE(check_options(named("sparse"), repeated).ok());
  EXPECT_TRUE(check_options(named("prefill"), short_prompts).ok());
  EXPECT_TRUE(check_options(named("reuse"), operands).ok());
}

TEST(CheckOptions, BoundsWhatIsMeasured) {
  BenchOptions o;
  for (const uint32_t n : {0u, kRowsMax + 1}) {
    o.rows = {64, n};
    EXPECT_EQ(check_options(named("prefill"), o).error().code, Code::kInvalidArgument) << n;
  }
  o.rows = {kRowsMax};
  EXPECT_TRUE(check_options(named("prefill"), o).ok());
  o.n_threads = 0;
  EXPECT_FALSE(check_options(named("prefill"), o).ok());
}

TEST(PairedRow, HasMediansAndTheSpreadOfTheRatio) {
  const Row row = paired_row("a", "m.gguf", 1, "u", {1, 2, 9}, {1, 1, 3});
  EXPECT_EQ(row.value, 2);
  EXPECT_EQ(row.reference, 1);
  EXPECT_EQ(row.n, 3u);
  EXPECT_DOUBLE_EQ(row.spread, (3.0 - 1.0) / 2.0);
}

// The bench itself fails where its two attentions differ.
TEST(Attention, MeasuresATinyModel) {
  const test::TempDir dir;
  test::write_tiny_gguf(test::tiny_model("llama"), dir / "tiny.gguf");
  BenchOptions o;
  o.models = {dir / "tiny.gguf"};
  o.rows = {600};
  o.n_repeat = 1;
  const auto rows = bench_attention(o);
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  ASSERT_EQ(rows->size(), 3u);
  for (const Row& row : *rows) {
    EXPECT_GT(row.value, 0) << row.name;
    EXPECT_GT(row.reference, 0) << row.name;
  }
  EXPECT_LT((*rows)[0].ratio(), 1.3) << "products are faster than the peak";
  EXPECT_LT((*rows)[1].ratio(), 1.3) << "attention is faster than the peak";
}

// What it keeps, an engine reads: exec/calibration_test.cc.
TEST(Calibrate, KeepsWhatItMeasures) {
  const test::TempDir dir;
  test::write_tiny_gguf(test::tiny_model("llama"), dir / "tiny.gguf");
  const char* const home = std::getenv("XDG_CACHE_HOME");
  const std::string before = home != nullptr ? home : "";
  ::setenv("XDG_CACHE_HOME", dir.path().c_str(), 1);
  BenchOptions o;
  o.models = {dir / "tiny.gguf"};
  o.n_repeat = 1;
  const auto rows = bench_calibrate(o);
  const auto fingerprint = model::fingerprint(dir / "tiny.gguf", {});
  const auto kept = exec::load_calibration(
      exec::calibration_file(dir / "headstart" / "calibration", *fingerprint));
  home != nullptr ? ::setenv("XDG_CACHE_HOME", before.c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  EXPECT_EQ(rows->size(), 10 * kernels::exact_operands().size());
  ASSERT_TRUE(kept.has_value());
  EXPECT_TRUE(exec::fastest(*kept, false).has_value());
}

}  // namespace
}  // namespace headstart::bench
