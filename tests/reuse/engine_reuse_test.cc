// Proves the promise of reuse: in strict mode an answer has the bits of a cold run, whether warm,
// restarted, sliced differently or mixed with other prompts, and a damaged or foreign store costs
// time only. The reference is a fresh engine that reuses nothing. Tiny models of every
// architecture, and SmolLM2 for the hundred prompts. To add a case, use Bed: cold() and warm().
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "exec/engine.h"
#include "tests/support/models.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::test {
namespace {

using exec::Completion;
using exec::CompletionRequest;
using exec::Engine;
using exec::EngineOptions;
using store::ReuseMode;

std::vector<Token> operator+(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// One model, one store folder, engines over it that come and go.
class Bed {
 public:
  explicit Bed(const TinyModel& model) : gguf_(dir_ / "model.gguf") {
    write_tiny_gguf(model, gguf_);
  }
  explicit Bed(std::filesystem::path gguf) : gguf_(std::move(gguf)) {}

  EngineOptions options() const {
    EngineOptions o;
    o.model_path = gguf_;
    o.n_threads = 1;  // tests run side by side; two threads are tested where they matter
    o.n_batch = 128;  // several slices for short prompts
    o.cache_dir = kv();
    o.reuse = ReuseMode::kStrict;
    return o;
  }
  std::filesystem::path kv() const { return dir_ / "kv"; }
  std::filesystem::path gguf() const { return gguf_; }

  static std::unique_ptr<Engine> open(const EngineOptions& options) {
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    return *std::move(engine);
  }
  std::unique_ptr<Engine> warm_engine() const { return open(options()); }
  Engine& cold_engine() {
    if (cold_ == nullptr) {
      EngineOptions o = options();
      o.cache_dir.reset();
      o.reuse = ReuseMode::kOff;
      cold_ = open(o);
    }
    return *cold_;
  }

 private:
  TempDir dir_;
  std::filesystem::path gguf_;
  std::unique_ptr<Engine> cold_;
};

Completion run(Engine& engine, const std::vector<Token>& prompt, CompletionRequest r = {}) {
  r.tokens = prompt;
  if (r.n_predict == 128) r.n_predict = 12;
  auto completion = engine.complete(r);
  EXPECT_TRUE(completion.ok()) << completion.error().message;
  return completion.ok() ? *completion : Completion{};
}

// The cells of `layer` by source, in tokens. They never overlap, and computed ones end the prompt.
std::map<std::string, uint32_t> sources(const Completion& c, uint32_t layer) {
  std::map<std::string, uint32_t> out;
  uint32_t end = 0;
  for (const exec::PromptCells& cells : c.cells) {
    if (layer < cells.layers.layer_first || layer >= cells.layers.layer_end) continue;
    EXPECT_GE(cells.pos_first, end);
    end = cells.pos_first + cells.n_token;
    out[cells.source] += cells.n_token;
  }
  EXPECT_EQ(end, c.n_prompt);
  return out;
}

class EveryArchitecture : public testing::TestWithParam<const char*> {};

// Cases 1 and 2: the identical prompt, in the same process and after a restart, also behind a
// window.
TEST_P(EveryArchitecture, IdenticalPromptComputesOneTokenAndAnswersTheSame) {
  Bed bed(tiny_model(GetParam()));
  const auto prompt = tiny_prompt(401, 1);
  const auto want = run(bed.cold_engine(), prompt);
  ASSERT_EQ(want.tokens.size(), 12u);
  {
    const auto engine = bed.warm_engine();
    const auto first = run(*engine, prompt), again = run(*engine, prompt);
    EXPECT_EQ(first.n_cached, 0u);
    EXPECT_EQ(again.n_cached, 400u);
    EXPECT_EQ(first.tokens, want.tokens);
    EXPECT_EQ(again.tokens, want.tokens);
  }
  const auto restarted = run(*bed.warm_engine(), prompt);
  EXPECT_EQ(restarted.n_cached, 400u);
  EXPECT_EQ(restarted.n_cached_rounded, 0u);
  EXPECT_EQ(restarted.tokens, want.tokens);
}

TEST_P(EveryArchitecture, OtherEndingsReuseTheCommonPrefixExactly) {
  Bed bed(tiny_model(GetParam()));
  const auto document = tiny_prompt(333, 2);
  run(*bed.warm_engine(), document + tiny_prompt(20, 3));
  const auto engine = bed.warm_engine();
  for (uint32_t seed = 10; seed < 14; ++seed) {
    const auto prompt = document + tiny_prompt(5 + 7 * (seed - 10), seed);
    const auto got = run(*engine, prompt);
    EXPECT_GE(got.n_cached, 333u);  // and their common BOS
    EXPECT_LE(got.n_cached, 335u);
    EXPECT_EQ(got.tokens, run(bed.cold_engine(), prompt).tokens) << seed;
  }
}

TEST(Reuse, SaysWhereEachCellCameFrom) {
  using Tokens = std::map<std::string, uint32_t>;
  for (const char* arch : {"llama", "gemma3"}) {  // without and with sliding windows
    Bed bed(tiny_model(arch));
    const auto prompt = tiny_prompt(401, 1);
    EngineOptions o = bed.options();
    {
      const auto engine = Bed::open(o);
      const auto first = run(*engine, prompt);
      EXPECT_EQ(sources(first, 0), (Tokens{{"computed", 401}}));
      EXPECT_GT(first.cells.size(), 2u);  // chunk by chunk
      engine->flush_store();
      const auto again = run(*engine, prompt);
      for (const exec::PromptCells& cells : again.cells)
        EXPECT_LE(cells.n_token, kv::kChunkTokensMax);
      const uint32_t n_layer = again.cells.back().layers.layer_end;
      for (uint32_t layer = 0; layer < n_layer; ++layer) {
        const auto got = sources(again, layer);
        EXPECT_EQ(got.at("computed"), 1u);
        EXPECT_LE(got.at("disk"), 400u);  // fewer behind a window
      }
    }
    o.ram_budget_bytes = 64 << 20;
    const auto engine = Bed::open(o);
    run(*engine, tiny_prompt(401, 2));
    engine->flush_store();
    EXPECT_TRUE(sources(run(*engine, tiny_prompt(401, 2)), 0).contains("ram"));
  }
}

// A prompt that ends inside what is stored, at every kind of place.
TEST_P(EveryArchitecture, ShorterPromptsReuseAPartOfAChunk) {
  Bed bed(tiny_model(GetParam()));
  const auto whole = tiny_prompt(300, 4);
  const auto engine = bed.warm_engine();
  run(*engine, whole);
  for (const size_t n : {2u, 33u, 127u, 128u, 129u, 200u, 299u}) {
    const std::vector<Token> prompt(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    const auto got = run(*engine, prompt);
    EXPECT_EQ(got.n_cached, n - 1);
    EXPECT_EQ(got.tokens, run(bed.cold_engine(), prompt).tokens) << n;
  }
}

TEST_P(EveryArchitecture, BatchSizeAndThreadsDoNotChangeTheAnswer) {
  Bed bed(tiny_model(GetParam()));
  const auto prompt = tiny_prompt(390, 5);
  const auto want = run(bed.cold_engine(), prompt);
  for (const uint32_t n_batch : {16u, 100u, 512u}) {
    EngineOptions o = bed.options();
    o.n_batch = n_batch;
    o.n_threads = n_batch == 512 ? 2 : 1;
    o.cache_dir.reset();
    o.reuse = ReuseMode::kOff;
    EXPECT_EQ(run(*Bed::open(o), prompt).tokens, want.tokens) << n_batch;
  }
}

// Case 19: a timestamp at the top costs the whole prompt, and the answer says which token did it.
TEST_P(EveryArchitecture, SaysWhereAPromptLeavesTheStoredOne) {
  Bed bed(tiny_model(GetParam()));
  const auto engine = bed.warm_engine();
  const std::string rest = ". " + std::string(300, 'x');
  const auto first = run(*engine, tiny_text("It is 10:41" + rest));
  EXPECT_FALSE(first.divergence.has_value()) << "nothing was stored";
  const auto second = run(*engine, tiny_text("It is 10:42" + rest));
  ASSERT_TRUE(second.divergence.has_value());
  EXPECT_EQ(second.n_cached, 11u);
  EXPECT_EQ(second.divergence->pos, 11u);
  EXPECT_EQ(second.divergence->prompt_text, "2. " + std::string(13, 'x'));
  EXPECT_EQ(second.divergence->stored_text, "1. " + std::string(13, 'x'));
  const auto again = run(*engine, tiny_text("It is 10:42" + rest));
  EXPECT_FALSE(again.divergence.has_value()) << "all of it is stored";
}

INSTANTIATE_TEST_SUITE_P(Tiny, EveryArchitecture,
                         testing::Values("llama", "qwen2", "qwen3", "gemma3"));

// Case 9: K of a quantised live cache is stored before RoPE and unquantised.
TEST(Reuse, QuantisedLiveCacheIsExactToo) {
  Bed bed(tiny_model("qwen2"));
  EngineOptions o = bed.options();
  o.cache_type_k = o.cache_type_v = "q8_0";
  EngineOptions off = o;
  off.reuse = ReuseMode::kOff;
  const auto document = tiny_prompt(250, 6), prompt = document + tiny_prompt(9, 7);
  const auto want = run(*Bed::open(off), prompt);
  const auto engine = Bed::open(o);
  run(*engine, document + tiny_prompt(30, 8));
  const auto got = run(*engine, prompt);
  EXPECT_GE(got.n_cached, 250u);
  EXPECT_EQ(got.tokens, want.tokens);
}

// Repacked matrices are where a token's bits would depend on its batch.
TEST(Reuse, RepackedWeightsAreExactToo) {
  for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}) {
    Bed bed(tiny_model("llama", type));
    const auto document = tiny_prompt(210, 20), prompt = document + tiny_prompt(6, 21);
    const auto engine = bed.warm_engine();
    run(*engine, document + tiny_prompt(77, 22));
    const auto got = run(*engine, prompt);
    EXPECT_GE(got.n_cached, 210u);
    EXPECT_EQ(got.tokens, run(bed.cold_engine(), prompt).tokens) << type;
  }
}

// Case 3: the same name, another model, and another live type.
TEST(Reuse, AnotherModelOfTheSameNameReusesNothing) {
  TinyModel a = tiny_model("llama"), b = a, c = a;
  b.seed = 99;
  c.rope_freq_base = 20000.0f;
  Bed bed_a(a), bed_b(b), bed_c(c);
  const auto prompt = tiny_prompt(200, 9);
  run(*bed_a.warm_engine(), prompt);
  for (Bed* other : {&bed_b, &bed_c}) {
    EngineOptions o = other->options();
    o.cache_dir = bed_a.kv();
    const auto got = run(*Bed::open(o), prompt);
    EXPECT_EQ(got.n_cached, 0u);
    EXPECT_EQ(got.tokens, run(other->cold_engine(), prompt).tokens);
  }
}

TEST(Reuse, AnotherNumericIdentityIsMarkedAndRefusedByStrict) {
  Bed bed(tiny_model("llama"));
  const auto prompt = tiny_prompt(200, 10);
  run(*bed.warm_engine(), prompt);
  EngineOptions o = bed.options();
  o.cache_type_k = o.cache_type_v = "q8_0";
  o.reuse = ReuseMode::kExact;
  const auto engine = Bed::open(o);
  CompletionRequest strict;
  strict.reuse = ReuseMode::kStrict;
  EXPECT_EQ(run(*engine, prompt, strict).n_cached, 0u);  // and stores its own
  const auto other = Bed::open([&] {
    EngineOptions p = o;
    p.cache_type_v = "f16";
    return p;
  }());
  const auto got = run(*other, prompt);
  EXPECT_EQ(got.n_cached, 199u);
  EXPECT_EQ(got.n_cached_rounded, 199u);
}

EngineOptions sparse(EngineOptions o, float share = 0.7f) {
  o.kernels = "native";
  o.sparse_attention = share;
  return o;
}

// Reuse ends at a block of 128 queries, and slices of any size give the same answer.
TEST(Reuse, SparseAttentionIsReusedInWholeQueryBlocks) {
  const TinyModel model = tiny_model("llama");
  Bed bed(model);
  EngineOptions o = sparse(bed.options());
  EngineOptions alone = o;
  alone.cache_dir.reset();
  alone.reuse = ReuseMode::kOff;
  alone.n_batch = 300;
  const auto cold = Bed::open(alone), engine = Bed::open(o);
  const auto document = tiny_prompt(1000, 60);
  for (uint32_t seed = 61; seed < 64; ++seed) {
    const auto prompt = document + tiny_prompt(30, seed);
    const auto got = run(*engine, prompt), want = run(*cold, prompt);
    EXPECT_EQ(got.n_cached, seed == 61 ? 0u : 896u);
    EXPECT_EQ(got.tokens, want.tokens);
    // Eight whole query blocks see 2, 4, … key blocks, the last one 17; at the last layer it is
    // alone.
    EXPECT_EQ(want.n_attention_causal, model.n_head * (89 * (model.n_layer - 1) + 17));
    EXPECT_LE(got.n_attention_causal, want.n_attention_causal);
    EXPECT_LE(got.n_attention_active, got.n_attention_causal);
    EXPECT_GT(got.n_attention_active, 0u);
  }
}

TEST(Reuse, SparseAndDenseAttentionShareNothing) {
  Bed bed(tiny_model("llama"));
  const auto prompt = tiny_prompt(300, 65);
  EngineOptions o = bed.options();
  o.reuse = ReuseMode::kExact;
  for (const float share : {0.9f, 0.0f, 0.8f}) {
    const auto got = run(*Bed::open(sparse(o, share)), prompt);
    EXPECT_EQ(got.n_cached, 0u) << share;
    EXPECT_EQ(got.n_attention_causal > 0, share > 0);
  }
  EXPECT_EQ(run(*Bed::open(sparse(o, 0.9f)), prompt).n_cached, 299u);
}

TEST(Reuse, SparseAttentionThatCannotBeIsRefused) {
  Bed bed(tiny_model("llama"));
  EngineOptions ggml = sparse(bed.options());
  ggml.kernels = "ggml";
  EngineOptions small = sparse(bed.options());
  small.n_batch = 127;
  for (const EngineOptions& o :
       {ggml, small, sparse(bed.options(), 0.4f), sparse(bed.options(), 1.1f),
        sparse(bed.options(), -1), sparse(bed.options(), NAN)}) {
    const auto engine = Engine::open(o);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().code, Code::kInvalidArgument);
    EXPECT_NE(engine.error().message.find("sparse"), std::string::npos);
  }
}

// Case 6: an unrelated prompt after another.
TEST(Reuse, UnrelatedPromptsDoNotTouchEachOther) {
  Bed bed(tiny_model("qwen3"));
  const auto engine = bed.warm_engine();
  for (uint32_t seed = 30; seed < 36; ++seed) {
    const auto prompt = tiny_prompt(150 + seed, seed);
    EXPECT_EQ(run(*engine, prompt).tokens, run(bed.cold_engine(), prompt).tokens) << seed;
  }
}

// Case 8: known pieces in another order.
TEST(Reuse, KnownPiecesInAnotherOrderAreComputed) {
  Bed bed(tiny_model("llama"));
  const auto a = tiny_prompt(160, 40), b = tiny_prompt(170, 41);
  const auto engine = bed.warm_engine();
  run(*engine, a + b);
  run(*engine, b + a);
  const auto got = run(*engine, b + a);
  EXPECT_EQ(got.n_cached, a.size() + b.size() - 1);
  EXPECT_EQ(got.tokens, run(bed.cold_engine(), b + a).tokens);
}

TEST(Reuse, GeneratedTokensServeTheNextTurn) {
  Bed bed(tiny_model("llama"));
  EngineOptions o = bed.options();
  o.reuse = ReuseMode::kExact;
  const auto engine = Bed::open(o);
  CompletionRequest r;
  r.n_predict = 40;
  const auto prompt = tiny_prompt(180, 50);
  const auto first = run(*engine, prompt, r);
  ASSERT_EQ(first.tokens.size(), 40u);
  const auto next = prompt + first.tokens + tiny_prompt(10, 51);
  const auto got = run(*engine, next);
  EXPECT_EQ(got.n_cached, 219u);  // all but the last generated token, whose K,V was never needed
  EXPECT_EQ(got.n_cached_rounded, 39u);
  CompletionRequest strict;
  strict.reuse = ReuseMode::kStrict;
  const auto exact = run(*engine, next, strict);
  EXPECT_EQ(exact.n_cached, 180u);
  EXPECT_EQ(exact.tokens, run(bed.cold_engine(), next).tokens);
  // The strict run has replaced the rounded chunks.
  EXPECT_EQ(run(*engine, next, strict).n_cached, next.size() - 1);
}

// Case 20: sampling with a seed.
TEST(Reuse, SeededSamplingIsTheSameColdAndWarm) {
  Bed bed(tiny_model("qwen2"));
  CompletionRequest r;
  r.sampling.temperature = 0.9f;
  r.sampling.seed = 1234;
  r.sampling.repeat_penalty = 1.1f;
  r.n_predict = 24;
  const auto prompt = tiny_prompt(220, 60);
  const auto want = run(bed.cold_engine(), prompt, r);
  const auto engine = bed.warm_engine();
  EXPECT_EQ(run(*engine, prompt, r).tokens, want.tokens);
  EXPECT_EQ(run(*engine, prompt, r).tokens, want.tokens);
  r.sampling.seed = 4321;
  EXPECT_NE(run(*engine, prompt, r).tokens, want.tokens);
}

// Case 17.
TEST(Reuse, PredictsExactlyAsManyTokensAsAsked) {
  Bed bed(tiny_model("llama"));
  const auto engine = bed.warm_engine();
  const auto prompt = tiny_prompt(90, 70);
  for (const uint32_t n : {0u, 1u, 2u}) {
    CompletionRequest r;
    r.n_predict = n;
    EXPECT_EQ(run(*engine, prompt, r).tokens.size(), n);
  }
  CompletionRequest empty;
  const auto refused = engine->complete(empty);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
}

// Case 18.
TEST(Reuse, TemplateThatWritesBosGivesOne) {
  TinyModel model = tiny_model("llama");
  model.chat_template = kTemplateWithBos;
  Bed bed(model);
  const auto engine = bed.warm_engine();
  const auto text = engine->chat_template().render({{"user", "hello"}});
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto tokens = engine->tokenizer().encode(*text, true, true);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), kTinyBos), 1);
}

TEST(Reuse, SaltSeparates) {
  Bed bed(tiny_model("llama"));
  const auto engine = bed.warm_engine();
  const auto prompt = tiny_prompt(150, 80);
  CompletionRequest alice, bob;
  alice.salt = "alice";
  bob.salt = "bob";
  run(*engine, prompt, alice);
  EXPECT_EQ(run(*engine, prompt, bob).n_cached, 0u);
  EXPECT_EQ(run(*engine, prompt).n_cached, 0u);
  EXPECT_EQ(run(*engine, prompt, alice).n_cached, 149u);
}

TEST_P(EveryArchitecture, DamagedChunksCostTimeOnly) {
  Bed bed(tiny_model(GetParam()));
  const auto prompt = tiny_prompt(400, 90);
  const auto want = run(*bed.warm_engine(), prompt);
  size_t n_file = 0;
  for (const auto& entry : std::filesystem::directory_iterator(bed.kv())) {
    // A bit in the middle of the cells of every second file; the others lose their end.
    if (n_file++ % 2 == 0) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(entry.file_size() / 2));
      const auto byte = static_cast<char>(file.get() ^ 1);
      file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
      file.put(byte);
    } else {
      std::filesystem::resize_file(entry.path(), entry.file_size() - 1);
    }
  }
  ASSERT_GE(n_file, 3u);
  const auto engine = bed.warm_engine();
  const auto got = run(*engine, prompt);
  EXPECT_EQ(got.n_cached, 0u);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_GT(engine->stats().store.tiers.at(0).second.n_corrupt, 0u);
  // A damaged chunk behind the first is found, and replaced, when it is first loaded.
  for (size_t i = 0; i < n_file; ++i) {
    EXPECT_EQ(run(*engine, prompt).tokens, want.tokens);
    engine->flush_store();
  }
  EXPECT_EQ(run(*engine, prompt).n_cached, 399u);
}

TEST(Reuse, CancelledRequestLeavesNothingBehind) {
  Bed bed(tiny_model("llama"));
  const auto engine = bed.warm_engine();
  const auto prompt = tiny_prompt(400, 100);
  std::stop_source stop;
  CompletionRequest r;
  r.tokens = prompt;
  r.cancel = stop.get_token();
  r.progress = [&](std::string_view phase, double done) {
    if (phase == "prefill" && done > 0) stop.request_stop();  // after the first slice
  };
  const auto cancelled = engine->complete(r);
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code, Code::kCancelled);
  const auto got = run(*engine, prompt);
  EXPECT_GT(got.n_cached, 0u);  // what the first slice computed is kept
  EXPECT_EQ(got.tokens, run(bed.cold_engine(), prompt).tokens);
}

TEST(Reuse, PromptOverTheContextIsRefused) {
  Bed bed(tiny_model("llama"));
  EngineOptions o = bed.options();
  o.n_ctx = 100;
  const auto engine = Bed::open(o);
  CompletionRequest r;
  r.tokens = tiny_prompt(90, 110);
  r.n_predict = 11;
  const auto refused = engine->complete(r);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  r.n_predict = 10;
  EXPECT_TRUE(engine->complete(r).ok());
}

TEST(Reuse, RequestThatNeedsMoreMemoryThanThereIsIsRefused) {
  TinyModel model = tiny_model("llama");
  model.n_layer = 48;
  model.n_head_kv = model.n_head;
  Bed bed(model);
  EngineOptions o = bed.options();
  o.n_ctx = 1u << 24;  // 400 GiB of K,V if it were used
  const auto engine = Bed::open(o);
  CompletionRequest r;
  r.tokens = tiny_prompt(40, 120);
  r.n_predict = (1u << 24) - 40;
  const auto refused = engine->complete(r);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_NE(refused.error().message.find("q8_0"), std::string::npos);  // says what to change
  r.n_predict = 4;
  EXPECT_TRUE(engine->complete(r).ok());
}

TEST(Reuse, AHundredPromptsOfARealModelAnswerTheSame) {
  const auto path = model_path(RealModel::kSmolLm2);
  ASSERT_TRUE(path.ok()) << path.error().message;
  Bed bed(*path);
  EngineOptions o = bed.options();
  o.n_batch = 512;
  const auto engine = Bed::open(o);
  const model::Tokenizer& tokenizer = engine->tokenizer();
  const char* openings[] = {"The ship left the harbour at dawn.", "Write a function that adds.",
                            "A recipe for bread:", "In the year 1905,", "Dear Sir or Madam,"};
  uint32_t n_warm = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    const std::string text = std::string(openings[i % 5]) + " Part " + std::to_string(i / 10) +
                             " of the story, as it was told to me. Chapter " + std::to_string(i) +
                             ":";
    const auto prompt = tokenizer.encode(text, true, false);
    CompletionRequest r;
    r.n_predict = 6;
    const auto got = run(*engine, prompt, r), want = run(bed.cold_engine(), prompt, r);
    ASSERT_EQ(got.tokens, want.tokens) << text;
    n_warm += got.n_cached > 0;
  }
  EXPECT_GE(n_warm, 90u);
}

}  // namespace
}  // namespace headstart::test
