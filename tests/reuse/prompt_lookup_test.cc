// Proves that proposing tokens changes time only: text, tokens, pieces of a stream, the end of the
// text and what is stored are those of plain decoding, token by token. Tiny models, which soon
// repeat themselves, for every place where a run of accepted tokens can be cut; SmolLM2 for text
// that quotes its context. That the logits of a step of several tokens have the bits of single
// steps is proved in tests/golden (DecodedColumnsGiveTheSameBits). To add a case, run a request
// through expect_same().
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

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

// What a client sees of an answer.
struct Answer {
  Completion completion;
  std::vector<std::string> pieces;
};

std::unique_ptr<Engine> open(const std::filesystem::path& gguf, const std::string& kernels = "auto",
                             const std::filesystem::path& cache_dir = {}) {
  EngineOptions o;
  o.model_path = gguf;
  o.n_threads = 1;
  o.n_ctx = 1024;
  o.kernels = kernels;
  o.reuse = cache_dir.empty() ? ReuseMode::kOff : ReuseMode::kExact;
  if (!cache_dir.empty()) o.cache_dir = cache_dir;
  auto engine = Engine::open(o);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return *std::move(engine);
}

Answer ask(Engine& engine, CompletionRequest r, uint32_t n_propose_max) {
  Answer answer;
  r.n_propose_max = n_propose_max;
  r.on_text = [&](std::string_view piece) {
    answer.pieces.emplace_back(piece);
    return true;
  };
  auto completion = engine.complete(r);
  EXPECT_TRUE(completion.ok()) << completion.error().message;
  if (completion.ok()) answer.completion = *std::move(completion);
  return answer;
}

void expect_equal(const Answer& got, const Answer& want) {
  EXPECT_EQ(got.completion.tokens, want.completion.tokens);
  EXPECT_EQ(got.completion.text, want.completion.text);
  EXPECT_EQ(got.completion.finish, want.completion.finish);
  EXPECT_EQ(got.pieces, want.pieces);
}

// The answer with up to n_propose_max proposals, which must be the plain one.
Completion expect_same(Engine& engine, const CompletionRequest& r, uint32_t n_propose_max = 7) {
  const Answer want = ask(engine, r, 0), got = ask(engine, r, n_propose_max);
  expect_equal(got, want);
  EXPECT_EQ(want.completion.n_proposed, 0u);
  EXPECT_LE(got.completion.n_accepted, got.completion.n_proposed);
  return got.completion;
}

// A random model's text over three letters repeats itself, though not always as proposed.
model::SamplingOptions three_letters() {
  model::SamplingOptions s;
  for (const char letter : {'a', 'b', 'c'}) {
    s.logit_bias.emplace_back(kTinyFirstByte + Token{letter}, 50.0f);
  }
  return s;
}

model::SamplingOptions sampled(float temperature, model::SamplingOptions s = {}) {
  s.temperature = temperature;
  s.seed = 77;
  s.repeat_penalty = 1.1f;
  s.presence_penalty = 0.2f;
  return s;
}

// A prompt that repeats runs of itself.
std::vector<Token> tiny_prompt(uint32_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens{kTinyBos};
  while (tokens.size() < n) {
    if (tokens.size() > 20 && random() % 3 == 0) {
      const size_t first = random() % (tokens.size() - 8);
      for (size_t i = 0; i < 8; ++i) tokens.push_back(tokens[first + i]);
    } else {
      tokens.push_back(kTinyFirstByte + static_cast<Token>('a' + random() % 26));
    }
  }
  tokens.resize(n);
  return tokens;
}

// Stored chunks by file: all that does not depend on the clock.
struct Stored {
  std::vector<Token> tokens;
  uint32_t flags = 0, pos_first = 0, n_strict = 0;
  std::string cells;
  bool operator==(const Stored&) const = default;
};

std::map<std::string, Stored> stored(const std::filesystem::path& dir) {
  std::map<std::string, Stored> chunks;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const auto header = kv::parse_header(std::as_bytes(std::span(bytes)));
    if (!header.ok()) continue;  // not a chunk
    const kv::ChunkMeta& m = header->meta;
    chunks[entry.path().filename()] = {m.tokens, m.flags, m.pos_first, m.n_strict,
                                       bytes.substr(header->cells.front().offset)};
  }
  return chunks;
}

class EveryArchitecture : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { write_tiny_gguf(tiny_model(GetParam()), gguf()); }
  std::filesystem::path gguf() const { return dir_ / "model.gguf"; }
  TempDir dir_;
};

TEST_P(EveryArchitecture, AnswersAsWithoutProposals) {
  const auto engine = open(gguf());
  uint32_t n_accepted = 0;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    CompletionRequest r;
    r.tokens = tiny_prompt(90 + seed, seed);
    r.n_predict = 100;
    expect_same(*engine, r);
    for (const float temperature : {0.0f, 0.1f, 0.8f}) {
      r.sampling = sampled(temperature);
      expect_same(*engine, r);
      r.sampling = sampled(temperature, three_letters());
      n_accepted += expect_same(*engine, r).n_accepted;
    }
    r.sampling = three_letters();
    n_accepted += expect_same(*engine, r, 1 + seed).n_accepted;
  }
  EXPECT_GT(n_accepted, 300u);
}

// Long enough for several chunks to end within runs of accepted tokens.
TEST_P(EveryArchitecture, StoresTheSameChunks) {
  for (const uint32_t n_predict : {40u, 301u}) {
    TempDir plain, proposing;
    CompletionRequest r;
    r.tokens = tiny_prompt(150, 7);
    r.n_predict = n_predict;
    r.sampling = three_letters();
    Answer want, got;
    {
      const auto a = open(gguf(), "auto", plain / "kv"), b = open(gguf(), "auto", proposing / "kv");
      want = ask(*a, r, 0);
      got = ask(*b, r, 7);
      expect_equal(got, want);
      EXPECT_GT(got.completion.n_accepted, n_predict / 4);
    }  // flushed
    EXPECT_GE(stored(plain / "kv").size(), n_predict / 150 + 1);
    EXPECT_TRUE(stored(proposing / "kv") == stored(plain / "kv"));
    // The next turn finds as much of it, in either mode.
    r.tokens.insert(r.tokens.end(), got.completion.tokens.begin(), got.completion.tokens.end());
    for (const ReuseMode mode : {ReuseMode::kExact, ReuseMode::kStrict}) {
      r.reuse = mode;
      want = ask(*open(gguf(), "auto", plain / "kv"), r, 0);
      got = ask(*open(gguf(), "auto", proposing / "kv"), r, 7);
      EXPECT_EQ(got.completion.n_cached, want.completion.n_cached);
      EXPECT_EQ(got.completion.n_cached_rounded, want.completion.n_cached_rounded);
      expect_equal(got, want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lookup, EveryArchitecture,
                         testing::Values("llama", "qwen2", "qwen3", "gemma3"));

class Lookup : public testing::Test {
 protected:
  void SetUp() override { write_tiny_gguf(tiny_model("llama"), gguf()); }
  std::filesystem::path gguf() const { return dir_ / "model.gguf"; }
  CompletionRequest request(uint32_t n_predict) const {
    CompletionRequest r;
    r.tokens = tiny_prompt(120, 3);
    r.n_predict = n_predict;
    r.sampling = three_letters();
    return r;
  }
  TempDir dir_;
};

TEST_F(Lookup, EndsAfterAnyNumberOfTokens) {
  const auto engine = open(gguf());
  uint32_t n_accepted = 0;
  for (uint32_t n = 0; n < 60; ++n) {
    const Completion c = expect_same(*engine, request(n));
    EXPECT_EQ(c.tokens.size(), n);
    n_accepted += c.n_accepted;
  }
  EXPECT_GT(n_accepted, 300u);
}

TEST_F(Lookup, FillsTheContextToItsEnd) {
  EngineOptions o;
  o.model_path = gguf();
  o.n_threads = 1;
  o.n_ctx = 200;
  o.n_propose_max = 100;  // cut to what the executor can do
  auto engine = Engine::open(o);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  CompletionRequest r = request(80);
  const auto by_default = (*engine)->complete(r);
  ASSERT_TRUE(by_default.ok());
  EXPECT_GT(by_default->n_accepted, 20u);
  EXPECT_EQ(expect_same(**engine, r).tokens, by_default->tokens);
  const exec::EngineStats stats = (*engine)->stats();
  EXPECT_EQ(stats.n_accepted_token, 2u * by_default->n_accepted);
  EXPECT_EQ(stats.n_proposed_token, 2u * by_default->n_proposed);
}

TEST_F(Lookup, EndsAtStopStrings) {
  const auto engine = open(gguf());
  const std::string text = ask(*engine, request(60), 0).completion.text;
  ASSERT_EQ(text.size(), 60u);
  uint32_t n_accepted = 0;
  for (size_t n = 1; n <= text.size(); ++n) {
    CompletionRequest r = request(60);
    r.stop = {text.substr(0, n), "never"};  // a shorter one would stand earlier as well
    const Completion c = expect_same(*engine, r);
    EXPECT_EQ(c.finish, exec::FinishReason::kStop);
    EXPECT_EQ(c.tokens.size(), n);
    n_accepted += c.n_accepted;
  }
  EXPECT_GT(n_accepted, 300u);
}

TEST_F(Lookup, StoresTheSameChunksWhereTheTextIsStopped) {
  const std::string text = ask(*open(gguf()), request(60), 0).completion.text;
  for (const size_t n : {31u, 42u, 43u, 44u, 45u, 46u, 59u}) {
    TempDir plain, proposing;
    CompletionRequest r = request(60);
    r.stop = {text.substr(0, n)};
    ask(*open(gguf(), "auto", plain / "kv"), r, 0);
    ask(*open(gguf(), "auto", proposing / "kv"), r, 7);
    EXPECT_TRUE(stored(proposing / "kv") == stored(plain / "kv")) << n;
  }
}

TEST_F(Lookup, CancelsWithinARunOfAcceptedTokens) {
  for (const size_t n_piece : {1u, 2u, 5u, 9u, 14u, 30u}) {
    TempDir plain, proposing;
    std::vector<std::string> pieces[2];
    for (const bool lookup : {false, true}) {
      const auto engine = open(gguf(), "auto", (lookup ? proposing : plain) / "kv");
      CompletionRequest r = request(60);
      r.n_propose_max = lookup ? 7 : 0;
      r.on_text = [&](std::string_view piece) {
        pieces[lookup].emplace_back(piece);
        return pieces[lookup].size() < n_piece;
      };
      const auto cancelled = engine->complete(r);
      ASSERT_FALSE(cancelled.ok());
      EXPECT_EQ(cancelled.error().code, Code::kCancelled);
    }
    EXPECT_EQ(pieces[1], pieces[0]);
    EXPECT_TRUE(stored(proposing / "kv") == stored(plain / "kv")) << n_piece;
  }
}

TEST_F(Lookup, KernelsThatDecodeOneByOneProposeNothing) {
  const auto ggml = open(gguf(), "ggml");
  const Completion c = expect_same(*ggml, request(60));
  EXPECT_EQ(c.n_proposed, 0u);
}

// Text that quotes its context, in several ways, and some that does not.
class RealText : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = model_path(RealModel::kSmolLm2);
    ASSERT_TRUE(path.ok()) << path.error().message;
    engine_ = open(*path);
  }
  CompletionRequest request(const std::string& text, uint32_t n_predict) const {
    CompletionRequest r;
    r.tokens = engine_->tokenizer().encode(text, true, true);
    r.n_predict = n_predict;
    return r;
  }
  std::unique_ptr<Engine> engine_;
};

constexpr const char* kList =
    "id=17 name=harbour depth=40 open=yes\nid=18 name=lighthouse depth=12 open=no\n"
    "id=19 name=pier depth=7 open=yes\n";

TEST_F(RealText, AnswersAsWithoutProposals) {
  const std::string poem =
      "The ship left the harbour at dawn, and the gulls went with it as far as the last buoy; "
      "then the sea was empty, and the captain wrote the first line of his log.";
  const std::string prompts[] = {
      poem + "\n\nThe same text again:\n\nThe ship left",
      std::string(kList) + "\nThe same list once more:\nid=17",
      "int add(int a, int b) {\n  return a + b;\n}\n\nint sub(int a, int b) {\n",
      "<|im_start|>user\nRepeat this: " + poem + "<|im_end|>\n<|im_start|>assistant\n",
      "Once upon a time, in a town by the sea,",
  };
  uint32_t n_accepted = 0;
  for (const std::string& prompt : prompts) {
    CompletionRequest r = request(prompt, 40);
    n_accepted += expect_same(*engine_, r).n_accepted;
    r.sampling = sampled(0.7f);
    expect_same(*engine_, r);
  }
  CompletionRequest stopped = request(prompts[0], 40);
  stopped.stop = {"as the last"};
  EXPECT_EQ(expect_same(*engine_, stopped).finish, exec::FinishReason::kStop);
  EXPECT_GT(n_accepted, 60u);
}

// The proposal holds the token that ends the text.
TEST_F(RealText, EndsWhereTheModelEndsTheText) {
  const std::string turn =
      "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
      "<|im_start|>assistant\nThe capital of France is Paris.<|im_end|>\n";
  const size_t opening = turn.find("The capital");
  const Completion c = expect_same(*engine_, request(turn + turn + turn.substr(0, opening), 40));
  EXPECT_EQ(c.finish, exec::FinishReason::kStop);
  EXPECT_GT(c.n_accepted, 2u);
}

}  // namespace
}  // namespace headstart::test
