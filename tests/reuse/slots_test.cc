// Proves that what a slot held survives the store, and that a restore says what the next request
// then reuses. The reference is that request. To add a case, use Slots.
#include <gtest/gtest.h>

#include <fstream>

#include "exec/engine.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::test {
namespace {

using exec::Engine;

class Slots : public testing::Test {
 protected:
  std::unique_ptr<Engine> open(const std::string& kv, const char* architecture = "llama") {
    const auto gguf = dir_ / (std::string(architecture) + ".gguf");
    if (!std::filesystem::exists(gguf)) write_tiny_gguf(tiny_model(architecture), gguf);
    exec::EngineOptions o;
    o.model_path = gguf;
    o.n_threads = 1;
    o.cache_dir = dir_ / kv;
    o.reuse = store::ReuseMode::kExact;
    auto engine = Engine::open(o);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    return *std::move(engine);
  }
  static exec::CompletionRequest request(const std::string& text, std::string salt = "") {
    exec::CompletionRequest r;
    r.tokens = tiny_text(text);
    r.n_predict = 4;
    r.salt = std::move(salt);
    return r;
  }
  static uint32_t n_cached(Engine& engine, const exec::CompletionRequest& r) {
    const auto done = engine.complete(r);
    EXPECT_TRUE(done.ok());
    return done->n_cached;
  }
  std::filesystem::path saved() const { return dir_ / "saved"; }
  TempDir dir_;
  const std::string text_ = std::string(300, 'a') + ". " + std::string(200, 'b');
};

TEST_F(Slots, ARestoreSaysWhatTheNextRequestReuses) {
  exec::SlotMoved kept;
  {
    const auto engine = open("one");
    ASSERT_TRUE(engine->complete(request(text_, "salt")).ok());
    const auto state = engine->slots();
    ASSERT_EQ(state.size(), 1u);
    EXPECT_FALSE(state[0].busy);
    EXPECT_GE(state[0].n_token, text_.size() + 1);
    const auto moved = engine->save_slot(0, saved());
    ASSERT_TRUE(moved.ok()) << moved.error().message;
    kept = *moved;
    EXPECT_EQ(kept.n_token, state[0].n_token);
  }
  const auto engine = open("another");
  EXPECT_EQ(engine->slots()[0].n_token, 0u);
  const auto moved = engine->restore_slot(0, saved());
  ASSERT_TRUE(moved.ok()) << moved.error().message;
  EXPECT_EQ(moved->n_token, kept.n_token);
  EXPECT_GT(moved->n_byte, 0u);
  EXPECT_EQ(engine->slots()[0].n_token, kept.n_token);
  auto longer = request(text_ + "and more", "salt");
  EXPECT_EQ(n_cached(*engine, request(text_ + "x", "other")), 0u) << "another salt's";
  EXPECT_GE(n_cached(*engine, longer), text_.size() + 1);
}

TEST_F(Slots, ADamagedChunkIsNotCounted) {
  {
    const auto engine = open("one");
    ASSERT_TRUE(engine->complete(request(text_)).ok());
    ASSERT_TRUE(engine->save_slot(0, saved()).ok());
  }
  // The second chunk and all that follows it.
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(saved())) {
    if (entry.path().extension() == ".hskv") files.push_back(entry.path());
  }
  ASSERT_GE(files.size(), 3u);
  for (const auto& file : files) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(-8, std::ios::end);
    f.write("damaged!", 8);
    break;
  }
  const auto engine = open("another");
  const auto moved = engine->restore_slot(0, saved());
  ASSERT_TRUE(moved.ok()) << moved.error().message;
  EXPECT_LT(moved->n_token, text_.size());
  EXPECT_EQ(n_cached(*engine, request(text_ + "x")), moved->n_token);
}

TEST_F(Slots, EraseMakesThePromptColdAgain) {
  const auto engine = open("one");
  EXPECT_EQ(n_cached(*engine, request(text_)), 0u);
  EXPECT_GT(n_cached(*engine, request(text_)), 400u);
  const auto moved = engine->erase_slot(0);
  ASSERT_TRUE(moved.ok());
  EXPECT_GT(moved->n_token, 400u);
  EXPECT_EQ(engine->slots()[0].n_token, 0u);
  EXPECT_EQ(n_cached(*engine, request(text_)), 0u);
  EXPECT_GT(n_cached(*engine, request(text_)), 400u) << "and it works as before";
}

TEST_F(Slots, SavingAgainReplacesWhatWasSaved) {
  const auto engine = open("one");
  ASSERT_TRUE(engine->complete(request(text_)).ok());
  ASSERT_TRUE(engine->save_slot(0, saved()).ok());
  ASSERT_TRUE(engine->complete(request("short")).ok());
  const auto moved = engine->save_slot(0, saved());
  ASSERT_TRUE(moved.ok());
  EXPECT_LT(moved->n_token, 12u);
  size_t n_file = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(saved())) ++n_file;
  EXPECT_EQ(n_file, 2u) << "a chunk and the list";
}

TEST_F(Slots, SaysWhyItCannot) {
  const auto engine = open("one");
  EXPECT_EQ(engine->save_slot(1, saved()).error().code, Code::kNotFound);
  EXPECT_EQ(engine->restore_slot(0, saved()).error().code, Code::kNotFound);
  ASSERT_TRUE(engine->complete(request(text_)).ok());
  ASSERT_TRUE(engine->save_slot(0, saved()).ok());
  EXPECT_EQ(open("three", "qwen2")->restore_slot(0, saved()).error().code, Code::kUnsupported);
  for (const std::string& bytes : {std::string(), std::string(40, 'x'), std::string(4096, '\0')}) {
    std::ofstream(saved() / "sequence.hssq", std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_EQ(engine->restore_slot(0, saved()).error().code, Code::kCorrupt);
  }
}

}  // namespace
}  // namespace headstart::test
