// Proves the server over real sockets: what clients read byte by byte, errors, cancelling, limits,
// stopping. A scripted model stands in (fake_completer.h); its gates decide when it gets on.
//
// To add a case: post() for a whole answer, RawClient where bytes or hanging up matter.
#include "server/testing.h"

namespace headstart::server {
namespace {

using namespace testing;

// ---- whole answers

TEST_F(HttpServerTest, AnswersAChat) {
  start();
  model->n_cached = 7;
  const auto r = post(kChatPath, kHi);
  EXPECT_EQ(r.status, 200);
  const json body = json::parse(r.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "fake-model");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 8);  // "<user>hi"
  EXPECT_EQ(body["usage"]["completion_tokens"], 2);
  EXPECT_EQ(body["usage"]["total_tokens"], 10);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 7);
  for (const char* part : {"ttft_ms", "queue_ms", "lookup_ms", "load_ms", "compute_ms"}) {
    EXPECT_TRUE(body["headstart"][part].is_number()) << part;
  }
}

TEST_F(HttpServerTest, AnswersACompletion) {
  start();
  const json body = json::parse(post("/v1/completions", R"({"prompt":"abc"})").body);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["text"], "Hello");
  EXPECT_EQ(model->seen()[0].n_predict, 16u);
  EXPECT_EQ(model->seen()[0].tokens, (std::vector<Token>{'a', 'b', 'c'}));
}

TEST_F(HttpServerTest, GeneratesExactlyAsManyTokensAsAsked) {
  start();
  model->pieces = {"a", "b", "c", "d"};
  for (const int n : {0, 1, 2}) {
    for (const bool streamed : {false, true}) {
      const std::string body = R"({"prompt":"x","max_tokens":)" + std::to_string(n) +
                               (streamed ? R"(,"stream":true)" : "") + "}";
      const auto r = post("/v1/completions", body);
      EXPECT_EQ(r.status, 200);
      std::string text, reason;
      if (streamed) {
        for (const json& e : data_of(r.body)) {
          text += e["choices"][0]["text"].get<std::string>();
          if (e["choices"][0]["finish_reason"].is_string()) {
            reason = e["choices"][0]["finish_reason"];
          }
        }
      } else {
        const json whole = json::parse(r.body);
        text = whole["choices"][0]["text"];
        reason = whole["choices"][0]["finish_reason"];
        EXPECT_EQ(whole["usage"]["completion_tokens"], n);
      }
      EXPECT_EQ(text, std::string("abcd").substr(0, static_cast<size_t>(n)));
      EXPECT_EQ(reason, "length");
    }
  }
}

TEST_F(HttpServerTest, HandsEveryFieldToTheEngine) {
  start();
  post(kChatPath, R"({"messages":[{"role":"user","content":"hi"}],"temperature":0.5,"seed":3,
      "stop":"X","max_tokens":9,"cache_salt":"me","headstart":{"reuse":"strict","n_propose_max":3}})");
  const auto seen = model->seen();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].sampling.temperature, 0.5f);
  EXPECT_EQ(seen[0].sampling.seed, 3u);
  EXPECT_EQ(seen[0].stop, std::vector<std::string>{"X"});
  EXPECT_EQ(seen[0].n_predict, 9u);
  EXPECT_EQ(seen[0].salt, "me");
  EXPECT_EQ(seen[0].reuse, store::ReuseMode::kStrict);
  EXPECT_EQ(seen[0].n_propose_max, 3u);
}

TEST_F(HttpServerTest, TellsTheSeedItChose) {
  start();
  const json a = json::parse(post(kChatPath, kHi).body), b = json::parse(post(kChatPath, kHi).body);
  EXPECT_EQ(a["headstart"]["seed"], model->seen()[0].sampling.seed);
  EXPECT_NE(a["headstart"]["seed"], b["headstart"]["seed"]);
  EXPECT_NE(a["id"], b["id"]);
}

// ---- streams, by the rules that clients depend on

TEST_F(HttpServerTest, StreamsAChatByTheRules) {
  start();
  RawClient c(server->port());
  c.post(kChatPath, kHiStream);
  const std::string& response = c.until("[DONE]\n\n\r\n0\r\n\r\n");
  EXPECT_EQ(response.rfind("HTTP/1.1 200 OK\r\n", 0), 0u);
  EXPECT_NE(response.find("Content-Type: text/event-stream\r\n"), std::string::npos);
  EXPECT_NE(response.find("Cache-Control: no-cache\r\n"), std::string::npos);
  const std::string sse = unchunk(response);
  EXPECT_EQ(sse.rfind(": ping\n\ndata: {", 0), 0u) << sse;
  EXPECT_EQ(sse.substr(sse.size() - 16), "\n\ndata: [DONE]\n\n");
  const auto events = data_of(sse);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[0]["choices"][0]["delta"], json::parse(R"({"role":"assistant","content":""})"));
  std::string text;
  for (const json& e : events) {
    EXPECT_EQ(e["id"], events[0]["id"]);
    EXPECT_EQ(e["created"], events[0]["created"]);
    EXPECT_EQ(e["object"], "chat.completion.chunk");
    EXPECT_FALSE(e.contains("usage"));
    ASSERT_EQ(e["choices"].size(), 1u);
    text += e["choices"][0]["delta"].value("content", "");
    EXPECT_EQ(e["choices"][0]["finish_reason"].is_null(), &e != &events.back());
  }
  EXPECT_EQ(text, "Hello");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "stop");
}

TEST_F(HttpServerTest, StreamsUsageWhereAsked) {
  start();
  const auto events =
      data_of(stream(kChatPath, R"({"messages":[{"role":"user","content":"hi"}],"stream":true,
                     "stream_options":{"include_usage":true}})"));
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 2);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "stop");
  for (size_t i = 0; i + 1 < events.size(); ++i) EXPECT_TRUE(events[i].at("usage").is_null());
}

TEST_F(HttpServerTest, StreamsTextAsItComes) {
  start(/*held=*/true);
  RawClient c(server->port());
  c.post(kChatPath, kHiStream);
  model->start.open();
  model->step.add(1);
  EXPECT_EQ(c.until("Hel").find("\"lo\""), std::string::npos);
  model->step.add(1);
  c.until("[DONE]");
}

TEST_F(HttpServerTest, PingsWhileNothingHappens) {
  options.ping_interval = 30ms;
  start(/*held=*/true);
  RawClient c(server->port());
  c.post(kChatPath, kHiStream);
  c.until(": ping\n\n\r\n8\r\n: ping\n\n\r\n8\r\n: ping\n\n");  // each one its own chunk
  EXPECT_EQ(c.until("ping").find("data:"), std::string::npos);
  model->start.open();
  model->step.open();
  c.until("[DONE]");
}

TEST_F(HttpServerTest, PingsFromAcceptOnInTheQueue) {
  start(/*held=*/true);
  RawClient first(server->port()), second(server->port());
  first.post(kChatPath, kHiStream);
  first.until(": ping");
  second.post(kChatPath, kHiStream);
  second.until(": ping");
  model->start.open();
  model->step.open();
  second.until("[DONE]");
}

TEST_F(HttpServerTest, EndsABrokenStreamWithAnError) {
  start();
  model->error = Error{Code::kIo, "the disk is gone"};
  const std::string sse = stream(kChatPath, kHiStream);
  const auto events = data_of(sse);
  EXPECT_EQ(events.back()["error"]["message"], "the disk is gone");
  EXPECT_EQ(sse.find("[DONE]"), std::string::npos);  // a client must not take it for whole
}

TEST_F(HttpServerTest, StreamsToHttp10) {
  start();
  RawClient c(server->port());
  const std::string body = kHiStream;
  c.send("POST /v1/chat/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string& response = c.until_closed();
  EXPECT_EQ(response.find("chunked"), std::string::npos);
  EXPECT_EQ(response.substr(response.size() - 14), "data: [DONE]\n\n");
}

// ---- several choices, probabilities

TEST_F(HttpServerTest, AnswersSeveralChoicesWithSeedsInARow) {
  start();
  const json body = json::parse(
      post(kChatPath, R"({"messages":[{"role":"user","content":"hi"}],"n":3,"seed":5})").body);
  ASSERT_EQ(body["choices"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["message"]["content"], "Hello");
    EXPECT_EQ(model->seen()[i].sampling.seed, 5 + i);
  }
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
}

TEST_F(HttpServerTest, StreamsSeveralChoicesAndEndsOnce) {
  start();
  const std::string sse =
      stream(kChatPath, R"({"messages":[{"role":"user","content":"hi"}],"n":2,"stream":true})");
  EXPECT_EQ(sse.find("[DONE]"), sse.rfind("[DONE]"));
  std::string texts[2];
  int n_finished = 0;
  for (const json& e : data_of(sse)) {
    const json& choice = e["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["delta"].value("content", "");
    n_finished += choice["finish_reason"] == "stop";
  }
  EXPECT_EQ(texts[0], "Hello");
  EXPECT_EQ(texts[1], "Hello");
  EXPECT_EQ(n_finished, 2);
}

TEST_F(HttpServerTest, ChoicesThatFindNoPlaceAreAllRefused) {
  options.queue.n_waiting_max = 1;
  start(/*held=*/true);
  expect_error(post("/v1/completions", R"({"prompt":"x","n":3})"), 503, "queue_full");
  EXPECT_TRUE(eventually([&] { return n_running() == 0; }));  // the first may have begun
  model->start.open();
  model->step.open();
  // The one that ran before the others found no place gives its place back when it has noticed.
  EXPECT_TRUE(
      eventually([&] { return post("/v1/completions", R"({"prompt":"x","n":2})").status == 200; }));
}

TEST_F(HttpServerTest, TellsProbabilities) {
  start();
  const std::string asked =
      R"({"messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":1)";
  const json whole = json::parse(post(kChatPath, asked + "}").body)["choices"][0]["logprobs"];
  ASSERT_EQ(whole["content"].size(), 2u);
  EXPECT_EQ(whole["content"][1]["token"], "lo");
  std::string tokens;
  for (const json& e : data_of(stream(kChatPath, asked + R"(,"stream":true})"))) {
    const json& logprobs = e["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const json& t : logprobs["content"]) tokens += t["token"].get<std::string>();
  }
  EXPECT_EQ(tokens, "Hello");
  EXPECT_EQ(model->seen()[0].n_top_logprobs, 1u);
}

// ---- what scripts for llama-server call

TEST_F(HttpServerTest, AnswersUnderTheNamesOfLlamaServer) {
  start();
  EXPECT_EQ(get("/v1/health").status, 200);
  EXPECT_EQ(get("/models").body, get("/v1/models").body);
  EXPECT_EQ(json::parse(post("/chat/completions", kHi).body)["object"], "chat.completion");
  for (const char* path : {"/completion", "/completions"}) {
    const json body = json::parse(post(path, R"({"prompt":"x","n_predict":2})").body);
    EXPECT_EQ(body["content"], "Hello");
    EXPECT_EQ(body["stop"], true);
  }
  const auto events = data_of(stream("/completion", R"({"prompt":"x","stream":true})"));
  EXPECT_EQ(events.front()["stop"], false);
  EXPECT_EQ(events.back()["stop"], true);
  const json props = json::parse(get("/props").body);
  EXPECT_EQ(props["total_slots"], 1);
  EXPECT_EQ(props["model_path"], "fake.gguf");
  EXPECT_EQ(props["bos_token"], "<s>");
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 1024);
}

TEST_F(HttpServerTest, TokenizesWithoutComputing) {
  start();
  EXPECT_EQ(post("/tokenize", R"({"content":"ab"})").body, R"({"tokens":[97,98]})");
  EXPECT_EQ(post("/tokenize", R"({"content":["a",98]})").body, R"({"tokens":[97,98]})");
  EXPECT_EQ(post("/tokenize", R"({})").body, R"({"tokens":[]})");
  EXPECT_EQ(post("/tokenize", R"({"content":"\u00e9","with_pieces":true})").body,
            R"({"tokens":[{"id":195,"piece":[195]},{"id":169,"piece":[169]}]})");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[97,98]})").body, R"({"content":"ab"})");
  EXPECT_EQ(post("/apply-template", kHi).body, R"({"prompt":"<user>hi"})");
  expect_error(post("/tokenize", R"({"content":5})"), 400, "invalid_value");
  expect_error(post("/tokenize", R"({"content":[256]})"), 400, "invalid_value");
  expect_error(post("/detokenize", R"({"tokens":[-1]})"), 400, "invalid_value");
  expect_error(post("/detokenize", R"({"tokens":"x"})"), 400, "invalid_value");
  expect_error(post("/apply-template", R"({})"), 400, "invalid_value");
  expect_error(post("/tokenize", "["), 400, "invalid_value");
  EXPECT_EQ(get("/tokenize").status, 405);
  EXPECT_TRUE(model->seen().empty());
}

TEST_F(HttpServerTest, MovesSlotsAsLlamaServer) {
  options.slot_save_path = "/saved";
  start();
  const json slots = json::parse(get("/slots").body);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[0]["id"], 0);
  EXPECT_EQ(slots[0]["is_processing"], false);
  EXPECT_EQ(slots[0]["n_ctx"], 1024);
  EXPECT_EQ(post("/slots/1?action=save", R"({"filename":"a.bin"})").body,
            R"({"id_slot":1,"filename":"a.bin","n_saved":7,"n_written":4096,)"
            R"("timings":{"save_ms":1.5}})");
  EXPECT_EQ(model->slot_dir(), "/saved/a.bin");
  EXPECT_EQ(post("/slots/0?action=restore", R"({"filename":"a.bin"})").body,
            R"({"id_slot":0,"filename":"a.bin","n_restored":7,"n_read":4096,)"
            R"("timings":{"restore_ms":1.5}})");
  EXPECT_EQ(post("/slots/0?action=erase", "{}").body, R"({"id_slot":0,"n_erased":7})");
  expect_error(post("/slots/2?action=erase", "{}"), 404, "not_found");
  expect_error(post("/slots/x?action=erase", "{}"), 400, "invalid_value");
  expect_error(post("/slots/0?action=eat", "{}"), 400, "invalid_value");
  expect_error(post("/slots/0", "{}"), 400, "invalid_value");
  for (const char* name : {"../a", "a/b", ".a", "", "a b", "a\\u0000b"}) {
    const std::string body = std::string(R"({"filename":")") + name + "\"}";
    expect_error(post("/slots/0?action=save", body), 400, "invalid_value");
  }
  expect_error(post("/slots/0?action=save", "{}"), 400, "invalid_value");
}

TEST_F(HttpServerTest, SavesNoSlotsWithoutAFolder) {
  start();
  const auto refused = post("/slots/0?action=save", R"({"filename":"a"})");
  EXPECT_EQ(refused.status, 501);
  EXPECT_EQ(json::parse(refused.body)["error"]["type"], "not_supported_error");
  EXPECT_EQ(model->slot_dir(), "");
}

TEST_F(HttpServerTest, SaysWhichSlotsAreBusy) {
  options.slot_save_path = "/saved";
  options.queue.n_running_max = 2;
  start(/*held=*/true);
  RawClient one(server->port()), two(server->port());
  one.post(kChatPath, kHi);
  two.post(kChatPath, kHi);
  ASSERT_TRUE(eventually([&] { return n_running() == 2; }));
  EXPECT_EQ(json::parse(get("/slots").body)[1]["is_processing"], true);
  expect_error(get("/slots?fail_on_no_slot=1"), 503, "no_slot");
  expect_error(post("/slots/0?action=save", R"({"filename":"a"})"), 503, "slot_busy");
}

// ---- errors

TEST_F(HttpServerTest, RefusesBadRequests) {
  start();
  expect_error(post(kChatPath, "{"), 400, "invalid_value");
  expect_error(post(kChatPath, ""), 400, "invalid_value");
  expect_error(post(kChatPath, "{}"), 400, "invalid_value");
  expect_error(post(kChatPath, "\xff\xfe"), 400, "invalid_value");
  expect_error(post(kChatPath, std::string(100'000, '[')), 400, "invalid_value");
  expect_error(post(kChatPath, R"({"messages":[{"role":"user","content":"refuse me"}]})"), 400,
               "invalid_value");
  expect_error(post("/v1/completions", R"({"prompt":"x","echo":true})"), 400, "unsupported_value");
  EXPECT_TRUE(model->seen().empty());
}

TEST_F(HttpServerTest, NamesTheContextThatIsExceeded) {
  start();
  model->n_context = 100;
  for (const char* streamed : {"false", "true"}) {
    const auto r = post("/v1/completions", R"({"prompt":")" + std::string(200, 'x') +
                                               R"(","stream":)" + streamed + "}");
    expect_error(r, 400, "context_length_exceeded");
    EXPECT_EQ(json::parse(r.body)["error"]["n_prompt_tokens"], 200);
    EXPECT_EQ(json::parse(r.body)["error"]["n_ctx"], 100);
  }
}

TEST_F(HttpServerTest, AnswersUnknownPathsAndMethodsInJson) {
  start();
  expect_error(get("/nothing"), 404, "not_found");
  expect_error(post("/v1/nothing", "{}"), 404, "not_found");
  const auto wrong = get(kChatPath);
  expect_error(wrong, 405, "");
  EXPECT_EQ(wrong.get_header_value("Allow"), "POST");
  expect_error(post("/health", "{}"), 405, "");
  expect_error(*client().Delete("/v1/models"), 405, "");
  expect_error(get("/../../etc/passwd"), 404, "not_found");
}

TEST_F(HttpServerTest, AnswersMalformedHttpInJson) {
  start();
  for (const std::string& bytes :
       {std::string("NONSENSE\r\n\r\n"), std::string("BREW / HTTP/1.1\r\n\r\n"),
        std::string("GET /health HTTP/3.0\r\n\r\n"),
        std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n")}) {
    RawClient c(server->port());
    c.send(bytes);
    const std::string& response = c.until_closed();
    EXPECT_EQ(response.rfind("HTTP/1.1 400 ", 0), 0u) << response;
    EXPECT_NE(response.find(R"({"error":{"message":)"), std::string::npos) << response;
  }
}

TEST_F(HttpServerTest, LimitsTheBody) {
  options.body_bytes_max = 1000;
  start();
  expect_error(post(kChatPath, std::string(1001, ' ')), 413, "");
  EXPECT_EQ(post(kChatPath, kHi + std::string(900, ' ')).status, 200);
  // Also where the size is not told beforehand.
  const auto r = client().Post(
      kChatPath,
      [](size_t offset, httplib::DataSink& sink) {
        if (offset > 5000) return sink.done(), true;
        const std::string block(100, ' ');
        return sink.write(block.data(), block.size());
      },
      "application/json");
  if (r) {  // or the connection was cut while we sent: as good an answer
    EXPECT_EQ(r->status, 413);
  }
  EXPECT_TRUE(model->seen().size() == 1);
}

TEST_F(HttpServerTest, RefusesClaimsOfHugeBodies) {
  start();
  for (const char* length :
       {"99999999999", "18446744073709551615", "-1", "999999999999999999999"}) {
    RawClient c(server->port());
    c.send(std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: ") + length + "\r\n\r\n");
    const std::string& response = c.until_closed();
    EXPECT_TRUE(response.rfind("HTTP/1.1 4", 0) == 0) << length << ": " << response;
  }
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(HttpServerTest, TakesJsonUnderAnyTypeButForms) {
  start();
  // What `curl -d` sends.
  auto r = client().Post(kChatPath, kHi, "application/x-www-form-urlencoded");
  EXPECT_EQ(r->status, 200);
  httplib::UploadFormDataItems items = {{"prompt", "x", "", ""}};
  r = client().Post("/v1/completions", items);
  expect_error(*r, 415, "");
  r = client().Post(kChatPath, {{"Content-Encoding", "gzip"}}, kHi, "application/json");
  expect_error(*r, 415, "");
  RawClient c(server->port());
  c.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n");
  EXPECT_EQ(c.until_closed().rfind("HTTP/1.1 400 ", 0), 0u);
}

TEST_F(HttpServerTest, MapsErrorsOfTheEngine) {
  start();
  model->error = Error{Code::kExhausted, "needs 5 GiB; use a smaller -c"};
  expect_error(post(kChatPath, kHi), 503, "exhausted");
  model->error = Error{Code::kInvalidArgument, "no"};
  expect_error(post(kChatPath, kHi), 400, "invalid_value");
  model->error = Error{Code::kCorrupt, "broken"};
  expect_error(post(kChatPath, kHi), 500, "internal_error");
  model->throws = true;
  expect_error(post(kChatPath, kHi), 500, "internal_error");
}

// ---- models, health, metrics

TEST_F(HttpServerTest, SaysSoWhileTheModelLoads) {
  listen();
  expect_error(get("/health"), 503, "loading");
  expect_error(get("/v1/models"), 503, "loading");
  expect_error(post(kChatPath, kHi), 503, "loading");
  EXPECT_NE(get("/metrics").body.find("headstart_ready 0\n"), std::string::npos);
  model = std::make_unique<FakeCompleter>();
  server->set_ready(*model);
  const auto health = get("/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, R"({"status":"ok"})");
  EXPECT_EQ(post(kChatPath, kHi).status, 200);
  EXPECT_NE(get("/metrics").body.find("headstart_ready 1\n"), std::string::npos);
}

TEST_F(HttpServerTest, ListsItsModel) {
  start();
  const json list = json::parse(get("/v1/models").body);
  EXPECT_EQ(list["data"][0]["id"], "fake-model");
  EXPECT_EQ(json::parse(get("/v1/models/fake-model").body), list["data"][0]);
  expect_error(get("/v1/models/gpt-4"), 404, "model_not_found");
}

TEST_F(HttpServerTest, ExposesMetrics) {
  start();
  post(kChatPath, kHi);
  post(kChatPath, "{");
  const auto r = get("/metrics");
  EXPECT_EQ(r.get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"headstart_completions_total{outcome=\"ok\"} 1",
        "headstart_http_responses_total{code=\"400\"} 1", "headstart_ttft_seconds_count 1",
        "headstart_cache_hits_total{tier=\"ram\"} 3", "headstart_prompt_tokens_total 12"}) {
    EXPECT_NE(r.body.find(std::string("\n") + line + "\n"), std::string::npos) << line;
  }
}

// ---- queue and cancelling

TEST_F(HttpServerTest, RefusesWhenTheQueueIsFull) {
  options.queue.n_waiting_max = 1;
  start(/*held=*/true);
  RawClient running(server->port()), waiting(server->port());
  running.post(kChatPath, kHiStream);
  running.until(": ping");
  waiting.post(kChatPath, kHiStream);
  waiting.until(": ping");
  expect_error(post(kChatPath, kHi), 503, "queue_full");
  expect_error(post(kChatPath, kHiStream), 503, "queue_full");  // a status, not a broken stream
  model->start.open();
  model->step.open();
  running.until("[DONE]");
  waiting.until("[DONE]");
  EXPECT_EQ(post(kChatPath, kHi).status, 200);
}

TEST_F(HttpServerTest, CancelsARunningStreamWhoseClientLeft) {
  start(/*held=*/true);
  auto leaver = std::make_unique<RawClient>(server->port());
  leaver->post(kChatPath, kHiStream);
  EXPECT_TRUE(eventually([&] { return n_running() == 1; }));
  RawClient stayer(server->port());
  stayer.post(kChatPath, kHiStream);
  stayer.until(": ping");
  leaver.reset();
  EXPECT_TRUE(eventually([&] { return model->n_cancelled() == 1; }));
  model->start.open();
  model->step.open();
  stayer.until("[DONE]");
  EXPECT_EQ(model->n_cancelled(), 1);
}

TEST_F(HttpServerTest, CancelsARunningCallWhoseClientLeft) {
  start(/*held=*/true);
  RawClient leaver(server->port());
  leaver.post(kChatPath, kHi);
  EXPECT_TRUE(eventually([&] { return n_running() == 1; }));
  leaver.hang_up();
  EXPECT_TRUE(eventually([&] { return model->n_cancelled() == 1; }));
}

TEST_F(HttpServerTest, SeesAClientLeaveBehindBytesThatItSentAhead) {
  start(/*held=*/true);
  RawClient leaver(server->port());
  leaver.post(kChatPath, kHi);
  leaver.send("\r\nGET /health HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return n_running() == 1; }));
  leaver.hang_up();
  EXPECT_TRUE(eventually([&] { return model->n_cancelled() == 1; }));
}

TEST_F(HttpServerTest, ForgetsQueuedRequestsWhoseClientsLeft) {
  options.queue.n_waiting_max = 2;
  start(/*held=*/true);
  RawClient running(server->port());
  running.post(kChatPath, kHiStream);
  running.until(": ping");
  for (const char* body : {kHi, kHiStream}) {
    RawClient a(server->port()), b(server->port());
    a.post(kChatPath, body);
    b.post(kChatPath, body);
    EXPECT_TRUE(eventually([&] {
      return get("/metrics").body.find("headstart_requests_waiting 2\n") != std::string::npos;
    }));
    a.hang_up();
    b.hang_up();
    EXPECT_TRUE(eventually([&] {
      return get("/metrics").body.find("headstart_requests_waiting 0\n") != std::string::npos;
    }));
  }
  model->start.open();
  model->step.open();
  running.until("[DONE]");
  EXPECT_EQ(model->seen().size(), 1u);  // none of the four ever ran
  EXPECT_EQ(model->n_cancelled(), 0);
}

TEST_F(HttpServerTest, ServesManyClientsWithoutMixingThem) {
  start();
  std::vector<std::thread> clients;
  std::atomic<int> n_good{0};
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      for (int k = 0; k < 5; ++k) {
        const std::string prompt = std::string(static_cast<size_t>(10 * i + k + 1), 'x');
        const json body = json::parse(
            post("/v1/completions", R"({"prompt":")" + prompt + R"("})").body, nullptr, false);
        if (body.is_object() && body["usage"]["prompt_tokens"] == prompt.size()) ++n_good;
      }
    });
  }
  for (auto& c : clients) c.join();
  EXPECT_EQ(n_good, 80);
  EXPECT_EQ(model->n_active_max(), 1);
}

// ---- connections

TEST_F(HttpServerTest, KeepsConnections) {
  start();
  RawClient c(server->port());
  c.send("GET /health HTTP/1.1\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n");  // two at once
  c.until("fake-model");
  c.post(kChatPath, kHiStream);
  c.until("[DONE]");
  c.post(kChatPath, kHi);
  c.until("chat.completion\"");
}

TEST_F(HttpServerTest, LimitsConnections) {
  options.n_connection_max = 2;
  start(/*held=*/true);
  RawClient a(server->port()), b(server->port());
  a.post(kChatPath, kHiStream);
  a.until(": ping");
  b.post(kChatPath, kHiStream);
  b.until(": ping");
  RawClient c(server->port());
  c.send("GET /health HTTP/1.1\r\n\r\n");
  const std::string response = c.until_closed();
  EXPECT_EQ(response.rfind("HTTP/1.1 503 ", 0), 0u) << response;
  EXPECT_NE(response.find("Retry-After: "), std::string::npos);
  EXPECT_NE(response.find(R"("code":"too_many_connections")"), std::string::npos);
  a.hang_up();
  EXPECT_TRUE(eventually([&] {
    RawClient d(server->port());
    d.send("GET /health HTTP/1.1\r\n\r\n");
    return d.until("\r\n\r\n").rfind("HTTP/1.1 200 ", 0) == 0;
  }));
}

TEST_F(HttpServerTest, DropsClientsThatTrickle) {
  options.request_timeout = 200ms;
  start();
  RawClient head(server->port()), body(server->port());
  head.send("GET /health HTTP/1.1\r\nX: ");
  body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n");
  const auto begin = Steady::now();
  bool head_closed = false, body_closed = false;
  while (!(head_closed && body_closed) && Steady::now() < begin + 20s) {
    if (!head_closed) head.trickle();
    if (!body_closed) body.trickle();
    head_closed = head.closes_within(20ms);
    body_closed = body.closes_within(20ms);
  }
  EXPECT_TRUE(head_closed && body_closed);
  EXPECT_NE(body.until_closed().find("HTTP/1.1 408 "), std::string::npos);
}

TEST_F(HttpServerTest, ClosesIdleConnections) {
  options.idle_timeout = 100ms;
  start();
  RawClient silent(server->port()), used(server->port());
  used.send("GET /health HTTP/1.1\r\n\r\n");
  used.until("ok");
  silent.until_closed();
  used.until_closed();
}

TEST_F(HttpServerTest, DropsClientsThatDoNotRead) {
  options.write_timeout = 200ms;
  options.queue.unread_bytes_max = 64 * 1024 * 1024;
  start();
  model->pieces.assign(1000, std::string(20'000, 'x'));
  RawClient c(server->port());
  c.post("/v1/completions", R"({"prompt":"x","max_tokens":1000,"stream":true})");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","max_tokens":1})").status, 200);
  EXPECT_TRUE(eventually(
      [&] { return get("/metrics").body.find("headstart_connections 1\n") != std::string::npos; }));
}

// ---- starting and stopping

TEST_F(HttpServerTest, RefusesATakenPort) {
  start();
  ServerOptions same = options;
  same.port = server->port();
  const auto second = Server::open(same);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kIo);
  EXPECT_NE(second.error().message.find("--port"), std::string::npos);
}

TEST_F(HttpServerTest, StopsWithRunningWaitingAndIdleClients) {
  start(/*held=*/true);
  RawClient running(server->port()), waiting(server->port()), whole(server->port()),
      idle(server->port()), half(server->port());
  running.post(kChatPath, kHiStream);
  running.until(": ping");
  waiting.post(kChatPath, kHiStream);
  waiting.until(": ping");
  whole.post(kChatPath, kHi);
  half.send("POST /v1/comp");
  EXPECT_TRUE(eventually([&] {
    return get("/metrics").body.find("headstart_requests_waiting 2\n") != std::string::npos;
  }));
  const auto begin = Steady::now();
  server->stop();
  thread.join();
  EXPECT_LT(Steady::now() - begin, 5s);
  EXPECT_EQ(model->n_active(), 0);
  for (RawClient* c : {&running, &waiting}) {
    EXPECT_NE(c->until_closed().find(R"("code":"stopping")"), std::string::npos);
    EXPECT_EQ(c->until_closed().find("[DONE]"), std::string::npos);
  }
  EXPECT_EQ(whole.until_closed().rfind("HTTP/1.1 503 ", 0), 0u);
  idle.until_closed();
  half.until_closed();
}

TEST_F(HttpServerTest, StopsWhileAClientDoesNotRead) {
  options.queue.unread_bytes_max = 64 * 1024 * 1024;
  start();
  model->pieces.assign(1000, std::string(20'000, 'x'));
  RawClient c(server->port());
  c.post("/v1/completions", R"({"prompt":"x","max_tokens":1000,"stream":true})");
  EXPECT_TRUE(eventually([&] { return !model->seen().empty() && n_running() == 0; }));
  std::this_thread::sleep_for(50ms);  // its connection now waits for room in the socket
  const auto begin = Steady::now();
  server->stop();
  thread.join();
  EXPECT_LT(Steady::now() - begin, 5s);
}

TEST_F(HttpServerTest, StopsBeforeItRuns) {
  options.port = 0;
  auto opened = *Server::open(options);
  opened->stop();
  EXPECT_TRUE(opened->run().ok());
}

}  // namespace
}  // namespace headstart::server
