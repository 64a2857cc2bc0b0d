#include "server/http_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/access.h"
#include "server/admission.h"
#include "server/completion_request.h"
#include "server/completion_response.h"
#include "server/dashboard.h"
#include "server/delivery.h"
#include "server/listener.h"
#include "server/metrics.h"
#include "server/model_endpoints.h"
#include "server/slot_endpoints.h"

namespace headstart::server {
namespace {

using httplib::Request;
using httplib::Response;
using Steady = std::chrono::steady_clock;

constexpr const char* kJson = "application/json";
constexpr const char* kRetryAfterS = "2";

struct CompletionRoute {
  const char* path;
  Endpoint endpoint;
};
constexpr std::array kCompletionRoutes = {
    CompletionRoute{"/v1/chat/completions", Endpoint::kChat},
    CompletionRoute{"/chat/completions", Endpoint::kChat},
    CompletionRoute{"/v1/completions", Endpoint::kCompletions},
    CompletionRoute{"/completions", Endpoint::kNative},
    CompletionRoute{"/completion", Endpoint::kNative}};

using ModelCall = ApiResult<std::string> (*)(const Completer&, std::string_view body);
struct ModelRoute {
  const char* path;
  ModelCall call;
};
constexpr std::array kModelRoutes = {ModelRoute{"/tokenize", tokenize},
                                     ModelRoute{"/detokenize", detokenize},
                                     ModelRoute{"/apply-template", apply_template}};

constexpr std::string_view kSlotPrefix = "/slots/";

// The requests of one call: one for each choice. Dropping them cancels what still runs.
using Tickets = std::vector<std::unique_ptr<RequestQueue::Ticket>>;

int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

const char* name_of(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat: return "chat";
    case Endpoint::kCompletions: return "completions";
    case Endpoint::kNative: return "completion";
  }
  return "";
}

std::string random_id(Endpoint endpoint) {
  std::random_device random;
  std::string id = endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-";
  for (int i = 0; i < 24; ++i) id += "0123456789abcdef"[random() & 15];
  return id;
}

void write_error(Response& res, const ApiError& error) {
  res.status = error.status;
  if (error.status == 503) res.set_header("Retry-After", kRetryAfterS);
  res.set_content(error_body(error), kJson);
}

CallHead head_of(const Request& req) {
  const auto header = [&](const char* name) {
    const auto it = req.headers.find(name);
    return it == req.headers.end() ? std::string_view() : std::string_view(it->second);
  };
  return {.method = req.method,
          .path = req.path,
          .host = header("Host"),
          .origin = header("Origin"),
          .authorization = header("Authorization"),
          .x_api_key = header("X-Api-Key"),
          .cors_headers = header("Access-Control-Request-Headers")};
}

// What needs no key: health, and the page, which is there before its user has given one.
std::vector<std::string_view> public_paths() {
  std::vector<std::string_view> paths = {"/health", "/v1/health"};
  for (const PageFile& file : page_files()) paths.push_back(file.path);
  return paths;
}

void write_answer(Response& res, ApiResult<std::string> body) {
  if (!body) return write_error(res, body.error());
  res.set_content(*std::move(body), kJson);
}

ApiError loading() { return unavailable("loading", "the model is loading; try again soon"); }
ApiError stopping() { return unavailable("stopping", "the server is stopping"); }

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& o, Access a, std::shared_ptr<const TlsContext> tls)
      : options(o),
        access(std::move(a)),
        http({o.n_connection_max, o.idle_timeout, o.request_timeout, o.write_timeout},
             std::move(tls)),
        queue(
            o.queue,
            [this](const exec::CompletionRequest& request, double queue_ms) {
              auto result = completer.load()->complete(request);
              metrics.count_completion(result, queue_ms);
              return result;
            },
            &log) {
    set_limits();
    set_routes();
    set_page_routes();
  }

  using GetCall = void (Impl::*)(const Request&, Response&) const;
  struct GetRoute {
    const char* path;
    GetCall call;
  };
  static const std::array<GetRoute, 8> kGetRoutes;
  static const char* method_of(std::string_view path);

  void set_limits();
  void set_routes();
  bool answer_at_once(const Request& req, Response& res) const;
  void set_page_routes();
  void get_state(const Request& req, Response& res) const;
  void get_health(const Request& req, Response& res) const;
  void get_metrics(const Request& req, Response& res) const;
  void get_models(const Request& req, Response& res) const;
  void get_props(const Request& req, Response& res) const;
  void get_slots(const Request& req, Response& res) const;
  void post_slot(const Request& req, Response& res, const httplib::ContentReader& reader) const;
  void post_model_call(ModelCall call, const Request& req, Response& res,
                       const httplib::ContentReader& reader) const;
  void post_completion(Endpoint endpoint, const Request& req, Response& res,
                       const httplib::ContentReader& reader);
  ApiResult<std::string> read_body(const Request& req, const Response& res,
                                   const httplib::ContentReader& reader) const;
  ApiResult<Tickets> admit_and_queue(const ApiRequest& request, AnswerHead& head);
  ApiResult<Tickets> submit(exec::CompletionRequest request, uint32_t n_choice,
                            const RequestName& name);
  DeliveryOptions delivery_of(const ApiRequest& request) const;
  void answer_stream(std::shared_ptr<const Delivery> delivery, const Request& req, Response& res);
  ApiError ended_with(const Error& error) const;

  const ServerOptions options;
  const Access access;
  std::atomic<Completer*> completer{nullptr};
  std::atomic<bool> draining{false}, stopped{false};
  const int64_t created = unix_now();
  const SystemClock clock;
  const double opened_s = clock.now_s();
  Metrics metrics;
  RequestLog log{clock};
  Listener http;
  RequestQueue queue;
  uint16_t port = 0;
};

const std::array<Server::Impl::GetRoute, 8> Server::Impl::kGetRoutes = {
    {{"/health", &Impl::get_health},
     {"/v1/health", &Impl::get_health},
     {"/metrics", &Impl::get_metrics},
     {"/props", &Impl::get_props},
     {"/slots", &Impl::get_slots},
     {"/models", &Impl::get_models},
     {"/v1/models", &Impl::get_models},
     {"/headstart/state", &Impl::get_state}}};

// The method that a path takes; empty: there is no such path.
const char* Server::Impl::method_of(std::string_view path) {
  const auto is_path = [&](const auto& route) { return path == route.path; };
  if (std::any_of(kCompletionRoutes.begin(), kCompletionRoutes.end(), is_path) ||
      std::any_of(kModelRoutes.begin(), kModelRoutes.end(), is_path) ||
      path.starts_with(kSlotPrefix)) {
    return "POST";
  }
  const auto files = page_files();
  const bool get = std::any_of(kGetRoutes.begin(), kGetRoutes.end(), is_path) ||
                   std::any_of(files.begin(), files.end(), is_path);
  return get ? "GET" : "";
}

void Server::Impl::set_limits() {
  http.set_payload_max_length(options.body_bytes_max);
  // httplib would set SO_REUSEPORT, with which two servers share a port without noticing.
  http.set_socket_options(
      [](socket_t sock) { httplib::set_socket_opt(sock, SOL_SOCKET, SO_REUSEADDR, 1); });
  http.set_pre_routing_handler([this](const Request& req, Response& res) {
    return answer_at_once(req, res) ? httplib::Server::HandlerResponse::Handled
                                    : httplib::Server::HandlerResponse::Unhandled;
  });
  http.set_error_handler([](const Request& req, Response& res) {
    if (!res.body.empty()) return httplib::Server::HandlerResponse::Unhandled;
    if (const char* method = method_of(req.path); res.status == 404 && *method != 0) {
      res.status = 405;
      res.set_header("Allow", method);
    }
    write_error(res, of_status(res.status));
    return httplib::Server::HandlerResponse::Handled;
  });
  http.set_exception_handler([](const Request& req, Response& res, std::exception_ptr) {
    spdlog::error("{} {} threw an exception", req.method, req.matched_route);
    write_error(res, of_status(500));
  });
  http.set_post_routing_handler([this](const Request&, Response& res) {
    if (draining) res.set_header("Connection", "close");
    if (res.get_header_value("Connection") == "close") http.close_after_response();
  });
  http.set_logger([this](const Request& req, const Response& res) {
    metrics.count_response(res.status);
    spdlog::debug("{} {} {}", req.method, req.matched_route, res.status);
  });
}

void Server::Impl::set_routes() {
  for (const GetRoute& route : kGetRoutes) {
    http.Get(route.path, [this, call = route.call](const Request& req, Response& res) {
      (this->*call)(req, res);
    });
  }
  http.Get("/v1/models/(.+)", [this](const Request& req, Response& res) { get_models(req, res); });
  http.Post("/slots/([^/]+)",
            [this](const Request& req, Response& res, const httplib::ContentReader& reader) {
              post_slot(req, res, reader);
            });
  for (const CompletionRoute& route : kCompletionRoutes) {
    http.Post(route.path, [this, endpoint = route.endpoint](const Request& req, Response& res,
                                                            const httplib::ContentReader& reader) {
      post_completion(endpoint, req, res, reader);
    });
  }
  for (const ModelRoute& route : kModelRoutes) {
    http.Post(route.path, [this, call = route.call](const Request& req, Response& res,
                                                    const httplib::ContentReader& reader) {
      post_model_call(call, req, res, reader);
    });
  }
}

// True where no route is asked: the call may not be made, or its headers are the whole answer.
bool Server::Impl::answer_at_once(const Request& req, Response& res) const {
  const Verdict verdict = access.judge(head_of(req));
  for (const auto& [name, value] : verdict.headers) res.set_header(name, value);
  if (verdict.refusal) {
    write_error(res, *verdict.refusal);
  } else if (verdict.preflight) {
    res.status = 204;
  }
  return verdict.refusal || verdict.preflight;
}

void Server::Impl::get_slots(const Request& req, Response& res) const {
  const Completer* model = completer.load();
  if (!model) return write_error(res, loading());
  write_answer(res, slots(*model, req.has_param("fail_on_no_slot")));
}

void Server::Impl::post_slot(const Request& req, Response& res,
                             const httplib::ContentReader& reader) const {
  const auto body = read_body(req, res, reader);
  if (!body) return write_error(res, body.error());
  Completer* model = completer.load();
  if (!model) return write_error(res, loading());
  write_answer(res, slot_action(*model, req.matches[1].str(), req.get_param_value("action"), *body,
                                options.slot_save_path));
}

void Server::Impl::set_page_routes() {
  for (const PageFile& file : page_files()) {
    http.Get(file.path, [&file](const Request&, Response& res) {
      res.set_header("Content-Security-Policy", kPagePolicy);
      res.set_header("X-Content-Type-Options", "nosniff");
      res.set_header("Referrer-Policy", "no-referrer");
      res.set_header("Cache-Control", "no-cache");  // another version may listen here next time
      res.set_content(file.bytes.data(), file.bytes.size(), file.type);
    });
  }
}

void Server::Impl::get_state(const Request&, Response& res) const {
  Snapshot s;
  s.requests = log.snapshot();  // first: what it says to run, the queue then counts
  s.unix_s = clock.unix_s();
  s.uptime_s = clock.now_s() - opened_s;
  s.limits = options.queue;
  s.n_waiting = queue.n_waiting();
  s.n_running = queue.n_running();
  s.n_connection = http.n_connection();
  s.n_connection_max = options.n_connection_max;
  if (const Completer* model = completer.load()) {
    s.model = model->model_name();
    s.n_ctx = model->n_ctx();
    s.engine = model->stats();
  }
  s.memory = machine_memory();
  s.totals = log.totals();
  res.set_header("X-Content-Type-Options", "nosniff");
  res.set_header("Cache-Control", "no-store");
  res.set_content(snapshot_body(s), kJson);
}

void Server::Impl::get_health(const Request&, Response& res) const {
  if (!completer.load()) return write_error(res, loading());
  res.set_content(R"({"status":"ok"})", kJson);
}

void Server::Impl::get_metrics(const Request&, Response& res) const {
  Gauges gauges;
  const Completer* model = completer.load();
  gauges.ready = model != nullptr;
  gauges.n_waiting = queue.n_waiting();
  gauges.n_running = queue.n_running();
  gauges.n_connection = http.n_connection();
  if (model) gauges.engine = model->stats();
  res.set_content(metrics.expose(gauges), "text/plain; version=0.0.4; charset=utf-8");
}

void Server::Impl::get_models(const Request& req, Response& res) const {
  const Completer* model = completer.load();
  if (!model) return write_error(res, loading());
  const ModelCard card{model->model_name(), created, model->n_ctx(), model->n_vocab()};
  if (req.matches.size() < 2) return res.set_content(model_list_body(card), kJson);
  if (req.matches[1] == card.id) return res.set_content(model_body(card), kJson);
  ApiError error = of_status(404);
  error.message = "this server has the model of GET /v1/models only";
  error.code = "model_not_found";
  write_error(res, error);
}

void Server::Impl::get_props(const Request&, Response& res) const {
  const Completer* model = completer.load();
  if (!model) return write_error(res, loading());
  res.set_content(props(*model, options.queue.n_running_max), kJson);
}

void Server::Impl::post_model_call(ModelCall call, const Request& req, Response& res,
                                   const httplib::ContentReader& reader) const {
  const auto body = read_body(req, res, reader);
  if (!body) return write_error(res, body.error());
  const Completer* model = completer.load();
  if (!model) return write_error(res, loading());
  write_answer(res, call(*model, *body));
}

void Server::Impl::post_completion(Endpoint endpoint, const Request& req, Response& res,
                                   const httplib::ContentReader& reader) {
  const auto body = read_body(req, res, reader);
  if (!body) return write_error(res, body.error());
  if (!completer.load()) return write_error(res, loading());
  auto request = parse_request(endpoint, *body);
  if (!request) return write_error(res, request.error());
  request->salt = access.salt(head_of(req), request->salt);
  DeliveryOptions delivery_options = delivery_of(*request);
  AnswerHead head;
  auto tickets = admit_and_queue(*request, head);
  if (!tickets) return write_error(res, tickets.error());
  auto delivery = std::make_shared<const Delivery>(*std::move(tickets), std::move(head),
                                                   std::move(delivery_options));
  if (request->stream) return answer_stream(std::move(delivery), req, res);
  auto answer = delivery->whole();
  if (!answer) return write_error(res, answer.error());
  if (!*answer) {
    res.status = 499;  // the client has left, so nobody reads it; nginx's number for the metrics
    return;
  }
  res.set_content(**std::move(answer), kJson);
}

// A request may shorten the server's deadline, not lengthen it.
DeliveryOptions Server::Impl::delivery_of(const ApiRequest& request) const {
  DeliveryOptions out;
  auto limit = options.request_deadline;
  if (request.timeout_ms) {
    const std::chrono::milliseconds own(*request.timeout_ms);
    limit = limit.count() > 0 ? std::min(limit, own) : own;
  }
  if (limit.count() > 0) out.deadline = Steady::now() + limit;
  out.progress = request.return_progress;
  out.progress_interval = options.progress_interval;
  out.ping_interval = options.ping_interval;
  out.client_alive = [this] { return http.client_alive(); };
  out.failure = [this](const Error& error) { return ended_with(error); };
  return out;
}

ApiResult<std::string> Server::Impl::read_body(const Request& req, const Response& res,
                                               const httplib::ContentReader& reader) const {
  if (req.is_multipart_form_data()) return tl::unexpected(of_status(415));
  // Before reading, since httplib would read all of it just to throw it away.
  if (req.get_header_value_u64("Content-Length") > options.body_bytes_max) {
    return tl::unexpected(of_status(413));
  }
  std::string body;
  const bool whole = reader([&](const char* data, size_t size) {
    body.append(data, size);
    return true;
  });
  if (whole) return body;
  if (http.request_overdue()) return tl::unexpected(of_status(408));
  return tl::unexpected(of_status(res.status >= 400 ? res.status : 400));
}

ApiResult<Tickets> Server::Impl::admit_and_queue(const ApiRequest& request, AnswerHead& head) {
  const Completer& model = *completer.load();
  auto admitted = admit(request, model, std::random_device{}());
  if (!admitted) return tl::unexpected(admitted.error());
  head.endpoint = request.endpoint;
  head.id = random_id(request.endpoint);
  head.created = unix_now();
  head.model = model.model_name();
  head.seed = admitted->request.sampling.seed;
  head.include_usage = request.include_usage;
  head.parser = std::move(admitted->parser);
  return submit(std::move(admitted->request), request.n_choice,
                {head.id, name_of(request.endpoint)});
}

// A request for each choice, each with the next seed. Where one finds no place, none runs.
ApiResult<Tickets> Server::Impl::submit(exec::CompletionRequest request, uint32_t n_choice,
                                        const RequestName& name) {
  Tickets tickets;
  for (uint32_t i = 0; i < n_choice; ++i) {
    auto ticket = queue.submit(i + 1 < n_choice ? request : std::move(request), name);
    if (!ticket.ok()) {
      if (ticket.error().code != Code::kExhausted) return tl::unexpected(stopping());
      return tl::unexpected(unavailable("queue_full", ticket.error().message));
    }
    tickets.push_back(*std::move(ticket));
    ++request.sampling.seed;
  }
  return tickets;
}

ApiError Server::Impl::ended_with(const Error& error) const {
  if (stopped) return stopping();
  if (error.code == Code::kIo || error.code == Code::kCorrupt || error.code == Code::kNotFound) {
    spdlog::error("a request failed: {}: {}", to_string(error.code), error.message);
  }
  return from_engine(error);
}

void Server::Impl::answer_stream(std::shared_ptr<const Delivery> delivery, const Request& req,
                                 Response& res) {
  res.set_header("Cache-Control", "no-cache");
  res.set_header("X-Accel-Buffering", "no");  // nginx would hold the stream back
  // httplib drops it after the last write, and where the client has left.
  auto provider = [delivery = std::move(delivery)](size_t, httplib::DataSink& sink) {
    return delivery->stream(sink);
  };
  if (req.version == "HTTP/1.0") {  // knows no chunks: the body ends with the connection
    http.close_after_response();
    res.set_content_provider("text/event-stream", std::move(provider));
  } else {
    res.set_chunked_content_provider("text/event-stream", std::move(provider));
  }
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { stop(); }

Result<std::unique_ptr<Server>> Server::open(const ServerOptions& options) {
  AccessOptions access_options = options.access;
  access_options.hosts.push_back(options.host);
  HS_ASSIGN_OR_RETURN(auto access, Access::open(access_options, public_paths()));
  std::shared_ptr<const TlsContext> tls;
  if (options.tls) {
    HS_ASSIGN_OR_RETURN(tls, TlsContext::open(*options.tls));
  }
  auto impl = std::make_unique<Impl>(options, std::move(access), std::move(tls));
  const int port = options.port == 0 ? impl->http.bind_to_any_port(options.host)
                   : impl->http.bind_to_port(options.host, options.port) ? options.port
                                                                         : -1;
  if (port < 0) {
    return Error{Code::kIo, "cannot listen on " + options.host + ":" +
                                std::to_string(options.port) +
                                "; is it in use? Choose another --host or --port"};
  }
  impl->port = static_cast<uint16_t>(port);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const { return impl_->port; }

void Server::set_ready(Completer& completer) { impl_->completer = &completer; }

Result<void> Server::run() {
  const bool good = impl_->http.listen_after_bind();
  impl_->queue.stop();
  impl_->queue.join();
  if (good || impl_->stopped) return {};
  return Error{Code::kIo, "the listening socket failed; restart the server"};
}

void Server::drain() {
  impl_->draining = true;
  impl_->queue.close();
  impl_->http.stop();
  impl_->http.drain();
}

void Server::stop() {
  impl_->stopped = true;
  impl_->queue.stop();
  impl_->http.stop();
  impl_->http.interrupt();
}

}  // namespace headstart::server
