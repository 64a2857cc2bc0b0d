// Makes everything that runs beside something else do so at once: the compute threads of a tiny
// model, the store's writer, the server's connections and worker, a second engine on the same
// folder. Meant for ThreadSanitizer, and true without it: an answer must not depend on any of this.
// To add a case: a loop in a thread of its own, and what must hold after all have ended.
#include <cpp-httplib/httplib.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "exec/engine.h"
#include "server/engine_completer.h"
#include "server/http_server.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

namespace headstart::test {
namespace {

using namespace std::chrono_literals;
using exec::CompletionRequest;
using exec::Engine;
using exec::EngineOptions;
using nlohmann::json;
using store::ReuseMode;

constexpr int kRounds = 4;

// Engines of one tiny model over one folder, both tiers too small for what is asked.
class Threads : public ::testing::Test {
 protected:
  Threads() { write_tiny_gguf(tiny_model("llama"), gguf_); }
  std::unique_ptr<Engine> open(uint32_t n_threads) {
    EngineOptions o;
    o.model_path = gguf_;
    o.n_ctx = 1024;
    o.n_threads = n_threads;
    o.n_batch = 64;
    o.cache_dir = dir_ / "kv";
    o.disk_budget_bytes = 600 << 10;
    o.ram_budget_bytes = 300 << 10;
    o.reuse = ReuseMode::kStrict;
    auto engine = Engine::open(o);
    HS_CHECK(engine.ok(), engine.error().message.c_str());
    return *std::move(engine);
  }
  // Prompts of 120 to 270 tokens that share beginnings.
  static std::string prompt(int i) {
    std::string text = "A prompt about " + std::to_string(i % 2) + ":\n";
    for (int line = 0; line < 3 + i % 3; ++line) text += "and this is the next line of it\n";
    return text + std::to_string(i);
  }

  TempDir dir_;
  std::filesystem::path gguf_ = dir_ / "model.gguf";
};

TEST_F(Threads, OneEngineIsAskedFromEverywhere) {
  const auto engine = open(2), beside = open(1);
  auto ask = [](Engine& e, int i, ReuseMode mode, std::stop_token cancel = {}) {
    CompletionRequest r;
    r.tokens = e.tokenizer().encode(prompt(i), true, false);
    r.n_predict = 6;
    r.reuse = mode;
    r.cancel = std::move(cancel);
    return e.complete(r);
  };
  std::vector<std::vector<Token>> want;
  for (int i = 0; i < 6; ++i) want.push_back(ask(*engine, i, ReuseMode::kOff)->tokens);

  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      Engine& e = caller == 3 ? *beside : *engine;
      for (int i = 0; i < kRounds * 2; ++i) {
        const int which = (i * 5 + caller) % 6;
        const auto got = ask(e, which, ReuseMode::kStrict);
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_EQ(got->tokens, want[static_cast<size_t>(which)]);
      }
    });
  }
  std::jthread impatient([&] {
    for (int i = 0; i < kRounds; ++i) {
      std::stop_source stop;
      std::jthread hurry([&stop] {
        std::this_thread::sleep_for(5ms);
        stop.request_stop();
      });
      const auto got = ask(*engine, i % 6, ReuseMode::kExact, stop.get_token());
      EXPECT_TRUE(got.ok() || got.error().code == Code::kCancelled);
    }
  });
  std::jthread watcher([&](std::stop_token done) {
    while (!done.stop_requested()) {
      const auto stats = engine->stats();
      for (const auto& [name, tier] : stats.store.tiers)
        EXPECT_LE(tier.size_bytes, tier.budget_bytes);
      beside->flush_store();
      std::this_thread::sleep_for(2ms);
    }
  });
  callers.clear();  // joins
  impatient.join();
  watcher.request_stop();
  watcher.join();
  EXPECT_GT(engine->stats().n_cached_token, 0u);
}

TEST_F(Threads, TheServerAnswersManyClientsFromARealEngine) {
  const auto engine = open(2);
  server::EngineCompleter completer(*engine, "tiny.gguf");
  server::ServerOptions options;
  options.port = 0;
  options.ping_interval = 5ms;
  auto opened = server::Server::open(options);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  server::Server& server = **opened;
  std::jthread serving([&] { EXPECT_TRUE(server.run().ok()); });
  server.set_ready(completer);

  auto post = [&](int i, const char* reuse, bool leave = false) -> std::string {
    httplib::Client client("127.0.0.1", server.port());
    client.set_read_timeout(120s);
    const json body = {{"prompt", prompt(i)},
                       {"max_tokens", 6},
                       {"temperature", 0},
                       {"headstart", {{"reuse", reuse}}},
                       {"stream", leave}};
    if (leave) {
      client.Post("/v1/completions", httplib::Headers(), body.dump(), "application/json",
                  [n = 0](const char*, size_t) mutable { return ++n < 3; });
      return {};
    }
    const auto response = client.Post("/v1/completions", body.dump(), "application/json");
    const json answer = response ? json::parse(response->body, nullptr, false) : json();
    if (!answer.is_object() || !answer.contains("choices")) return "no answer";
    return answer["choices"][0]["text"];
  };
  std::vector<std::string> want;
  for (int i = 0; i < 6; ++i) want.push_back(post(i, "off"));

  std::vector<std::jthread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < kRounds; ++i) {
        const int which = (i * 5 + client) % 6;
        if (client == 3) {
          post(which, "exact", /*leave=*/true);
        } else {
          EXPECT_EQ(post(which, "strict"), want[static_cast<size_t>(which)]);
        }
      }
    });
  }
  std::jthread watcher([&](std::stop_token done) {
    while (!done.stop_requested()) {
      httplib::Client client("127.0.0.1", server.port());
      const auto response = client.Get("/metrics");
      EXPECT_TRUE(response && response->status == 200);
      std::this_thread::sleep_for(2ms);
    }
  });
  clients.clear();  // joins
  watcher.request_stop();
  watcher.join();
  // And one that is being answered when the server stops.
  std::jthread last([&] { post(0, "off"); });
  std::this_thread::sleep_for(3ms);
  server.stop();
}

}  // namespace
}  // namespace headstart::test
