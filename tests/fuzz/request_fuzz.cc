// Proves that no body and no HTTP bytes crash the server, exhaust it or get past its limits: what
// is accepted keeps every promise of completion_request.h and admission.h, what is refused is a 400
// in JSON, and the server answers /health afterwards.
//
//   request_fuzz [RUNS] [SEED]     the same seed gives the same inputs; failures print the input
//
// To add a case: a body to kBodies, or a piece of the format to kWords.
#include <arpa/inet.h>
#include <cpp-httplib/httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/admission.h"
#include "server/completion_response.h"
#include "server/fake_completer.h"
#include "server/http_server.h"
#include "tests/fuzz/mutator.h"
#include "tests/support/chat_templates.h"

namespace headstart {
namespace {

using server::ApiRequest;
using server::Endpoint;

const std::vector<std::string> kBodies = {
    R"({"messages":[{"role":"user","content":"hi"}]})",
    R"({"messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text",
       "text":"a"},{"type":"text","text":"\u00e9\ud83d\ude00"}]},{"role":"assistant","content":null}],
       "model":"m","max_tokens":5,"temperature":0.7,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":-3,
       "stop":["x","yy"],"stream":true,"stream_options":{"include_usage":true},"n":1,
       "presence_penalty":0.5,"frequency_penalty":-0.5,"repeat_penalty":1.1,"logit_bias":{"12":-100},
       "headstart":{"reuse":"strict"},"cache_salt":"me","tools":[],"response_format":{"type":"text"}})",
    R"({"prompt":"once upon a time","max_tokens":0,"echo":false,"suffix":null,"logprobs":null})",
    R"({"prompt":[1,2,3,250],"stop":"z","max_tokens":16.0})",
    R"({"prompt":[[7,8]],"best_of":1,"seed":18446744073709551615})",
    R"({"messages":[{"role":"user","content":"w?"},{"role":"assistant","content":null,"tool_calls":[
       {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":[1]}"}}]},
       {"role":"tool","tool_call_id":"c1","content":"s"}],"tools":[{"type":"function","function":
       {"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"array",
       "items":{"$ref":"#/$defs/x"}}},"$defs":{"x":{"enum":[1,"b",null]}},"required":["a"]}}}],
       "tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":true,"n":2,
       "logprobs":true,"top_logprobs":2,"chat_template_kwargs":{"enable_thinking":false},
       "reasoning_format":"none","reasoning_effort":"low"})",
    R"({"prompt":"x","n":3,"logprobs":2,"typical_p":0.9,"xtc_probability":0.1,"xtc_threshold":0.2,
       "dynatemp_range":0.5,"top_n_sigma":1,"repeat_last_n":-1,"ignore_eos":true,
       "logit_bias":[[5,1.5],["ab",-3],[7,false]],
       "grammar":"root ::= (\"a\" | [b-d]){2,3} x*\nx ::= . root?"})",
    R"({"prompt":"x","json_schema":{"type":"object","properties":{"a":{"type":"string","maxLength":9,
       "pattern":"^(a|b)+$"},"b":{"anyOf":[{"type":"integer","minimum":-3,"maximum":700},
       {"type":"array","minItems":1,"maxItems":3,"items":{"type":"number"}}]}},
       "additionalProperties":{"type":"boolean"}},"n_predict":4,"n_probs":1})",
    R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema",
       "json_schema":{"name":"n","schema":{"type":"object","properties":{"t":{"format":"date-time",
       "type":"string"},"c":{"const":{"k":[true]}}}}}}})"};

const std::vector<std::string> kWords = {"null",
                                         "true",
                                         "false",
                                         "-1",
                                         "0",
                                         "1e999",
                                         "-0.0",
                                         "4294967296",
                                         "9223372036854775808",
                                         "1.5",
                                         "{}",
                                         "[]",
                                         "[[[[",
                                         "{\"a\":",
                                         "\"\"",
                                         "\"",
                                         "\\",
                                         "\\u0000",
                                         "\\ud800",
                                         "\xff",
                                         "\xed\xa0\x80",
                                         "\xf0\x9f",
                                         ",",
                                         ":",
                                         "\"stop\":",
                                         "\"n\":",
                                         "\"prompt\":",
                                         "\"messages\":",
                                         "\"content\":",
                                         "\"max_tokens\":",
                                         "\"logit_bias\":",
                                         "\"type\":\"text\"",
                                         "{5,3}",
                                         "{0,2000}",
                                         "(((",
                                         " | root",
                                         "root ::= ",
                                         "\"$ref\":\"#/",
                                         "\"allOf\":[{}]",
                                         "\"minItems\":",
                                         "\"pattern\":\"^(a{2,9}|[^b]*)+$\"",
                                         "\"tool_choice\":\"required\"",
                                         "\"tools\":[",
                                         "\r\n\r\n",
                                         "Content-Length: 99999999999\r\n",
                                         "Transfer-Encoding: chunked\r\n",
                                         "Expect: 100-continue\r\n",
                                         "HTTP/1.0",
                                         "POST ",
                                         "GET ",
                                         "Range: bytes=0-0\r\n",
                                         "Upgrade: websocket\r\n"};

// With a real template behind it: no schema may end the process or go on for ever.
class FuzzedCompleter final : public server::FakeCompleter {
 public:
  FuzzedCompleter() : template_(*model::ChatTemplate::of(test::kToolTemplate)) {}
  bool real_template = false;  // takes milliseconds

  Result<model::ChatPrompt> apply(const model::ChatInput& chat) const override {
    return real_template ? template_->apply(chat) : FakeCompleter::apply(chat);
  }

 private:
  std::unique_ptr<model::ChatTemplate> template_;
};

[[noreturn]] void fail(const char* what, const std::string& input) {
  std::printf("%s:\n%s\n", what, input.c_str());
  std::exit(1);
}

bool within(double value, double min, double max) {
  return std::isfinite(value) && value >= min && value <= max;
}

const char* broken_promise(const ApiRequest& r) {
  const model::SamplingOptions& s = r.sampling.options;
  if (r.endpoint == Endpoint::kChat && r.chat.messages.empty()) return "no messages";
  if (r.chat.messages.size() > server::kMessagesMax) return "too many messages";
  if (r.chat.tools.size() > server::kToolsMax) return "too many tools";
  if (!r.chat.tool_name.empty() && r.chat.tools.empty()) return "a tool that is not there";
  if (r.n_choice < 1 || r.n_choice > server::kChoicesMax) return "a wrong number of choices";
  if (r.n_top_logprobs.value_or(0) > model::kTopTokensMax) return "too many probabilities";
  if (!r.format.gbnf.empty() && !r.format.json_schema.empty()) return "two forms of answer";
  if (!within(s.temperature, 0, 10) || !within(s.top_p, 0, 1) || !within(s.min_p, 0, 1) ||
      s.top_k < 0 || !within(s.presence_penalty, -2, 2) || !within(s.frequency_penalty, -2, 2) ||
      !within(s.repeat_penalty, 0.09, 10) || !within(s.typical_p, 0, 1) ||
      !within(s.xtc_probability, 0, 1) || !within(s.top_n_sigma, -1, 100)) {
    return "sampling out of range";
  }
  for (const auto& [token, bias] : s.logit_bias) {
    const bool never = bias == -std::numeric_limits<float>::infinity();
    if (token < 0 || !(never || within(bias, -100, 100))) return "bias out of range";
  }
  if (s.logit_bias.size() > model::kLogitBiasMax) return "too many biases";
  if (r.sampling.stop.size() > exec::kStopsMax) return "too many stops";
  for (const std::string& stop : r.sampling.stop) {
    if (stop.empty() || stop.size() > server::kStopBytesMax) return "a stop of a wrong size";
  }
  if (r.salt.size() > kv::kSaltBytesMax) return "a salt that is too long";
  if (r.sampling.seed == UINT32_MAX) return "the seed that means random";
  return nullptr;
}

void check_refusal(const server::ApiError& error, const std::string& body) {
  const auto json = nlohmann::json::parse(server::error_body(error), nullptr, false);
  if (error.status != 400 || !json.is_object() || json["error"]["message"] == "") {
    fail("a refusal that is no 400 in JSON", body);
  }
}

// How many of the endpoints take it.
uint64_t check_body(const std::string& body, const server::Completer& model) {
  uint64_t n_admitted = 0;
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions, Endpoint::kNative}) {
    const auto request = server::parse_request(endpoint, body);
    if (!request) {
      check_refusal(request.error(), body);
      continue;
    }
    if (const char* what = broken_promise(*request)) fail(what, body);
    const auto admitted = server::admit(*request, model, 1);
    if (!admitted) {
      check_refusal(admitted.error(), body);
    } else if (admitted->request.tokens.empty() ||
               admitted->request.tokens.size() + admitted->request.n_predict > model.n_ctx()) {
      fail("admitted beyond the context", body);
    } else {
      ++n_admitted;
    }
  }
  return n_admitted;
}

void send_bytes(uint16_t port, const std::string& bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_WR);
    char scratch[4096];  // reads on, so that the server gets as far as it would for a client
    while (::recv(fd, scratch, sizeof(scratch), 0) > 0) {
    }
  }
  ::close(fd);
}

void fuzz_sockets(uint64_t n_run, uint64_t seed) {
  std::vector<std::string> corpus;
  for (const std::string& body : kBodies) {
    const char* path =
        body.find("prompt") == std::string::npos ? "/v1/chat/completions" : "/v1/completions";
    corpus.push_back(std::string("POST ") + path +
                     " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                     std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  corpus.push_back("GET /v1/models HTTP/1.1\r\nAccept: */*\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n");
  corpus.push_back(
      "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
      "e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n");
  server::FakeCompleter model;
  server::ServerOptions options;
  options.port = 0;
  options.request_timeout = std::chrono::milliseconds(500);
  options.body_bytes_max = 1 << 20;
  auto opened = server::Server::open(options);
  if (!opened.ok()) fail("cannot listen", opened.error().message);
  server::Server& live = **opened;
  live.set_ready(model);
  std::thread serving([&] { (void)live.run(); });
  fuzz::Mutator mutator(seed, corpus, kWords);
  for (uint64_t i = 0; i < n_run; ++i) send_bytes(live.port(), mutator.next());
  const auto health = httplib::Client("127.0.0.1", live.port()).Get("/health");
  if (!health || health->status != 200) fail("the server does not answer any more", "");
  live.stop();
  serving.join();
}

}  // namespace
}  // namespace headstart

int main(int argc, char** argv) {
  const uint64_t n_run = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::printf("%llu runs, seed %llu\n", static_cast<unsigned long long>(n_run),
              static_cast<unsigned long long>(seed));
  headstart::FuzzedCompleter model;
  headstart::fuzz::Mutator mutator(seed, headstart::kBodies, headstart::kWords);
  uint64_t n_admitted = 0;
  for (uint64_t i = 0; i < n_run; ++i) {
    model.real_template = i % 64 == 0;
    n_admitted += headstart::check_body(mutator.next(), model);
  }
  headstart::fuzz_sockets(n_run / 20, seed);
  std::printf("%llu admitted\n", static_cast<unsigned long long>(n_admitted));
  // Inputs that are all refused at the first byte would prove little.
  return n_admitted >= n_run / 50 ? 0 : 1;
}
