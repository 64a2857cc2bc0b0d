// Proves that a head is counted the same however its bytes arrive, and refused at its limits and
// not before. To add a case: the head, and the status that it must give.
#include "server/request_head.h"

#include <gtest/gtest.h>

#include <string>

namespace headstart::server {
namespace {

constexpr const char* kLine = "GET / HTTP/1.1\r\n";

struct Seen {
  int status = 0;
  bool whole = false;
};

Seen read(const std::string& head, size_t n_piece) {
  RequestHead reader;
  for (size_t at = 0; at < head.size(); at += n_piece) {
    if (const int status = reader.read(std::string_view(head).substr(at, n_piece))) {
      return {status, reader.whole()};
    }
  }
  return {0, reader.whole()};
}

void expect(const std::string& head, int status, bool whole) {
  for (const size_t n_piece : {size_t{1}, size_t{7}, size_t{16384}, head.size()}) {
    const Seen seen = read(head, n_piece);
    EXPECT_EQ(seen.status, status) << n_piece;
    EXPECT_EQ(seen.whole, whole) << n_piece;
  }
}

// A header line of exactly `size` bytes.
std::string header(size_t size) { return "X: " + std::string(size - 5, 'x') + "\r\n"; }

std::string headers(size_t n, size_t size) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += header(size);
  return out;
}

TEST(RequestHeadTest, EndsAtTheEmptyLine) {
  expect(std::string(kLine) + "\r\n", 0, true);
  expect(std::string(kLine) + "A: b\r\n", 0, false);
  expect(std::string(kLine) + "A: b\n\n", 0, false);                         // no CRLF
  expect(std::string(kLine) + "\r\n" + std::string(1 << 20, 'b'), 0, true);  // a body is no head
}

TEST(RequestHeadTest, BoundsTheRequestLine) {
  const std::string end = " HTTP/1.1\r\n";
  const std::string longest = "GET /" + std::string(kHeadLineBytesMax - 5 - end.size(), 'u') + end;
  expect(longest + "\r\n", 0, true);
  expect("GET /u" + longest.substr(5) + "\r\n", 414, false);
  expect(std::string(kHeadLineBytesMax + 1, 'u'), 414, false);
}

TEST(RequestHeadTest, BoundsEachHeaderTheirNumberAndTheirSum) {
  expect(kLine + header(kHeadLineBytesMax) + "\r\n", 0, true);
  expect(kLine + header(kHeadLineBytesMax + 1) + "\r\n", 431, false);
  expect(kLine + headers(kHeadersMax, 10) + "\r\n", 0, true);
  expect(kLine + headers(kHeadersMax + 1, 10) + "\r\n", 431, false);
  const size_t room = kHeadBytesMax - std::string(kLine).size() - 2;
  const std::string full = kLine + headers(15, 4096) + header(room - 15 * 4096);
  expect(full + "\r\n", 0, true);
  expect(full + "A", 0, false);
  expect(full + header(8) + "\r\n", 431, false);
}

}  // namespace
}  // namespace headstart::server
