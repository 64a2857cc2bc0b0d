// Proves who may call what: keys, hosts and origins, with and without keys, and what pages are
// told. To add a case: a CallHead and what judge() must say of it.
#include "server/access.h"

#include <gtest/gtest.h>

namespace headstart::server {
namespace {

const std::vector<std::string_view> kPublic = {"/health", "/"};

Access open(const AccessOptions& options) {
  auto opened = Access::open(options, kPublic);
  EXPECT_TRUE(opened.ok());
  return *std::move(opened);
}

CallHead call(std::string_view method = "POST", std::string_view path = "/v1/completions") {
  CallHead head;
  head.method = method;
  head.path = path;
  head.host = "localhost:8080";
  return head;
}

std::string header(const Verdict& verdict, std::string_view name) {
  for (const auto& [key, value] : verdict.headers) {
    if (key == name) return value;
  }
  return "";
}

int status(const Verdict& verdict) { return verdict.refusal ? verdict.refusal->status : 200; }

TEST(AccessTest, WantsAKeyInEitherHeader) {
  const Access access = open({.api_keys = {"k1", "k2"}});
  EXPECT_EQ(status(access.judge(call())), 401);
  EXPECT_EQ(header(access.judge(call()), "WWW-Authenticate"), "Bearer");
  for (const char* value : {"Bearer k1", "bearer k2", "BEARER   k1 "}) {
    CallHead head = call();
    head.authorization = value;
    EXPECT_EQ(status(access.judge(head)), 200) << value;
  }
  for (const char* value : {"Bearer", "Bearer ", "Bearer k3", "Bearerk1", "Basic k1", "k1"}) {
    CallHead head = call();
    head.authorization = value;
    EXPECT_EQ(status(access.judge(head)), 401) << value;
  }
  CallHead head = call();
  head.x_api_key = "k2";
  EXPECT_EQ(status(access.judge(head)), 200);
  head.authorization = "Basic of-a-proxy";
  EXPECT_EQ(status(access.judge(head)), 200);
  head.x_api_key = "Bearer k2";
  EXPECT_EQ(status(access.judge(head)), 401);
}

TEST(AccessTest, OnlyReadingPublicPathsNeedsNoKey) {
  const Access access = open({.api_keys = {"k"}});
  for (const char* path : {"/health", "/"}) {
    EXPECT_EQ(status(access.judge(call("GET", path))), 200);
    EXPECT_EQ(status(access.judge(call("HEAD", path))), 200);
    EXPECT_EQ(status(access.judge(call("POST", path))), 401);
  }
  for (const char* path : {"/metrics", "/v1/models", "/props", "/none", "/health/", "//", ""}) {
    EXPECT_EQ(status(access.judge(call("GET", path))), 401) << path;
  }
}

TEST(AccessTest, AKeyMakesHostAndOriginFree) {
  const Access access = open({.api_keys = {"k"}});
  CallHead head = call();
  head.host = "inference.example";
  head.origin = "https://page.example";
  head.authorization = "Bearer k";
  const Verdict verdict = access.judge(head);
  EXPECT_EQ(status(verdict), 200);
  EXPECT_EQ(header(verdict, "Access-Control-Allow-Origin"), "");
}

TEST(AccessTest, WithoutKeysOnlyKnownHosts) {
  const Access access = open({.hosts = {"Box.local", "::1"}});
  for (const char* host :
       {"", "localhost", "localhost:1", "app.localhost", "127.0.0.1:8080", "[::1]", "[fe80::1]:80",
        "192.168.1.5", "box.local:8080", "BOX.LOCAL."}) {
    CallHead head = call();
    head.host = host;
    EXPECT_EQ(status(access.judge(head)), 200) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "x",
                           "evil.example:8080", "[evil]", "localhost:x", ":80", "127.0.0.1@evil",
                           "2130706433", "box.local.evil", "localhost:999999"}) {
    CallHead head = call();
    head.host = host;
    const Verdict verdict = access.judge(head);
    EXPECT_EQ(status(verdict), 403) << host;
    ASSERT_TRUE(verdict.refusal);
    EXPECT_NE(verdict.refusal->message.find("--allowed-host"), std::string::npos);
    EXPECT_EQ(status(access.judge({.method = "GET", .path = "/health", .host = host})), 200);
  }
}

TEST(AccessTest, WithoutKeysNoForeignPages) {
  const Access access = open({.hosts = {"box.local"}});
  CallHead head = call();
  head.host = "box.local:8080";
  for (const char* origin : {"http://box.local:8080", "HTTP://Box.Local:8080",
                             "http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173"}) {
    head.origin = origin;
    EXPECT_EQ(status(access.judge(head)), 200) << origin;
  }
  for (const char* origin :
       {"null", "https://evil.example", "http://box.local:9", "file://", "http://localhost.evil",
        "://localhost", "http://", "a b://localhost"}) {
    head.origin = origin;
    EXPECT_EQ(status(access.judge(head)), 403) << origin;
    EXPECT_EQ(header(access.judge(head), "Access-Control-Allow-Origin"), "") << origin;
  }
  head.host = "";
  head.origin = "null";
  EXPECT_EQ(status(access.judge(head)), 403);
}

TEST(AccessTest, TellsListedOriginsWhatTheyMayRead) {
  const Access access = open({.api_keys = {"k"}, .cors_origins = {"https://App.example"}});
  CallHead head = call("OPTIONS");
  head.origin = "https://app.example";
  head.cors_headers = "authorization,x-stainless-os, X-Evil";
  const Verdict verdict = access.judge(head);
  EXPECT_TRUE(verdict.preflight);
  EXPECT_EQ(status(verdict), 200);
  EXPECT_EQ(header(verdict, "Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(header(verdict, "Access-Control-Allow-Credentials"), "true");
  EXPECT_EQ(header(verdict, "Access-Control-Allow-Headers"), "authorization, x-stainless-os");
  EXPECT_EQ(header(verdict, "Access-Control-Allow-Methods"), "GET, POST, OPTIONS");
  EXPECT_EQ(header(verdict, "Vary"), "Origin");
  head.method = "POST";  // without a key: the page may read why
  EXPECT_EQ(status(access.judge(head)), 401);
  EXPECT_EQ(header(access.judge(head), "Access-Control-Allow-Origin"), "https://app.example");
  for (const char* origin : {"https://other.example", "http://app.example", "http://localhost"}) {
    head.origin = origin;
    const Verdict other = access.judge(head);
    EXPECT_EQ(header(other, "Access-Control-Allow-Origin"), "") << origin;
    EXPECT_EQ(header(other, "Vary"), "Origin");
  }
}

TEST(AccessTest, AnyOriginMeansNoCredentials) {
  const Access access = open({.cors_origins = {"*"}});
  CallHead head = call();
  head.origin = "https://page.example";
  const Verdict verdict = access.judge(head);
  EXPECT_EQ(status(verdict), 200);
  EXPECT_EQ(header(verdict, "Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(header(verdict, "Access-Control-Allow-Credentials"), "");
}

TEST(AccessTest, PagesOfThisMachineByDefaultWithoutCredentials) {
  const Access access = open({});
  CallHead head = call();
  head.origin = "http://localhost:3000";
  EXPECT_EQ(header(access.judge(head), "Access-Control-Allow-Origin"), "http://localhost:3000");
  EXPECT_EQ(header(access.judge(head), "Access-Control-Allow-Credentials"), "");
}

TEST(AccessTest, RefusesOriginsAndHostsThatAreNone) {
  for (const char* origin : {"", "null", "app.example", "https://app.example/", "https://a b"}) {
    EXPECT_FALSE(Access::open({.cors_origins = {origin}}, kPublic).ok()) << origin;
  }
  EXPECT_FALSE(Access::open({.hosts = {"http://x"}}, kPublic).ok());
}

TEST(AccessTest, SaltsArePrincipalsOwn) {
  const Access with = open({.api_keys = {"k1", "k2"}}), without = open({});
  CallHead one = call(), two = call(), one_too = call();
  one.authorization = "Bearer k1";
  one_too.x_api_key = "k1";
  two.authorization = "Bearer k2";
  EXPECT_EQ(with.salt(one, "s"), with.salt(one_too, "s"));
  EXPECT_NE(with.salt(one, "s"), with.salt(two, "s"));
  EXPECT_NE(with.salt(one, "s"), with.salt(one, ""));
  EXPECT_EQ(without.salt(one, "s"), "s");
}

}  // namespace
}  // namespace headstart::server
