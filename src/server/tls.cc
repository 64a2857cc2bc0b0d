#include "server/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

namespace headstart::server {
namespace {

// Else OpenSSL would ask at the terminal.
int no_passphrase(char*, int, int, void*) { return 0; }

std::string reason() {
  const char* text = ERR_reason_error_string(ERR_peek_last_error());
  return text ? std::string(": ") + text : std::string();
}

Result<void> load(SSL_CTX* context, const TlsOptions& options) {
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, options.cert_file.c_str()) != 1) {
    return Error{Code::kIo,
                 "cannot read a PEM certificate from " + options.cert_file.string() + reason()};
  }
  if (SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    // OpenSSL compares while it loads.
    if (ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH) {
      return Error{Code::kInvalidArgument, "the key in " + options.key_file.string() +
                                               " is not that of the certificate in " +
                                               options.cert_file.string()};
    }
    return Error{Code::kIo, "cannot read a PEM key without passphrase from " +
                                options.key_file.string() + reason()};
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::open(const TlsOptions& options) {
  if (options.cert_file.empty() || options.key_file.empty()) {
    return Error{Code::kInvalidArgument, "TLS needs both --ssl-cert-file and --ssl-key-file"};
  }
  SSL_CTX* raw = SSL_CTX_new(TLS_server_method());
  if (!raw) return Error{Code::kExhausted, "OpenSSL cannot make a context"};
  std::shared_ptr<const TlsContext> out(new TlsContext(raw));
  SSL_CTX_set_default_passwd_cb(raw, no_passphrase);
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  HS_RETURN_IF_ERROR(load(raw, options));
  return out;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

std::unique_ptr<TlsSession> TlsContext::accept(int fd) const {
  SSL* ssl = SSL_new(context_);
  if (!ssl) return nullptr;
  std::unique_ptr<TlsSession> out(new TlsSession(ssl));
  if (SSL_set_fd(ssl, fd) != 1) return nullptr;
  SSL_set_accept_state(ssl);
  return out;
}

TlsSession::~TlsSession() {
  ERR_clear_error();
  if (!broken_ && SSL_is_init_finished(ssl_)) SSL_shutdown(ssl_);
  SSL_free(ssl_);
}

ssize_t TlsSession::outcome(int n) {
  if (n > 0) return n;
  switch (SSL_get_error(ssl_, n)) {
    case SSL_ERROR_WANT_READ: wanted_ = POLLIN; break;
    case SSL_ERROR_WANT_WRITE: wanted_ = POLLOUT; break;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default:
      broken_ = true;
      errno = EPROTO;
      return -1;
  }
  errno = EAGAIN;
  return -1;
}

ssize_t TlsSession::receive(char* out, size_t size) {
  if (broken_) return errno = EPROTO, -1;
  ERR_clear_error();
  return outcome(SSL_read(ssl_, out, static_cast<int>(std::min<size_t>(size, INT_MAX))));
}

ssize_t TlsSession::send(const char* data, size_t size) {
  if (broken_) return errno = EPROTO, -1;
  ERR_clear_error();
  return outcome(SSL_write(ssl_, data, static_cast<int>(std::min<size_t>(size, INT_MAX))));
}

bool TlsSession::has_pending() const { return SSL_pending(ssl_) > 0; }

}  // namespace headstart::server
