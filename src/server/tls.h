// server/tls.h: TLS over the sockets of the server, by OpenSSL.
//
// Non-blocking, so that server/listener.cc keeps its own deadlines; httplib's TLS server would wait
// in a loop of its own.
//
//   threads  a context: any; a session: the thread of its connection
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <memory>

#include "base/result.h"

struct ssl_ctx_st;
struct ssl_st;

namespace headstart::server {

// Both or none.
struct TlsOptions {
  std::filesystem::path cert_file;  // PEM: the server's certificate, then those that sign it
  std::filesystem::path key_file;   // PEM, without passphrase
};

// One connection. The handshake is made by the first reading or writing.
class TlsSession {
 public:
  ~TlsSession();  // says goodbye where that is possible at once
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // As recv() and send() on a non-blocking socket: -1 with errno EAGAIN where wanted() comes first.
  ssize_t receive(char* out, size_t size);
  ssize_t send(const char* data, size_t size);
  short wanted() const { return wanted_; }  // POLLIN or POLLOUT
  bool has_pending() const;                 // bytes that poll() does not see any more

 private:
  friend class TlsContext;
  explicit TlsSession(ssl_st* ssl) : ssl_(ssl) {}
  ssize_t outcome(int n);

  ssl_st* const ssl_;
  short wanted_ = 0;
  bool broken_ = false;
};

class TlsContext {
 public:
  // Errors: kInvalidArgument (only one file is named, they do not belong together), kIo.
  static Result<std::shared_ptr<const TlsContext>> open(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // `fd` must be non-blocking and outlive the session. Null where memory is short.
  std::unique_ptr<TlsSession> accept(int fd) const;

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

}  // namespace headstart::server
