// Proves over real sockets who may call, what pages are told, whose chunks are whose, and that no
// key and no prompt is logged. The rules themselves are tested in access_test.cc.
//
// To add a case: options, start(), and a call with headers.
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>

#include "base/log.h"
#include "server/dashboard.h"
#include "server/testing.h"

namespace headstart::server {
namespace {

using namespace testing;

class HttpAccessTest : public HttpServerTest {
 protected:
  void start_with_keys() {
    options.access.api_keys = {"sk-one", "sk-two"};
    start();
  }
  httplib::Response call(const std::string& method, const std::string& path,
                         const httplib::Headers& headers, const std::string& body = "") {
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.headers = headers;
    request.body = body;
    auto result = client().send(request);
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    return result ? *result : httplib::Response{};
  }
  httplib::Response chat(const httplib::Headers& headers, const std::string& body = kHi) {
    return call("POST", kChatPath, headers, body);
  }
};

TEST_F(HttpAccessTest, AnswersOnlyToKeys) {
  start_with_keys();
  for (const auto& r : {chat({}), chat({{"Authorization", "Bearer sk-on"}}), get("/metrics"),
                        get("/v1/models"), get("/none"), get("/props")}) {
    expect_error(r, 401, "invalid_api_key");
    EXPECT_EQ(r.get_header_value("WWW-Authenticate"), "Bearer");
  }
  EXPECT_TRUE(model->seen().empty());
  EXPECT_EQ(chat({{"Authorization", "Bearer sk-one"}}).status, 200);
  EXPECT_EQ(chat({{"X-Api-Key", "sk-two"}}).status, 200);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(call("GET", "/metrics", {{"X-Api-Key", "sk-two"}}).status, 200);
}

TEST_F(HttpAccessTest, ShowsThePageToAllAndItsNumbersToKeys) {
  start_with_keys();
  for (const PageFile& file : page_files()) EXPECT_EQ(get(file.path).status, 200) << file.path;
  EXPECT_EQ(get("/").status, 200);
  expect_error(get("/headstart/state"), 401, "invalid_api_key");
  expect_error(get("/slots"), 401, "invalid_api_key");
  EXPECT_EQ(call("GET", "/headstart/state", {{"X-Api-Key", "sk-one"}}).status, 200);
}

TEST_F(HttpAccessTest, RefusesBeforeItReadsABody) {
  start_with_keys();
  RawClient c(server->port());
  c.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(c.until_closed().rfind("HTTP/1.1 401 ", 0), 0u);
}

TEST_F(HttpAccessTest, GivesEachKeySaltsOfItsOwn) {
  start_with_keys();
  const std::string salted = R"({"messages":[{"role":"user","content":"hi"}],"cache_salt":"s"})";
  chat({{"X-Api-Key", "sk-one"}});
  chat({{"Authorization", "Bearer sk-one"}});
  chat({{"X-Api-Key", "sk-two"}});
  chat({{"X-Api-Key", "sk-one"}}, salted);
  const auto seen = model->seen();
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0].salt, seen[1].salt);
  EXPECT_NE(seen[0].salt, seen[2].salt);
  EXPECT_NE(seen[0].salt, seen[3].salt);
  for (const auto& request : seen) EXPECT_EQ(request.salt.find("sk-"), std::string::npos);
}

TEST_F(HttpAccessTest, AnswersPreflightsWithoutAKey) {
  options.access.cors_origins = {"https://app.example"};
  start_with_keys();
  const httplib::Headers ask = {{"Origin", "https://app.example"},
                                {"Access-Control-Request-Method", "POST"},
                                {"Access-Control-Request-Headers", "authorization, x-other"}};
  const auto r = call("OPTIONS", kChatPath, ask);
  EXPECT_EQ(r.status, 204);
  EXPECT_EQ(r.body, "");
  EXPECT_EQ(r.get_header_value("Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(r.get_header_value("Access-Control-Allow-Headers"), "authorization");
  EXPECT_EQ(r.get_header_value("Vary"), "Origin");
  EXPECT_FALSE(call("OPTIONS", kChatPath, {{"Origin", "https://other.example"}})
                   .has_header("Access-Control-Allow-Origin"));
}

TEST_F(HttpAccessTest, StreamsCarryCorsHeadersToo) {
  options.access.cors_origins = {"*"};
  start();
  const auto r = chat({{"Origin", "https://app.example"}}, kHiStream);
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.get_header_value("Access-Control-Allow-Origin"), "*");
  EXPECT_FALSE(r.has_header("Access-Control-Allow-Credentials"));
}

TEST_F(HttpAccessTest, RefusesRebindingPagesWithoutKeys) {
  options.access.hosts = {"box.local"};
  start();
  expect_error(chat({{"Host", "evil.example:8080"}}), 403, "host_not_allowed");
  expect_error(chat({{"Origin", "https://evil.example"}}), 403, "origin_not_allowed");
  EXPECT_TRUE(model->seen().empty());
  EXPECT_EQ(chat({{"Host", "box.local"}}).status, 200);
  EXPECT_EQ(chat({}).status, 200);
}

TEST_F(HttpAccessTest, RefusesToOpenWithFaultyOptions) {
  options.access.cors_origins = {"nonsense"};
  const auto opened = Server::open(options);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::kInvalidArgument);
}

TEST_F(HttpAccessTest, LogsNoKeyAndNoPromptAtAnyLevelInUse) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  spdlog::set_level(spdlog::level::debug);
  start_with_keys();
  chat({{"X-Api-Key", "sk-one"}}, R"({"messages":[{"role":"user","content":"sk-prompt"}]})");
  chat({{"X-Api-Key", "sk-one"}}, R"({"messages":[{"role":"sk-prompt"}]})");
  chat({{"X-Api-Key", "sk-wrong"}});
  call("GET", "/sk-path?sk-query", {{"Authorization", "Bearer sk-two"}, {"Cookie", "sk-cookie"}});
  model->throws = true;
  chat({{"X-Api-Key", "sk-one"}}, R"({"messages":[{"role":"user","content":"sk-prompt"}]})");
  TearDown();
  spdlog::set_default_logger(before);
  EXPECT_NE(log.str().find("POST"), std::string::npos);  // it does log
  EXPECT_EQ(log.str().find("sk-"), std::string::npos) << log.str();
}

}  // namespace
}  // namespace headstart::server
