// headstart serve: listens at once, loads the model, answers until SIGTERM or SIGINT.
#include <unistd.h>

#include <atomic>
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
};

// Waits for SIGTERM or SIGINT on a thread of its own: the first stops the server, a second, while
// a model is still loading, say, ends the process.
class StopOnSignal {
 public:
  explicit StopOnSignal(server::Server& server) {
    thread_ = std::thread([this, &server] {
      const sigset_t set = signals();
      for (int n_signal = 1;; ++n_signal) {
        int signal = 0;
        ::sigwait(&set, &signal);
        if (closing_) return;
        if (n_signal > 1) ::_exit(128 + signal);
        server.stop();
      }
    });
  }
  ~StopOnSignal() {
    closing_ = true;
    ::pthread_kill(thread_.native_handle(), SIGTERM);  // it may still be waiting
    thread_.join();
  }
  static sigset_t signals() {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGTERM);
    ::sigaddset(&set, SIGINT);
    return set;
  }

 private:
  std::atomic<bool> closing_ = false;
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
  server::ServerOptions server_options = flags.server;
  server_options.queue.n_running_max = options.n_parallel;
  HS_ASSIGN_OR_RETURN(const auto server, server::Server::open(server_options));
  Serving serving(*server);
  StopOnSignal stop_on_signal(*server);
  std::fprintf(stderr, "listening on http://%s:%u\n", flags.server.host.c_str(), server->port());
  {
    ProgressBar bar;
    HS_ASSIGN_OR_RETURN(engine, exec::Engine::open(options, bar.fn()));
  }
  completer =
      std::make_unique<server::EngineCompleter>(*engine, options.model_path.filename().string());
  server->set_ready(*completer);
  std::fprintf(stderr, "%s is ready\n", engine->model_name().c_str());
  return serving.wait();
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
  return [flags] {
    const auto done = run(*flags);
    return done.ok() ? 0 : report(done.error());
  };
}

}  // namespace headstart::cli
