// server/listener.h: httplib's server with bounded connections and deadlines on slow clients.
//
// httplib alone limits a single read, so a client that sends a byte every few seconds would hold a
// thread for hours, and it cannot tell a client that left from one that has sent ahead. Here a
// connection has its own stream, over TLS or not: each request must have arrived whole within a
// deadline and its head within limits (request_head.h), a client that hangs up is seen even with
// unread bytes before it, and interrupt() ends every wait at once.
//
//   threads  one for each connection, and a few that only answer 503 when all are taken
#pragma once

#include <cpp-httplib/httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "server/tls.h"

namespace headstart::server {

struct ListenerLimits {
  uint32_t n_connection_max = 64;
  std::chrono::milliseconds idle_timeout{30'000};     // between two requests of a connection
  std::chrono::milliseconds request_timeout{30'000};  // first byte of a request to its last
  std::chrono::milliseconds write_timeout{30'000};    // for the client to take any more bytes
};

class SocketStream;

class Listener final : public httplib::Server {
 public:
  // `tls` may be null: then connections are plain.
  Listener(const ListenerLimits& limits, std::shared_ptr<const TlsContext> tls);
  ~Listener() override;

  // About the connection that the calling thread serves.
  bool client_alive() const;
  bool request_overdue() const;  // its request did not arrive whole in time
  void close_after_response();

  // Each connection ends after the request that it is at; idle ones end now.
  void drain();
  // Ends all reading, now and from now on, so that idle and slow connections close; what is being
  // written may end. httplib's stop() stops accepting.
  void interrupt();
  uint32_t n_connection() const { return n_connection_.load(); }

 private:
  bool process_and_close_socket(socket_t sock) override;
  void serve(SocketStream& stream);
  void refuse(SocketStream& stream);
  SocketStream* current() const;

  const ListenerLimits limits_;
  const std::shared_ptr<const TlsContext> tls_;
  std::atomic<bool> draining_{false}, interrupted_{false};
  std::atomic<uint32_t> n_connection_{0};
  mutable std::mutex mutex_;
  std::unordered_map<std::thread::id, SocketStream*> streams_;  // open connections by their thread
};

}  // namespace headstart::server
