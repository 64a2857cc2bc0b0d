// server/testing.h: a server over a scripted model, and a client that sees bytes, for tests.
//
//   threads  the server's own; a test uses the rest from one
#pragma once

#include <arpa/inet.h>
#include <cpp-httplib/httplib.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/fake_completer.h"
#include "server/http_server.h"

namespace headstart::server::testing {

using namespace std::chrono_literals;
using nlohmann::json;
using Steady = std::chrono::steady_clock;

inline constexpr const char* kChatPath = "/v1/chat/completions";
inline constexpr const char* kHi = R"({"messages":[{"role":"user","content":"hi"}]})";
inline constexpr const char* kHiStream =
    R"({"messages":[{"role":"user","content":"hi"}],"stream":true})";

inline bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 10'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

// A client that sees bytes. Everything it waits for must come within 20 s.
class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { hang_up(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(std::string_view bytes) {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // As much as the server takes before it closes.
  void send_some(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Type: application/json" + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body);
  }
  // All bytes so far, as soon as they hold `what`.
  const std::string& until(const std::string& what) {
    const auto end = Steady::now() + 20s;
    while (bytes_.find(what) == std::string::npos && Steady::now() < end && more(100ms)) {
    }
    EXPECT_NE(bytes_.find(what), std::string::npos) << "waited for " << what << ", got " << bytes_;
    return bytes_;
  }
  const std::string& until_closed() {
    const auto end = Steady::now() + 20s;
    while (Steady::now() < end && more(100ms)) {
    }
    EXPECT_TRUE(closed_) << bytes_;
    return bytes_;
  }
  bool closes_within(std::chrono::milliseconds time) {
    const auto end = Steady::now() + time;
    while (!closed_ && Steady::now() < end) more(10ms);
    return closed_;
  }
  // One byte more, or none where the server has closed already.
  void trickle() { (void)::send(fd_, "x", 1, MSG_NOSIGNAL); }
  void hang_up() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  bool more(std::chrono::milliseconds wait) {  // false once closed
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(wait.count())) <= 0) return true;
    char buffer[4096];
    const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
    if (n > 0) bytes_.append(buffer, static_cast<size_t>(n));
    closed_ = n <= 0;
    return !closed_;
  }
  int fd_;
  bool closed_ = false;
  std::string bytes_;
};

// The SSE text of a chunked response.
inline std::string unchunk(const std::string& response) {
  std::string out;
  size_t at = response.find("\r\n\r\n") + 4;
  for (;;) {
    const size_t line = response.find("\r\n", at);
    if (line == std::string::npos) break;
    const size_t size = std::stoul(response.substr(at, line - at), nullptr, 16);
    if (size == 0) break;
    out += response.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  return out;
}

// The JSON of each data line; comments are left out, as clients do.
inline std::vector<json> data_of(const std::string& sse) {
  std::vector<json> out;
  size_t at = 0;
  for (size_t end; (end = sse.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = sse.substr(at, end - at);
    if (event.rfind("data: ", 0) != 0 || event == "data: [DONE]") continue;
    out.push_back(json::parse(event.substr(6)));
  }
  return out;
}

class HttpServerTest : public ::testing::Test {
 protected:
  // A ping that fails must not be what notices that a client has left.
  HttpServerTest() { options.ping_interval = 1h; }
  void start(bool held = false) {
    model = std::make_unique<FakeCompleter>(held);
    listen();
    server->set_ready(*model);
  }
  void listen() {
    options.port = 0;
    auto opened = Server::open(options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    server = *std::move(opened);
    thread = std::thread([this] { EXPECT_TRUE(server->run().ok()); });
  }
  void TearDown() override {
    if (server) server->stop();
    if (thread.joinable()) thread.join();
  }
  httplib::Client client() {
    httplib::Client c("127.0.0.1", server->port());
    c.set_read_timeout(20s);
    return c;
  }
  httplib::Response post(const std::string& path, const std::string& body) {
    auto result = client().Post(path, body, "application/json");
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    return result ? *result : httplib::Response{};
  }
  httplib::Response get(const std::string& path) {
    auto result = client().Get(path);
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    return result ? *result : httplib::Response{};
  }
  std::string stream(const std::string& path, const std::string& body) {
    const auto response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.body;
  }
  void expect_error(const httplib::Response& r, int status, const std::string& code) {
    EXPECT_EQ(r.status, status) << r.body;
    EXPECT_EQ(r.get_header_value("Content-Type"), "application/json");
    const json body = json::parse(r.body, nullptr, false);
    ASSERT_TRUE(body.is_object() && body.contains("error")) << r.body;
    EXPECT_TRUE(body["error"]["message"].is_string());
    EXPECT_TRUE(body["error"]["type"].is_string());
    EXPECT_TRUE(body["error"].contains("param"));
    EXPECT_EQ(body["error"]["code"], code.empty() ? json(nullptr) : json(code));
    EXPECT_EQ(r.has_header("Retry-After"), status == 503);
  }
  int n_running() const { return model->n_active(); }

  ServerOptions options;
  std::unique_ptr<FakeCompleter> model;
  std::unique_ptr<Server> server;
  std::thread thread;
};

}  // namespace headstart::server::testing
