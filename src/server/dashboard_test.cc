// Proves the page's files and their headers, and the snapshot, over a real socket.
#include "server/dashboard.h"

#include <cpp-httplib/httplib.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "server/fake_completer.h"
#include "server/http_server.h"

namespace headstart::server {
namespace {

using json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class DashboardTest : public testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.port = 0;
    server = *Server::open(options);
    thread = std::thread([this] { EXPECT_TRUE(server->run().ok()); });
  }
  void TearDown() override {
    server->stop();
    thread.join();
  }
  httplib::Response get(const std::string& path) {
    auto result = httplib::Client("127.0.0.1", server->port()).Get(path);
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    return result ? *result : httplib::Response{};
  }
  json state() { return json::parse(get("/headstart/state").body); }
  void post(const std::string& body) {
    httplib::Client client("127.0.0.1", server->port());
    EXPECT_TRUE(client.Post("/v1/completions", body, "application/json"));
  }
  json wait_for_state(const char* name) {
    json s = state();
    for (int i = 0; i < 2000 && (s["requests"].empty() || s["requests"][0]["state"] != name); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      s = state();
    }
    EXPECT_EQ(s["requests"][0]["state"], name);
    return s;
  }

  std::unique_ptr<Server> server;
  std::thread thread;
};

TEST_F(DashboardTest, ServesThePageWithAStrictPolicy) {
  for (const PageFile& file : page_files()) {
    const auto r = get(file.path);
    EXPECT_EQ(r.status, 200) << file.path;
    EXPECT_EQ(r.body, file.bytes);
    EXPECT_EQ(r.get_header_value("Content-Type"), file.type);
    EXPECT_EQ(r.get_header_value("X-Content-Type-Options"), "nosniff");
    const std::string policy = r.get_header_value("Content-Security-Policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  }
  const std::string page = get("/").body;
  EXPECT_THAT(page, HasSubstr("<title>Headstart</title>"));
  EXPECT_THAT(get("/dashboard/chart.js").body, HasSubstr("Chart.js v3"));
  EXPECT_THAT(get("/dashboard/licence.txt").body, HasSubstr("Permission is hereby granted"));
  EXPECT_EQ(get("/dashboard/nothing.js").status, 404);
}

// Each file that a file of the page names is there too.
TEST_F(DashboardTest, LinksOnlyToItself) {
  const std::string page = get("/").body;
  EXPECT_THAT(page, Not(HasSubstr("://")));
  for (size_t at = page.find("=\"/"); at != std::string::npos; at = page.find("=\"/", at + 1)) {
    const std::string path = page.substr(at + 2, page.find('"', at + 2) - at - 2);
    EXPECT_EQ(get(path).status, 200) << path;
  }
}

TEST_F(DashboardTest, SaysThatTheModelLoads) {
  const json s = state();
  EXPECT_EQ(s["version"], 1);
  EXPECT_EQ(s["ready"], false);
  EXPECT_TRUE(s["requests"].empty());
  EXPECT_GT(s["memory"]["total_bytes"], 0);
  EXPECT_GT(s["memory"]["process_bytes"], 0);
}

TEST_F(DashboardTest, ShowsARequestFromQueueToEnd) {
  FakeCompleter model(/*held=*/true);
  model.pieces = {"secret answer"};
  server->set_ready(model);
  std::thread client([&] { post(R"({"prompt":"secret prompt","max_tokens":5})"); });
  json s = wait_for_state("running");
  EXPECT_EQ(s["model"], "fake-model");
  EXPECT_EQ(s["queue"]["n_running"], 1);
  EXPECT_EQ(s["tiers"][0]["name"], "ram");
  EXPECT_EQ(s["tiers"][0]["n_hit"], 3);
  json r = s["requests"][0];
  EXPECT_EQ(r["number"], 1);
  EXPECT_EQ(r["endpoint"], "completions");
  EXPECT_EQ(r["n_prompt"], 13);
  EXPECT_EQ(r["n_predict"], 5);
  model.start.open();
  model.step.open();
  client.join();
  s = wait_for_state("done");
  r = s["requests"][0];
  EXPECT_EQ(r["n_generated"], 1);
  EXPECT_GE(r["ttft_ms"], 5);
  EXPECT_EQ(s["queue"]["n_running"], 0);
  EXPECT_THAT(s.dump(), Not(HasSubstr("secret")));
  server->stop();  // before the model goes
}

TEST(DashboardState, NamesEveryCellAndPart) {
  Snapshot s;
  s.engine.emplace();
  s.engine->kernels = "native/2";
  s.engine->kv_bytes_max = 100;
  RequestRecord& r = s.requests.emplace_back();
  r.state = RequestState::kDone;
  r.part_ms[static_cast<size_t>(TtftPart::kLoad)] = 1.23456;
  r.cells = {{0, 128, {0, 30}, "disk"}, {128, 1, {0, 30}, "computed"}};
  const json body = json::parse(snapshot_body(s));
  EXPECT_EQ(body["kernels"], "native/2");
  EXPECT_EQ(body["memory"]["kv_bytes_max"], 100);
  EXPECT_EQ(body["requests"][0]["parts_ms"],
            json({{"queue", 0}, {"wait", 0}, {"lookup", 0}, {"load", 1.235}, {"compute", 0}}));
  EXPECT_EQ(body["requests"][0]["cells"],
            json::parse(R"([[0,128,0,30,"disk"],[128,1,0,30,"computed"]])"));
}

// docs/formats/dashboard.md states this bound.
TEST(DashboardState, IsBounded) {
  Snapshot s;
  s.engine.emplace();
  for (size_t i = 0; i < RequestLog::kRecentMax + 33; ++i) {
    RequestRecord& r = s.requests.emplace_back();
    r.number = 1ull << 60;
    r.id = std::string(33, 'x');
    r.unix_s = r.age_ms = r.ttft_ms = r.decode_ms = r.prefill_tok_s = r.decode_tok_s = 1e12 / 3;
    r.n_prompt = r.n_predict = r.n_prefilled = r.n_cached = r.n_generated = UINT32_MAX;
    std::fill(std::begin(r.part_ms), std::end(r.part_ms), 1e12 / 3);
    if (i >= RequestLog::kPicturesMax) continue;
    r.cells.assign(RequestLog::kCellsMax, {1u << 24, 1u << 24, {1000, 1000}, "computed"});
  }
  EXPECT_LT(snapshot_body(s).size(), 256u * 1024);
}

}  // namespace
}  // namespace headstart::server
