// Proves that whatever is too much of a request is answered with a clear 4xx in JSON, and that the
// connection then closes. To add a case: bytes and the status that they get.
#include "server/request_head.h"
#include "server/testing.h"

namespace headstart::server {
namespace {

using namespace testing;

class HttpLimitsTest : public HttpServerTest {
 protected:
  // Sends `bytes`, as far as the server takes them, and expects the refusal.
  void expect_refused(const std::string& bytes, int status) {
    RawClient c(server->port());
    c.send_some(bytes);
    const std::string response = c.until_closed();
    EXPECT_EQ(response.rfind("HTTP/1.1 " + std::to_string(status) + " ", 0), 0u)
        << bytes.substr(0, 60) << "... got " << response;
    EXPECT_EQ(response.find("HTTP/1.1", 1), std::string::npos) << "two answers";
    const size_t body = response.find("\r\n\r\n");
    ASSERT_NE(body, std::string::npos);
    const json error = json::parse(response.substr(body + 4), nullptr, false);
    EXPECT_TRUE(error.is_object() && error["error"]["message"].is_string()) << response;
    EXPECT_NE(response.find("Connection: close\r\n"), std::string::npos);
  }
};

std::string headers(size_t n, size_t n_byte) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += "X: " + std::string(n_byte, 'x') + "\r\n";
  return out;
}

TEST_F(HttpLimitsTest, LongTargets) {
  start();
  const std::string end = " HTTP/1.1\r\n\r\n";
  for (const size_t n : {kHeadLineBytesMax, size_t{40'000}, size_t{1'000'000}}) {
    expect_refused("GET /" + std::string(n, 'u') + end, 414);
    expect_refused("GET /health?" + std::string(n, 'q') + end, 414);
    expect_refused(std::string(n + 1, 'G'), 414);  // that never ends
  }
  EXPECT_EQ(get("/health?" + std::string(8000, 'q')).status, 200);
}

TEST_F(HttpLimitsTest, ManyAndLongHeaders) {
  start();
  const std::string line = "GET /health HTTP/1.1\r\n";
  expect_refused(line + headers(kHeadersMax + 1, 1) + "\r\n", 431);
  expect_refused(line + headers(1, kHeadLineBytesMax) + "\r\n", 431);
  expect_refused(line + headers(1, 1'000'000) + "\r\n", 431);
  expect_refused(line + headers(40, 2000) + "\r\n", 431);
  expect_refused(line + headers(10'000, 100), 431);  // that never ends
  RawClient c(server->port());
  c.send(line + headers(30, 2000) + "\r\n");
  c.until("ok");
}

TEST_F(HttpLimitsTest, HeadsSentAheadAreLookedAtToo) {
  start();
  RawClient c(server->port());
  c.send("GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n" + headers(101, 1) + "\r\n");
  const std::string& response = c.until_closed();
  EXPECT_EQ(response.rfind("HTTP/1.1 200 ", 0), 0u);
  EXPECT_NE(response.find("HTTP/1.1 431 "), std::string::npos);
}

TEST_F(HttpLimitsTest, BodiesOfEveryKind) {
  options.body_bytes_max = 1000;
  start();
  const std::string post = "POST /v1/completions HTTP/1.1\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  expect_refused(post + "Content-Length: 1001\r\n\r\n" + std::string(1001, ' '), 413);
  expect_refused(post + "Content-Length: 5000000\r\n\r\n" + std::string(5'000'000, ' '), 413);
  expect_refused(chunked + "3e9\r\n" + std::string(1001, ' ') + "\r\n0\r\n\r\n", 413);
  std::string many = chunked;
  for (int i = 0; i < 2000; ++i) many += "1\r\n \r\n";
  expect_refused(many, 413);
  expect_refused(chunked + "ffffffffffffffffffff\r\n", 400);
  expect_refused(chunked + "-1\r\n", 400);
  expect_refused(post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  expect_refused(post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400);
  expect_refused(post + "Transfer-Encoding: gzip\r\n\r\n", 400);
  EXPECT_TRUE(model->seen().empty());
}

TEST_F(HttpLimitsTest, SlowHeadsAndBodies) {
  options.request_timeout = 100ms;
  start();
  expect_refused("GE", 408);
  expect_refused("GET /health HTTP/1.1\r\nX: ", 408);
  expect_refused("POST /v1/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\n{", 408);
  expect_refused("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", 408);
}

}  // namespace
}  // namespace headstart::server
