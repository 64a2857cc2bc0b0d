// headstart serve: listens at once, loads the model, answers until SIGTERM or SIGINT; then what
// runs may end within a grace.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <thread>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/progress_bar.h"
#include "server/engine_completer.h"
#include "server/http_server.h"

namespace headstart::cli {
namespace {

struct ServeFlags {
  ServeFlags() { engine.options.n_parallel = 4; }
  EngineFlags engine;
  server::ServerOptions server;
  server::TlsOptions tls;
  std::filesystem::path api_key_file;
  double request_deadline_s = 0;
  double stop_grace_s = 10;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1e3));
}

// The server's options as given, with the keys of the key file.
Result<server::ServerOptions> resolve(const ServeFlags& flags) {
  server::ServerOptions options = flags.server;
  if (!flags.tls.cert_file.empty() || !flags.tls.key_file.empty()) options.tls = flags.tls;
  options.request_deadline = milliseconds(flags.request_deadline_s);
  if (!flags.api_key_file.empty()) {
    HS_ASSIGN_OR_RETURN(const auto file, server::read_key_file(flags.api_key_file));
    if (file.readable_by_others) {
      spdlog::warn("everyone on this machine can read the API keys in {0}: chmod 600 {0}",
                   flags.api_key_file.string());
    }
    auto& keys = options.access.api_keys;
    keys.insert(keys.end(), file.keys.begin(), file.keys.end());
  }
  if (options.access.api_keys.empty() && !server::is_loopback(options.host)) {
    spdlog::warn(
        "whoever reaches {}:{} can use this server: set --api-key-file, or --host 127.0.0.1",
        options.host, options.port);
  }
  return options;
}

// Waits for SIGTERM or SIGINT on a thread of its own. The first one drains the server and after the
// grace stops it; a second ends the process. While the model loads there is nothing to finish.
class StopOnSignal {
 public:
  StopOnSignal(server::Server& server, std::chrono::milliseconds grace)
      : server_(server), grace_(grace), thread_([this] { run(); }) {}
  ~StopOnSignal() {
    closing_ = true;
    ::pthread_kill(thread_.native_handle(), SIGTERM);  // it may still be waiting
    thread_.join();
  }
  void loaded() { loading_ = false; }
  static sigset_t signals() {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGTERM);
    ::sigaddset(&set, SIGINT);
    return set;
  }

 private:
  void run() {
    const sigset_t set = signals();
    int signal = 0;
    ::sigwait(&set, &signal);
    if (closing_) return;
    if (loading_) ::_exit(0);
    server_.drain();
    signal = wait_within(grace_);
    if (signal == 0) {
      server_.stop();
      ::sigwait(&set, &signal);
    }
    if (!closing_) ::_exit(128 + signal);
  }
  // 0: none came.
  static int wait_within(std::chrono::milliseconds time) {
    const sigset_t set = signals();
    const auto s = std::chrono::duration_cast<std::chrono::seconds>(time);
    const timespec limit{s.count(), std::chrono::nanoseconds(time - s).count()};
    int signal = -1;
    do {
      signal = ::sigtimedwait(&set, nullptr, &limit);
    } while (signal < 0 && errno == EINTR);
    return std::max(signal, 0);
  }

  server::Server& server_;
  const std::chrono::milliseconds grace_;
  std::atomic<bool> closing_ = false, loading_ = true;
  std::thread thread_;
};

// Runs the server on a thread; stops and joins it however the scope is left.
class Serving {
 public:
  explicit Serving(server::Server& server) : server_(server) {
    thread_ = std::thread([this] {
      try {
        result_ = server_.run();
      } catch (const std::exception& e) {
        result_ = Error{Code::kIo, e.what()};
      }
    });
  }
  ~Serving() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }
  Result<void> wait() {
    thread_.join();
    return result_;
  }

 private:
  server::Server& server_;
  Result<void> result_;
  std::thread thread_;
};

Result<void> run(const ServeFlags& flags) {
  HS_ASSIGN_OR_RETURN(const exec::EngineOptions options, flags.engine.resolve());
  const sigset_t set = StopOnSignal::signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);  // every thread made from here on inherits it
  std::unique_ptr<exec::Engine> engine;         // outlives the server
  std::unique_ptr<server::EngineCompleter> completer;
  HS_ASSIGN_OR_RETURN(server::ServerOptions server_options, resolve(flags));
  server_options.queue.n_running_max = options.n_parallel;
  HS_ASSIGN_OR_RETURN(const auto server, server::Server::open(server_options));
  Serving serving(*server);
  StopOnSignal stop_on_signal(*server, milliseconds(flags.stop_grace_s));
  std::fprintf(stderr, "listening on %s://%s:%u\n", server_options.tls ? "https" : "http",
               server_options.host.c_str(), server->port());
  {
    ProgressBar bar;
    HS_ASSIGN_OR_RETURN(engine, exec::Engine::open(options, bar.fn()));
  }
  completer =
      std::make_unique<server::EngineCompleter>(*engine, options.model_path.filename().string());
  stop_on_signal.loaded();
  server->set_ready(*completer);
  std::fprintf(stderr, "%s is ready\n", engine->model_name().c_str());
  return serving.wait();
}

void add_access(ServeFlags& flags, CLI::App& app) {
  auto& access = flags.server.access;
  app.add_option("--api-key", access.api_keys,
                 "a key that calls must present; may be repeated (--api-key-file does not show it "
                 "to who lists processes)")
      ->allow_extra_args(false)
      ->envname("HEADSTART_API_KEY");
  app.add_option("--api-key-file", flags.api_key_file, "keys, one a line; # begins a comment");
  app.add_option("--ssl-cert-file", flags.tls.cert_file, "PEM certificate chain: serve HTTPS");
  app.add_option("--ssl-key-file", flags.tls.key_file, "PEM key of the certificate");
  app.add_option("--cors-origin", access.cors_origins,
                 "web page origin that may call, * for any; may be repeated (none: pages of this "
                 "machine)")
      ->allow_extra_args(false);
  app.add_option("--allowed-host", access.hosts,
                 "another name under which clients reach a server without keys; may be repeated")
      ->allow_extra_args(false);
}

}  // namespace

Command add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  flags->engine.add_to(app);
  app.add_option("--host", flags->server.host,
                 "address to listen on (127.0.0.1: this machine only)");
  app.add_option("--port", flags->server.port, "port (0: any free one)");
  app.add_option("--parallel", flags->engine.options.n_parallel,
                 "requests computed at once, each with a KV cache of its own");
  app.add_option("--slot-save-path", flags->server.slot_save_path,
                 "folder for POST /slots/ID?action=save and restore");
  app.add_option("--queue", flags->server.queue.n_waiting_max,
                 "requests that may wait; more get 503");
  app.add_option("--request-deadline", flags->request_deadline_s,
                 "seconds for a whole answer (0: no limit); a request's timeout_ms may be less")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--stop-grace", flags->stop_grace_s,
                 "seconds that running and waiting requests may take after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0));
  add_access(*flags, app);
  return [flags] {
    const auto done = run(*flags);
    return done.ok() ? 0 : report(done.error());
  };
}

}  // namespace headstart::cli
