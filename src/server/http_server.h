// server/http_server.h: the OpenAI-compatible HTTP server.
//
//   POST /v1/chat/completions, /v1/completions   stream and not
//   POST /completion                             llama-server's own, stream and not
//   POST /tokenize, /detokenize, /apply-template
//   GET  /v1/models, /v1/models/NAME, /health, /metrics, /props
//   GET  /slots, POST /slots/ID?action=save|restore|erase
//   GET  /, /dashboard/...                       a page for people (dashboard.h)
//   GET  /headstart/state                        what it shows (docs/formats/dashboard.md)
//
// and the other names that llama-server gives some of them.
//
// The life of a call: a connection's thread reads and checks it (completion_request.h), renders and
// tokenizes (admission.h), queues it (request_queue.h), and writes what the worker hands over
// (delivery.h, completion_response.h, choice_stream.h). It listens before the model is loaded and
// says 503 until set_ready(). Who may call what is decided first (access.h). Nothing of a prompt or
// of a key is ever logged.
//
//   threads  run() by one thread; drain(), stop() and set_ready() by any; not from a signal handler
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "server/access.h"
#include "server/completer.h"
#include "server/request_queue.h"
#include "server/tls.h"

namespace headstart::server {

struct ServerOptions {
  std::string host = "127.0.0.1";  // anything else is reachable from outside
  uint16_t port = 8080;            // 0: any free one
  std::optional<TlsOptions> tls;   // nothing: plain HTTP
  AccessOptions access;            // `host` is one of its hosts
  QueueLimits queue;
  std::optional<std::filesystem::path> slot_save_path;  // nothing: slots are not saved
  uint32_t n_connection_max = 64;
  size_t body_bytes_max = 16 * 1024 * 1024;
  std::chrono::milliseconds idle_timeout{30'000};     // of a connection between two requests
  std::chrono::milliseconds request_timeout{30'000};  // for a request to arrive whole
  std::chrono::milliseconds write_timeout{30'000};    // for a client to take any more bytes
  // The shortest idle limit in the wild is 50 s; a client's own may be less.
  std::chrono::milliseconds ping_interval{5'000};
  std::chrono::milliseconds progress_interval{200};  // between two events of return_progress
  // For a whole answer, from acceptance; requests may ask for less (timeout_ms). 0: no limit.
  std::chrono::milliseconds request_deadline{0};
};

class Server {
 public:
  // Binds and listens. Errors: kInvalidArgument, kIo (the message says what to change).
  static Result<std::unique_ptr<Server>> open(const ServerOptions& options);
  ~Server();

  uint16_t port() const;
  // The model is loaded. `completer` must live until run() has returned.
  void set_ready(Completer& completer);
  // Serves until stop(). When it returns no request runs and no connection is open. Errors: kIo.
  Result<void> run();
  // Stops accepting; what runs and waits goes on, and run() returns after it. Returns at once.
  void drain();
  // Stops accepting, cancels what runs and waits; returns at once, run() a little later.
  void stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headstart::server
