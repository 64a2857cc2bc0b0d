#include "server/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "server/api_error.h"
#include "server/completion_response.h"
#include "server/request_head.h"

namespace headstart::server {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

// More than a client that keeps to the protocol can have in flight when it is refused.
constexpr size_t kDrainBytesMax = 1024 * 1024;
constexpr uint32_t kRefusers = 4;

// A whole response of ours, where httplib answers differently or not at all.
std::string response_of(const ApiError& error, const char* headers = "") {
  const std::string body = error_body(error);
  return fmt::format(
      "HTTP/1.1 {} {}\r\n{}Content-Type: application/json\r\nConnection: close\r\n"
      "Content-Length: {}\r\n\r\n{}",
      error.status, httplib::status_message(error.status), headers, body.size(), body);
}

// Waits for `events`; the returned ones are never empty unless the time is over.
short poll_socket(int fd, short events, Steady::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Steady::now()).count();
    pollfd p{fd, events, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp<long>(left, 0, 1 << 30)));
    if (n > 0) return p.revents;
    if (n < 0 && errno == EINTR) continue;
    return 0;
  }
}

void name_of(const sockaddr_storage& address, std::string& ip, int& port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size());
    port = ntohs(in.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size());
    port = ntohs(in.sin6_port);
  }
  ip = text.data();
}

}  // namespace

// One connection's socket; closes it. Bytes read ahead stay for the connection's next request.
class SocketStream final : public httplib::Stream {
 public:
  SocketStream(int fd, const TlsContext* tls, const ListenerLimits& limits,
               const std::atomic<bool>& draining, const std::atomic<bool>& interrupted)
      : fd_(fd), limits_(limits), draining_(draining), interrupted_(interrupted) {
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    if (tls) tls_ = tls->accept(fd);
    unusable_ = tls && !tls_;  // never plain where TLS is wanted
  }

  // Sends what is left, then closes. Bytes that nobody read would make the kernel reset the
  // connection and take the answer away from the client, so they are read and dropped first.
  ~SocketStream() override {
    tls_.reset();
    ::shutdown(fd_, SHUT_WR);
    const auto until = Steady::now() + milliseconds(100);
    std::array<char, 16384> scratch;
    for (size_t total = 0; total < kDrainBytesMax && poll_socket(fd_, POLLIN, until);) {
      const ssize_t n = ::recv(fd_, scratch.data(), scratch.size(), MSG_DONTWAIT);
      if (n <= 0) break;
      total += static_cast<size_t>(n);
    }
    ::close(fd_);
  }

  // True once a request begins; from then on its deadline runs.
  bool wait_request() {
    // Idle first, then the look at the flags: who sets one looks at them the other way round.
    idle_ = true;
    const bool begun =
        !unusable_ && !draining_ && !interrupted_ &&
        (has_bytes() || poll_socket(fd_, POLLIN, Steady::now() + limits_.idle_timeout));
    idle_ = false;
    request_until_ = Steady::now() + limits_.request_timeout;
    head_ = {};
    watch_head();  // of a request that was sent ahead
    return begun && !draining_ && !interrupted_;
  }

  bool idle() const { return idle_; }
  // Where its head is refused, what httplib says of it is not sent; send_refusal() answers instead.
  bool refused() const { return refusal_ != 0; }
  void send_refusal() {
    const std::string response = response_of(of_status(std::exchange(refusal_, 0)));
    write(response.data(), response.size());
  }

  bool request_overdue() const { return Steady::now() >= request_until_; }

  void shut_reading() { ::shutdown(fd_, SHUT_RD); }

  bool is_readable() const override { return begin_ < end_; }
  bool wait_readable() const override {
    return has_bytes() || (poll_socket(fd_, POLLIN, request_until_) & POLLIN) != 0;
  }
  // A client that takes no bytes may not hold up a server that stops.
  bool wait_writable() const override { return wait_to_write(POLLOUT); }
  bool wait_to_write(short events_wanted) const {
    const auto until = Steady::now() + limits_.write_timeout;
    while (Steady::now() < until) {
      const auto slice = std::min(until, Steady::now() + milliseconds(100));
      if (const short events = poll_socket(fd_, events_wanted, slice)) {
        return (events & events_wanted) != 0;
      }
      if (interrupted_) return false;
    }
    return false;
  }
  // POLLRDHUP tells of a hang-up that unread bytes would hide from a read. A client that only
  // stops sending looks the same: no HTTP client in use half-closes.
  bool is_peer_alive() const override {
    return interrupted_ || poll_socket(fd_, POLLRDHUP, Steady::now()) == 0;
  }

  ssize_t read(char* out, size_t size) override {
    if (refused() || (begin_ == end_ && !fill())) return -1;
    const size_t n = std::min(size, end_ - begin_);
    std::memcpy(out, buffer_.data() + begin_, n);
    begin_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* data, size_t size) override {
    if (refused()) return static_cast<ssize_t>(size);
    short wanted = POLLOUT;
    while (wait_to_write(wanted)) {
      const ssize_t n = tls_ ? tls_->send(data, size) : ::send(fd_, data, size, MSG_NOSIGNAL);
      if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n;
      wanted = tls_ ? tls_->wanted() : POLLOUT;
    }
    return -1;
  }
  const char* buffered_data(size_t& size) const override {
    size = refused() ? 0 : end_ - begin_;
    return size ? buffer_.data() + begin_ : nullptr;
  }
  void consume_buffered(size_t size) override { begin_ += size; }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    if (::getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      name_of(address, ip, port);
    }
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      name_of(address, ip, port);
    }
  }
  socket_t socket() const override { return fd_; }
  time_t duration() const override { return 0; }

  bool close_after_response = false;  // only its own thread uses it

 private:
  bool has_bytes() const { return begin_ < end_ || (tls_ && tls_->has_pending()); }

  bool fill() {
    ssize_t n = -1;
    short wanted = POLLIN;
    do {
      const bool ready =
          (tls_ && tls_->has_pending()) || (poll_socket(fd_, wanted, request_until_) & wanted) != 0;
      if (!ready) {
        if (request_overdue() && head_.begun() && !head_.whole()) refusal_ = 408;
        error_ = httplib::Error::Timeout;
        return false;
      }
      n = tls_ ? tls_->receive(buffer_.data(), buffer_.size())
               : ::recv(fd_, buffer_.data(), buffer_.size(), 0);
      if (tls_) wanted = tls_->wanted();
    } while (n < 0 && (errno == EAGAIN || errno == EINTR));
    begin_ = 0;
    end_ = n > 0 ? static_cast<size_t>(n) : 0;
    if (n <= 0) error_ = n == 0 ? httplib::Error::ConnectionClosed : httplib::Error::Read;
    watch_head();
    return n > 0 && !refused();
  }

  // Looks at new bytes before httplib does.
  void watch_head() {
    if (!head_.whole()) refusal_ = head_.read({buffer_.data() + begin_, end_ - begin_});
  }

  const int fd_;
  std::unique_ptr<TlsSession> tls_;  // null: plain
  bool unusable_ = false;
  const ListenerLimits& limits_;
  const std::atomic<bool>& draining_;
  const std::atomic<bool>& interrupted_;
  std::atomic<bool> idle_{false};
  Steady::time_point request_until_ = Steady::now();
  std::array<char, 16384> buffer_;
  size_t begin_ = 0, end_ = 0;  // unread bytes of buffer_
  RequestHead head_;            // of the request that is being read
  int refusal_ = 0;             // the HTTP status that it gets
};

Listener::Listener(const ListenerLimits& limits, std::shared_ptr<const TlsContext> tls)
    : limits_(limits), tls_(std::move(tls)) {
  // Fixed threads: httplib's growing pool can leave a connection without a thread for as long as
  // another one streams.
  const size_t n_thread = size_t{limits.n_connection_max} + kRefusers;
  new_task_queue = [n_thread] { return new httplib::ThreadPool(n_thread, n_thread, n_thread); };
  set_keep_alive_timeout(std::chrono::ceil<std::chrono::seconds>(limits.idle_timeout).count());
  set_keep_alive_max_count(1000);
}

Listener::~Listener() = default;

bool Listener::process_and_close_socket(socket_t sock) {
  SocketStream stream(sock, tls_.get(), limits_, draining_, interrupted_);
  const bool full = n_connection_.fetch_add(1) >= limits_.n_connection_max;
  {
    std::lock_guard lock(mutex_);
    streams_[std::this_thread::get_id()] = &stream;
  }
  // An exception that leaves a callback of httplib may end its connection, never the process.
  serve_guarded([&] {
    full ? refuse(stream) : serve(stream);
    return true;
  });
  {
    std::lock_guard lock(mutex_);
    streams_.erase(std::this_thread::get_id());
  }
  n_connection_.fetch_sub(1);
  return true;
}

void Listener::serve(SocketStream& stream) {
  std::string remote_ip, local_ip;
  int remote_port = 0, local_port = 0;
  stream.get_remote_ip_and_port(remote_ip, remote_port);
  stream.get_local_ip_and_port(local_ip, local_port);
  for (size_t left = keep_alive_max_count_; left > 0 && stream.wait_request(); --left) {
    bool closed = false;
    const bool good = process_request(stream, remote_ip, remote_port, local_ip, local_port,
                                      /*close_connection=*/left == 1, closed, nullptr);
    if (stream.refused()) return stream.send_refusal();
    if (!good || closed || stream.close_after_response) return;
  }
}

void Listener::refuse(SocketStream& stream) {
  if (tls_) return;  // a handshake would let a silent client hold one of the few refusers
  const std::string response =
      response_of(unavailable("too_many_connections", "all connections are taken; try again later"),
                  "Retry-After: 2\r\n");
  stream.write(response.data(), response.size());
}

void Listener::drain() {
  draining_ = true;
  std::lock_guard lock(mutex_);
  for (const auto& [thread, stream] : streams_) {
    if (stream->idle()) stream->shut_reading();
  }
}

void Listener::interrupt() {
  interrupted_ = true;
  std::lock_guard lock(mutex_);
  for (const auto& [thread, stream] : streams_) stream->shut_reading();
}

SocketStream* Listener::current() const {
  std::lock_guard lock(mutex_);
  const auto it = streams_.find(std::this_thread::get_id());
  HS_CHECK(it != streams_.end(), "asked about a connection from another thread");
  return it->second;
}

bool Listener::client_alive() const { return current()->is_peer_alive(); }

bool Listener::request_overdue() const { return current()->request_overdue(); }

void Listener::close_after_response() { current()->close_after_response = true; }

}  // namespace headstart::server
