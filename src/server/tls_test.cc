// Proves the server over TLS, with certificates made here: whole answers and streams, clients that
// leave, stall or speak no TLS, stopping, and what is said of files that will not do.
//
// To add a case: start_tls(), and an SSLClient or a RawClient.
#include "server/tls.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <fstream>

#include "server/testing.h"
#include "tests/support/temp_dir.h"

namespace headstart::server {
namespace {

using namespace testing;

template <class Write>
void write_pem(const std::filesystem::path& path, Write write) {
  std::FILE* out = std::fopen(path.c_str(), "wb");
  ASSERT_NE(out, nullptr);
  EXPECT_EQ(write(out), 1);
  std::fclose(out);
}

class TlsTest : public HttpServerTest {
 protected:
  // A certificate for localhost, signed by its own key.
  TlsOptions make(const std::string& name, const char* passphrase = nullptr) {
    const TlsOptions files{dir_ / (name + ".crt"), dir_ / (name + ".key")};
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME* subject = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(cert, subject);
    EXPECT_GT(X509_sign(cert, key, EVP_sha256()), 0);
    write_pem(files.cert_file, [&](std::FILE* out) { return PEM_write_X509(out, cert); });
    write_pem(files.key_file, [&](std::FILE* out) {
      return PEM_write_PrivateKey(out, key, passphrase ? EVP_aes_128_cbc() : nullptr, nullptr, 0,
                                  nullptr, const_cast<char*>(passphrase));
    });
    X509_free(cert);
    EVP_PKEY_free(key);
    return files;
  }
  void start_tls(bool held = false) {
    options.tls = make("server");
    start(held);
  }
  std::unique_ptr<httplib::SSLClient> tls_client() {
    auto c = std::make_unique<httplib::SSLClient>("localhost", server->port());
    c->set_ca_cert_path((dir_ / "server.crt").string());
    c->set_read_timeout(20s);
    return c;
  }
  std::string fault(const TlsOptions& files) {
    const auto opened = TlsContext::open(files);
    return opened.ok() ? "" : opened.error().message;
  }
  test::TempDir dir_;
};

TEST_F(TlsTest, AnswersWholeAndStreamed) {
  start_tls();
  auto c = tls_client();
  c->set_keep_alive(true);
  for (int i = 0; i < 3; ++i) {
    const auto r = c->Post(kChatPath, kHi, "application/json");
    ASSERT_TRUE(r) << httplib::to_string(r.error());
    EXPECT_EQ(json::parse(r->body)["choices"][0]["message"]["content"], "Hello");
    const auto s = c->Post(kChatPath, kHiStream, "application/json");
    ASSERT_TRUE(s);
    EXPECT_EQ(s->body.substr(s->body.size() - 14), "data: [DONE]\n\n");
  }
}

TEST_F(TlsTest, CarriesLargeBodiesBothWaysToASlowReader) {
  options.queue.unread_bytes_max = 64 * 1024 * 1024;
  options.write_timeout = 5s;
  start_tls();
  model->n_context = 1 << 23;
  model->pieces.assign(1000, std::string(20'000, 'x'));
  const std::string body = R"({"max_tokens":1000,"prompt":")" + std::string(3'000'000, 'p') + "\"}";
  std::string got;
  auto c = tls_client();
  c->set_socket_options(
      [](socket_t s) { httplib::set_socket_opt(s, SOL_SOCKET, SO_RCVBUF, 65536); });
  const auto r =
      c->Post("/v1/completions", {}, body, "application/json", [&](const char* data, size_t size) {
        // Until the socket's buffers are full.
        if (got.empty()) std::this_thread::sleep_for(500ms);
        got.append(data, size);
        return true;
      });
  ASSERT_TRUE(r) << httplib::to_string(r.error());
  const json answer = json::parse(got);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3'000'000);
  EXPECT_EQ(answer["choices"][0]["text"].get<std::string>().size(), 20'000'000u);
}

TEST_F(TlsTest, RefusesHeadsThatAreTooLong) {
  start_tls();
  const auto r = tls_client()->Get("/health?" + std::string(8200, 'q'));
  ASSERT_TRUE(r) << httplib::to_string(r.error());
  EXPECT_EQ(r->status, 414);
}

TEST_F(TlsTest, CancelsWhereAClientLeaves) {
  start_tls(/*held=*/true);
  std::thread leaver([&] {
    auto c = tls_client();
    c->set_read_timeout(100ms);
    EXPECT_FALSE(c->Post(kChatPath, kHi, "application/json"));
  });
  EXPECT_TRUE(eventually([&] { return model->n_cancelled() == 1; }));
  leaver.join();
}

TEST_F(TlsTest, ClosesWhatSpeaksNoTlsOrStalls) {
  options.request_timeout = 200ms;
  start_tls();
  RawClient plain(server->port()), stalled(server->port());
  plain.send("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(plain.until_closed().find("HTTP"), std::string::npos);
  stalled.send("\x16\x03\x01");
  stalled.until_closed();
  const auto r = tls_client()->Get("/health");
  EXPECT_TRUE(r && r->status == 200);
}

TEST_F(TlsTest, StopsWithOpenConnections) {
  start_tls(/*held=*/true);
  RawClient silent(server->port());
  std::thread waiting([&] {
    const auto r = tls_client()->Post(kChatPath, kHi, "application/json");
    EXPECT_TRUE(r && r->status == 503);
  });
  EXPECT_TRUE(eventually([&] { return n_running() == 1; }));
  const auto begin = Steady::now();
  server->stop();
  thread.join();
  EXPECT_LT(Steady::now() - begin, 5s);
  waiting.join();
}

TEST_F(TlsTest, SaysWhatIsWrongWithFiles) {
  const TlsOptions a = make("a"), b = make("b"), locked = make("locked", "pass");
  EXPECT_EQ(fault(a), "");
  EXPECT_NE(fault({a.cert_file, b.key_file}).find("is not that of the certificate"),
            std::string::npos);
  EXPECT_NE(fault({a.cert_file, {}}).find("--ssl-key-file"), std::string::npos);
  EXPECT_NE(fault({{}, a.key_file}).find("--ssl-cert-file"), std::string::npos);
  EXPECT_NE(fault({dir_ / "none", a.key_file}).find("none"), std::string::npos);
  EXPECT_NE(fault({a.cert_file, dir_ / "none"}).find("none"), std::string::npos);
  EXPECT_NE(fault({a.key_file, a.key_file}).find("certificate from"), std::string::npos);
  EXPECT_NE(fault(locked).find("passphrase"), std::string::npos);
}

}  // namespace
}  // namespace headstart::server
