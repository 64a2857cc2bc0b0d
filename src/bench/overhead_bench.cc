// What the server adds to the first token of a warm prompt: the same prompt asked over HTTP, and of
// the engine itself as `headstart run` does, in one process.
#include <cpp-httplib/httplib.h>

#include <thread>

#include "bench/documents.h"
#include "bench/model_benches.h"
#include "bench/scratch_dir.h"
#include "exec/engine.h"
#include "server/engine_completer.h"
#include "server/http_server.h"
#include "server/json_fields.h"

namespace headstart::bench {
namespace {

constexpr size_t kPromptTokens = 2048;
constexpr uint32_t kAnswerTokens = 4;
constexpr uint32_t kRepeat = 20;

// A server on a free port of this machine, for as long as this lives.
class Serving {
 public:
  static Result<std::unique_ptr<Serving>> open(exec::Engine& engine) {
    server::ServerOptions options;
    options.port = 0;
    HS_ASSIGN_OR_RETURN(auto opened, server::Server::open(options));
    return std::unique_ptr<Serving>(new Serving(std::move(opened), engine));
  }
  ~Serving() {
    server_->stop();
    running_.join();
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  uint16_t port() const { return server_->port(); }

 private:
  Serving(std::unique_ptr<server::Server> opened, exec::Engine& engine)
      : completer_(engine, "bench"), server_(std::move(opened)) {
    server_->set_ready(completer_);
    running_ = std::thread([this] { (void)server_->run(); });
  }
  server::EngineCompleter completer_;
  std::unique_ptr<server::Server> server_;
  std::thread running_;
};

// Seconds until the first text of a streamed completion.
Result<double> ttft_over_http(httplib::Client& client, const std::string& body,
                              const Clock& clock) {
  double first_s = 0;
  std::string received;
  const double start_s = clock.now_s();
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.body = body;
  request.set_header("Content-Type", "application/json");
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    received.append(data, size);
    if (first_s == 0 && received.find("\ndata: ") != std::string::npos) first_s = clock.now_s();
    return true;
  };
  const auto response = client.send(request);
  if (!response || response->status != 200 || first_s == 0) {
    return Error{Code::kIo, "the server did not answer: " + received};
  }
  return first_s - start_s;
}

Result<double> ttft_in_process(exec::Engine& engine, const std::string& text, const Clock& clock) {
  double first_s = 0;
  const double start_s = clock.now_s();
  exec::CompletionRequest request;
  request.tokens = engine.tokenizer().encode(text, true, true);
  request.n_predict = kAnswerTokens;
  request.sampling.ignore_eos = true;
  request.on_text = [&](std::string_view) {
    if (first_s == 0) first_s = clock.now_s();
    return true;
  };
  const auto done = engine.complete(request);
  if (!done.ok()) return done.error();
  if (first_s == 0) return Error{Code::kUnsupported, "this model begins its answer without text"};
  return first_s - start_s;
}

}  // namespace

Result<std::vector<Row>> bench_overhead(const BenchOptions& o) {
  std::vector<Row> rows;
  const SystemClock clock;
  for (const auto& model : o.models) {
    const ScratchDir dir;
    exec::EngineOptions e;
    e.model_path = model;
    e.n_threads = o.n_threads;
    e.operands = o.operands;
    e.cache_dir = dir.path() / "kv";
    e.ram_budget_bytes = uint64_t{1} << 30;
    HS_ASSIGN_OR_RETURN(const auto engine, exec::Engine::open(e));
    HS_ASSIGN_OR_RETURN(const std::string text, documents(engine->tokenizer(), kPromptTokens));
    HS_ASSIGN_OR_RETURN(const auto serving, Serving::open(*engine));
    httplib::Client client("127.0.0.1", serving->port());
    client.set_keep_alive(true);
    const server::Json body = {{"prompt", text},
                               {"max_tokens", kAnswerTokens},
                               {"temperature", 0},
                               {"ignore_eos", true},
                               {"stream", true}};
    const std::string sent = server::dump(body);
    HS_RETURN_IF_ERROR(ttft_in_process(*engine, text, clock));  // from here on it is warm
    std::vector<double> served, own;
    for (uint32_t i = 0; i < (o.n_repeat != 0 ? o.n_repeat : kRepeat); ++i) {
      HS_ASSIGN_OR_RETURN(const double over_http, ttft_over_http(client, sent, clock));
      HS_ASSIGN_OR_RETURN(const double in_process, ttft_in_process(*engine, text, clock));
      served.push_back(over_http * 1e3);
      own.push_back(in_process * 1e3);
    }
    rows.push_back(paired_row("ttft of a warm prompt of 2k, served, against in process", model,
                              o.n_threads, "ms wall", served, own));
  }
  return rows;
}

}  // namespace headstart::bench
