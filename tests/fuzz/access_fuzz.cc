// Proves that no head of a request gets past the keys, that what a page is told can stand in a
// header, and that a head is counted the same however its bytes arrive.
//
//   access_fuzz [RUNS] [SEED]     the same seed gives the same inputs; failures print the input
//
// To add a case: a head to kHeads, or a piece of one to kWords.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "server/access.h"
#include "server/request_head.h"
#include "tests/fuzz/mutator.h"

namespace headstart {
namespace {

using server::Access;
using server::CallHead;

const std::vector<std::string_view> kPublic = {"/health", "/"};

// One field of a CallHead a line, in its order.
const std::vector<std::string> kHeads = {
    "POST\n/v1/completions\nlocalhost:8080\nhttp://localhost:3000\nBearer "
    "sk-1\nsk-1\nauthorization",
    "GET\n/health\n[::1]:80\nnull\nbearer  sk-1 \n\nx-stainless-os, content-type,x-api-key",
    "OPTIONS\n/\nbox.local.\nhttps://app.example:8443\nBasic abc=\n\nX-Stainless-Retry-Count,,\t a",
    "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\nGET /health HTTP/1.0\r\n\r\n"};
const std::vector<std::string> kWords = {"Bearer ",
                                         "sk-1",
                                         "http://",
                                         "localhost",
                                         "127.0.0.1",
                                         "[::1]",
                                         ":8080",
                                         "\r\n",
                                         "\r\n\r\n",
                                         "x-stainless-",
                                         ", ",
                                         "app.example",
                                         "https://app.example",
                                         "\n"};

[[noreturn]] void fail(const char* what, const std::string& input) {
  std::printf("%s:\n%s\n", what, input.c_str());
  std::exit(1);
}

CallHead head_of(std::string_view text) {
  std::array<std::string_view, 7> lines{};
  for (auto& line : lines) {
    const size_t end = std::min(text.find('\n'), text.size());
    line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {lines[0], lines[1], lines[2], lines[3], lines[4], lines[5], lines[6]};
}

bool is_public(const CallHead& head) {
  const bool reads = head.method == "GET" || head.method == "HEAD";
  return head.method == "OPTIONS" ||
         (reads && std::find(kPublic.begin(), kPublic.end(), head.path) != kPublic.end());
}

// Whether the key stands where a client may write it, found in another way than the server's.
bool holds_key(const CallHead& head) {
  const auto stripped = [](std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (c != ' ' && c != '\t') out += static_cast<char>(std::tolower(c));
    }
    return out;
  };
  return stripped(head.authorization) == "bearersk-1" || stripped(head.x_api_key) == "sk-1";
}

void check_names(const CallHead& head, const std::string& input) {
  for (const char c : server::allowed_headers(head.cors_headers)) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                      c == ',' || c == ' ';
    if (!good) fail("a header name that is none", input);
  }
  const auto name = server::host_name(head.host);
  if (name && (name->empty() || name->size() > head.host.size()))
    fail("a name that is none", input);
}

void check_head_bytes(const std::string& input) {
  server::RequestHead at_once, by_byte;
  const int status = at_once.read(input);
  int status_by_byte = 0;
  for (size_t i = 0; i < input.size() && status_by_byte == 0; ++i) {
    status_by_byte = by_byte.read(std::string_view(input).substr(i, 1));
  }
  if (status != status_by_byte || at_once.whole() != by_byte.whole()) {
    fail("a head that depends on how it arrives", input);
  }
  if (at_once.whole() !=
      (input.find("\r\n\r\n") != std::string::npos || input.starts_with("\r\n"))) {
    fail("a head that ends elsewhere", input);
  }
}

}  // namespace
}  // namespace headstart

int main(int argc, char** argv) {
  using namespace headstart;
  const uint64_t n_run = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const auto with = Access::open({.api_keys = {"sk-1"}}, kPublic);
  const auto without = Access::open({.cors_origins = {"https://app.example"}}, kPublic);
  if (!with.ok() || !without.ok()) return 1;
  fuzz::Mutator mutator(seed, kHeads, kWords);
  uint64_t n_admitted = 0, n_refused = 0;
  for (uint64_t i = 0; i < n_run; ++i) {
    const std::string input = mutator.next();
    const CallHead head = head_of(input);
    const bool admitted = !with->judge(head).refusal;
    if (admitted && !is_public(head) && !holds_key(head)) fail("admitted without a key", input);
    ++(admitted ? n_admitted : n_refused);
    for (const auto& [name, value] : without->judge(head).headers) {
      if (value.find_first_of("\r\n") != std::string::npos) fail("a header of two lines", input);
    }
    check_names(head, input);
    check_head_bytes(input);
  }
  std::printf("%llu admitted, %llu refused\n", static_cast<unsigned long long>(n_admitted),
              static_cast<unsigned long long>(n_refused));
  return n_admitted > n_run / 100 && n_refused > n_run / 100 ? 0 : 1;
}
