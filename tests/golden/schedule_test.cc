// Proves that a prompt gives the same bits, logits and K,V, in whatever order its lattice of tokens
// and layers is computed, and that recomputing scattered tokens brings back exactly what was there.
// That is what reuse stands on: a cold, warm, sliced or layer-by-layer run is one of these orders.
//
// To add an order: add it to orders(); a model: to the instantiations.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/tile_int8.h"
#include "tests/golden/subject.h"
#include "tests/support/compare.h"
#include "tests/support/models.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::test {
namespace {

constexpr uint32_t kWhole[] = {512}, kOdd[] = {1, 37, 64, 5, 90, 2}, kSixtyFour[] = {64},
                   kLarge[] = {129, 130}, kReal[] = {1, 97, 200};
// Multiples of the grain of block-sparse attention.
constexpr uint32_t kGrain[] = {128}, kGrains[] = {384, 128, 256};

struct NamedSchedule {
  const char* name;
  Schedule schedule;
};

std::vector<NamedSchedule> orders(uint32_t n_token, uint32_t n_layer) {
  return {
      {"odd blocks", token_block_major(n_token, n_layer, kOdd)},
      {"blocks of 64", token_block_major(n_token, n_layer, kSixtyFour)},
      {"large odd blocks", token_block_major(n_token, n_layer, kLarge)},
      {"layer by layer", layer_major(n_token, n_layer, kWhole)},
      {"three layers at a time", layer_major(n_token, n_layer, kWhole, 3)},
      {"four layers at a time", layer_major(n_token, n_layer, kLarge, 4)},
      {"layer-major in odd blocks", layer_major(n_token, n_layer, kOdd, 2)},
      {"staircase", staircase(n_token, n_layer, kOdd)},
  };
}

std::vector<NamedSchedule> grained_orders(uint32_t n_token, uint32_t n_layer) {
  return {
      {"blocks of the grain", token_block_major(n_token, n_layer, kGrain)},
      {"blocks of some grains", token_block_major(n_token, n_layer, kGrains)},
      {"layer by layer", layer_major(n_token, n_layer, kWhole)},
      {"layer-major in grains", layer_major(n_token, n_layer, kGrains, 2)},
      {"staircase", staircase(n_token, n_layer, kGrain)},
  };
}

// `share` of the positions before the last, in ascending order.
std::vector<uint32_t> scattered(uint32_t n_token, double share, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> positions;
  for (uint32_t pos = 0; pos + 1 < n_token; ++pos) {
    if (static_cast<double>(random() >> 11) * 0x1p-53 < share) positions.push_back(pos);
  }
  return positions;
}

// Logits of the last n_row positions, and the live K,V, of a whole prefill.
struct Outcome {
  std::vector<float> logits;
  std::vector<std::byte> live, captured;
};

Outcome run(Subject& subject, std::span<const Token> tokens, const Schedule& schedule,
            size_t n_row) {
  const auto n_token = static_cast<uint32_t>(tokens.size());
  Outcome outcome;
  outcome.logits = subject.prefill(tokens, schedule, n_row);
  outcome.live = subject.live_bytes(n_token);
  outcome.captured = subject.captured_bytes(n_token);
  return outcome;
}

Outcome run_whole(Subject& subject, std::span<const Token> tokens, size_t n_row) {
  const auto n_token = static_cast<uint32_t>(tokens.size());
  return run(subject, tokens, token_block_major(n_token, subject.n_layer(), kWhole), n_row);
}

void expect_orders_equal(Subject& subject, std::span<const Token> tokens, const Outcome& whole,
                         std::span<const NamedSchedule> orders, uint32_t grain = 1) {
  EXPECT_EQ(subject.executor().grain(), grain);
  const size_t n_row = whole.logits.size() / subject.n_vocab();
  for (const NamedSchedule& order : orders) {
    const Outcome other = run(subject, tokens, order.schedule, n_row);
    const LogitDistance d = compare_logits(whole.logits, other.logits, subject.n_vocab());
    EXPECT_TRUE(d.bit_equal) << order.name << ": " << d.to_string();
    EXPECT_TRUE(other.live == whole.live) << order.name;
    EXPECT_TRUE(other.captured == whole.captured) << order.name;
  }
}

void expect_recompute_restores(Subject& subject, std::span<const Token> tokens,
                               const Outcome& whole, double share) {
  const auto n_token = static_cast<uint32_t>(tokens.size());
  const std::vector<uint32_t> positions = scattered(n_token, share, 5);
  subject.spoil(positions);
  EXPECT_FALSE(subject.live_bytes(n_token) == whole.live);
  subject.recompute(tokens, {{0, 2, positions}, {2, subject.n_layer(), positions}});
  EXPECT_TRUE(subject.live_bytes(n_token) == whole.live) << "recomputed " << share;
  EXPECT_TRUE(subject.captured_bytes(n_token) == whole.captured) << "recomputed " << share;
}

void expect_loading_restores(Subject& subject, const Outcome& whole, uint32_t n_token) {
  std::vector<uint32_t> all(n_token);
  std::iota(all.begin(), all.end(), 0u);
  subject.spoil(all);
  subject.load_captured(n_token);
  EXPECT_TRUE(subject.live_bytes(n_token) == whole.live);
}

struct TinyCase {
  TinyModel model;
  kv::LiveType live = kv::LiveType::kF16;
  exec::Kernels kernels = exec::Kernels::kGgml;
  kernels::PrefillOps prefill = {};
  float sparse_attention = 0;
};
void PrintTo(const TinyCase& c, std::ostream* out) { PrintTo(c.model, out); }

class TinyOrders : public testing::TestWithParam<TinyCase> {
 protected:
  void SetUp() override { set_up(203, GetParam().sparse_attention); }
  void set_up(uint32_t n_token, float sparse_attention) {
    write_tiny_gguf(GetParam().model, dir_ / "tiny.gguf");
    tokens_ = random_tokens(21, n_token, GetParam().model.n_vocab);
    subject_ = open(1, sparse_attention);
    ASSERT_NE(subject_, nullptr);
  }
  std::unique_ptr<Subject> open(uint32_t n_threads, float sparse_attention = 0) {
    const kv::LiveType live = GetParam().live;
    auto subject = Subject::open(dir_ / "tiny.gguf", {.n_threads = n_threads,
                                                      .type_k = live,
                                                      .type_v = live,
                                                      .kernels = GetParam().kernels,
                                                      .prefill = GetParam().prefill,
                                                      .sparse_attention = sparse_attention});
    if (subject.ok()) return *std::move(subject);
    ADD_FAILURE() << subject.error().message;
    return nullptr;
  }

  TempDir dir_;
  std::vector<Token> tokens_;
  std::unique_ptr<Subject> subject_;
};

TEST_P(TinyOrders, GiveTheSameBits) {
  const auto n_token = static_cast<uint32_t>(tokens_.size());
  const auto all = orders(n_token, subject_->n_layer());
  expect_orders_equal(*subject_, tokens_, run_whole(*subject_, tokens_, n_token), all);
  const Outcome whole = run_whole(*subject_, tokens_, 1);
  expect_orders_equal(*subject_, tokens_, whole, all);
  for (double share : {0.02, 0.4}) expect_recompute_restores(*subject_, tokens_, whole, share);
  expect_loading_restores(*subject_, whole, n_token);
}

TEST_P(TinyOrders, ThreadsDoNotChangeTheBits) {
  const Outcome alone = run_whole(*subject_, tokens_, tokens_.size());
  const auto two = open(2);
  ASSERT_NE(two, nullptr);
  const Outcome together = run_whole(*two, tokens_, tokens_.size());
  EXPECT_TRUE(alone.logits == together.logits);
  EXPECT_TRUE(alone.live == together.live);
}

// What this CPU can run, bf16 emulated too.
std::vector<kernels::PrefillOps> all_prefill_ops() {
  std::vector<kernels::PrefillOps> all;
  for (const kernels::TileOps* tile : kernels::all_tile_ops()) all.push_back({tile, tile});
  const kernels::PanelOps* const int8 = kernels::panel_ops_int8();
  if (int8 != nullptr) all.push_back({&kernels::tile_ops(), int8});
  return all;
}

std::vector<TinyCase> tiny_cases() {
  std::vector<TinyCase> cases;
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    cases.push_back({tiny_model(architecture)});
    cases.push_back({tiny_model(architecture, GGML_TYPE_Q4_0)});
  }
  for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
                         GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K,
                         GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL}) {
    cases.push_back({tiny_model("llama", type)});
  }
  // Ranges of four layers with one full layer each, at another place in the range.
  cases.push_back({tiny_model("gemma3")});
  cases.back().model.n_layer = 13;
  for (const char* architecture : {"llama", "gemma3"}) {
    cases.push_back({tiny_model(architecture), kv::LiveType::kQ8_0});
  }
  const size_t n_case = cases.size();
  for (size_t i = 0; i < n_case; ++i) {
    cases.push_back(cases[i]);
    cases.back().kernels = exec::Kernels::kNative;
  }
  for (const kernels::PrefillOps& prefill : all_prefill_ops()) {
    for (const char* architecture : {"llama", "gemma3"}) {
      cases.push_back({tiny_model(architecture, GGML_TYPE_Q4_0), kv::LiveType::kF16,
                       exec::Kernels::kNative, prefill});
    }
  }
  return cases;
}

std::string kernels_suffix(exec::Kernels kernels, const kernels::PrefillOps& prefill = {}) {
  std::string suffix = kernels == exec::Kernels::kNative ? "_native" : "_ggml";
  if (prefill.weights == nullptr) return suffix;
  suffix += std::string("_") + prefill.weights->name;
  std::ranges::replace(suffix, ' ', '_');
  return suffix;
}

std::vector<TinyCase> native_cases() {
  auto cases = tiny_cases();
  std::erase_if(cases, [](const TinyCase& c) { return c.kernels != exec::Kernels::kNative; });
  return cases;
}

std::string case_name(const testing::TestParamInfo<TinyCase>& test) {
  return to_string(test.param.model) + (test.param.live == kv::LiveType::kQ8_0 ? "_kv8" : "") +
         kernels_suffix(test.param.kernels, test.param.prefill);
}

INSTANTIATE_TEST_SUITE_P(Models, TinyOrders, testing::ValuesIn(tiny_cases()), case_name);

// Whether generated tokens come one by one or several at once, with one thread or two: ggml's
// decode depends on the threads, ours on nothing but the token and what came before.
class TinyColumns : public TinyOrders {};

TEST_P(TinyColumns, GiveTheSameBits) {
  const auto n_prompt = static_cast<uint32_t>(tokens_.size());
  const auto generated = random_tokens(22, 17, GetParam().model.n_vocab);
  const auto two = open(2);
  ASSERT_NE(two, nullptr);
  std::vector<float> logits;
  std::vector<std::byte> live;
  for (Subject* subject : {subject_.get(), two.get()}) {
    for (uint32_t n_column : {1u, 2u, 3u, 5u, 8u}) {
      run_whole(*subject, tokens_, 1);
      const std::vector<float> other = subject->decode(generated, n_prompt, n_column);
      const std::vector<std::byte> other_live =
          subject->live_bytes(n_prompt + static_cast<uint32_t>(generated.size()));
      if (logits.empty()) {
        logits = other;
        live = other_live;
      }
      EXPECT_TRUE(other == logits) << n_column << " columns";
      EXPECT_TRUE(other_live == live) << n_column << " columns";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TinyColumns, testing::ValuesIn(native_cases()), case_name);

// Block-sparse attention: orders whose blocks begin at multiples of its grain give the same bits,
// with one thread or two; all of the mass gives those of dense attention.
class SparseOrders : public TinyOrders {
 protected:
  void SetUp() override { set_up(901, GetParam().sparse_attention); }
};

TEST_P(SparseOrders, GiveTheSameBits) {
  const auto n_token = static_cast<uint32_t>(tokens_.size());
  const auto all = grained_orders(n_token, subject_->n_layer());
  const Outcome whole = run_whole(*subject_, tokens_, n_token);
  expect_orders_equal(*subject_, tokens_, whole, all, 128);
  expect_orders_equal(*subject_, tokens_, run_whole(*subject_, tokens_, 1), all, 128);
  const auto two = open(2, GetParam().sparse_attention);
  ASSERT_NE(two, nullptr);
  const Outcome together = run_whole(*two, tokens_, n_token);
  EXPECT_TRUE(whole.logits == together.logits);
  EXPECT_TRUE(whole.live == together.live);

  const auto dense = open(1), full = open(1, 1);
  ASSERT_TRUE(dense != nullptr && full != nullptr);
  const Outcome of_all_keys = run_whole(*dense, tokens_, n_token);
  EXPECT_FALSE(whole.logits == of_all_keys.logits) << "nothing was left out";
  EXPECT_TRUE(run_whole(*full, tokens_, n_token).logits == of_all_keys.logits);
}

std::vector<TinyCase> sparse_cases() {
  std::vector<TinyCase> cases;
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    cases.push_back({.model = tiny_model(architecture)});
  }
  cases.push_back({.model = tiny_model("llama"), .live = kv::LiveType::kQ8_0});
  for (const kernels::PrefillOps& prefill : all_prefill_ops()) {
    cases.push_back({.model = tiny_model("llama", GGML_TYPE_Q4_0), .prefill = prefill});
  }
  for (TinyCase& c : cases) {
    c.kernels = exec::Kernels::kNative;
    c.sparse_attention = 0.7f;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, SparseOrders, testing::ValuesIn(sparse_cases()),
                         [](const auto& test) {
                           return to_string(test.param.model) +
                                  (test.param.live == kv::LiveType::kQ8_0 ? "_kv8" : "") +
                                  kernels_suffix(test.param.kernels, test.param.prefill);
                         });

// Real models: fewer orders, since each costs a prefill, and the last position's logits as in use.
using RealCase = std::tuple<RealModel, exec::Kernels>;
class RealOrders : public testing::TestWithParam<RealCase> {};

TEST_P(RealOrders, GiveTheSameBits) {
  const auto [model, kernels] = GetParam();
  const auto path = model_path(model);
  ASSERT_TRUE(path.ok()) << path.error().message;
  auto subject = Subject::open(*path, {.kernels = kernels});
  ASSERT_TRUE(subject.ok()) << subject.error().message;
  // Longer than the window of gemma3, which is 512.
  const uint32_t n_token = model == RealModel::kGemma3 ? 619 : 203;
  const uint32_t n_layer = (*subject)->n_layer();
  const std::vector<Token> tokens = random_tokens(31, n_token, (*subject)->n_vocab());
  const Outcome whole = run_whole(**subject, tokens, 1);
  expect_orders_equal(**subject, tokens, whole,
                      std::vector<NamedSchedule>{
                          {"large odd blocks", token_block_major(n_token, n_layer, kLarge)},
                          {"layer-major in odd blocks", layer_major(n_token, n_layer, kReal, 5)},
                      });
  expect_recompute_restores(**subject, tokens, whole, 0.15);
  expect_loading_restores(**subject, whole, n_token);
}

INSTANTIATE_TEST_SUITE_P(
    Models, RealOrders,
    testing::Combine(testing::Values(RealModel::kSmolLm2, RealModel::kQwen, RealModel::kGemma3),
                     testing::Values(exec::Kernels::kGgml, exec::Kernels::kNative)),
    [](const auto& test) {
      return to_string(std::get<0>(test.param)) + kernels_suffix(std::get<1>(test.param));
    });

}  // namespace
}  // namespace headstart::test
