// Proves over real sockets how answers reach clients in time: deadlines, progress of the prompt,
// and draining. Gates of the scripted model decide when it gets on.
//
// To add a case: a held model, RawClient, and what must come before the next gate opens.
#include "server/testing.h"

namespace headstart::server {
namespace {

using namespace testing;

class HttpDeliveryTest : public HttpServerTest {
 protected:
  bool waits(int n) {
    return eventually([&] {
      return get("/metrics").body.find("headstart_requests_waiting " + std::to_string(n) + "\n") !=
             std::string::npos;
    });
  }
  // Of a stream's bytes so far, the progress objects.
  static std::vector<json> progress_of(const std::string& response) {
    std::vector<json> out;
    for (const json& e : data_of(unchunk(response))) {
      if (e.contains("prompt_progress")) out.push_back(e["prompt_progress"]);
    }
    return out;
  }
};

constexpr const char* kSoon = R"({"messages":[{"role":"user","content":"hi"}],"timeout_ms":60})";
constexpr const char* kSoonStream =
    R"({"messages":[{"role":"user","content":"hi"}],"timeout_ms":60,"stream":true})";
constexpr const char* kProgress =
    R"({"messages":[{"role":"user","content":"hi"}],"return_progress":true,"stream":true})";

// ---- deadlines

TEST_F(HttpDeliveryTest, EndsARunningCallAtItsDeadline) {
  start(/*held=*/true);
  expect_error(post(kChatPath, kSoon), 504, "deadline_exceeded");
  EXPECT_TRUE(eventually([&] { return model->n_cancelled() == 1; }));
}

TEST_F(HttpDeliveryTest, EndsAWaitingCallAtItsDeadline) {
  start(/*held=*/true);
  RawClient running(server->port());
  running.post(kChatPath, kHiStream);
  EXPECT_TRUE(eventually([&] { return n_running() == 1; }));
  expect_error(post(kChatPath, kSoon), 504, "deadline_exceeded");
  EXPECT_TRUE(waits(0));
  model->start.open();
  model->step.open();
  running.until("[DONE]");
  EXPECT_EQ(model->seen().size(), 1u);  // the other never ran
}

TEST_F(HttpDeliveryTest, EndsStreamsAtTheirDeadlineWithoutAFinishReason) {
  start(/*held=*/true);
  model->start.open();
  model->step.add(1);
  RawClient c(server->port());
  c.post(kChatPath, kSoonStream);
  const std::string sse = unchunk(c.until("\r\n0\r\n\r\n"));
  const auto events = data_of(sse);
  EXPECT_EQ(events.back()["error"]["code"], "deadline_exceeded");
  EXPECT_NE(sse.find("\"Hel\""), std::string::npos);
  EXPECT_EQ(sse.find("[DONE]"), std::string::npos);
  EXPECT_EQ(sse.find("finish_reason\":\""), std::string::npos);
  EXPECT_TRUE(eventually([&] { return model->n_cancelled() == 1; }));
}

TEST_F(HttpDeliveryTest, TheServersDeadlineIsForAllAndNoRequestLengthensIt) {
  options.request_deadline = 60ms;
  start(/*held=*/true);
  expect_error(post(kChatPath, kHi), 504, "deadline_exceeded");
  expect_error(post("/v1/completions", R"({"prompt":"x","timeout_ms":3600000})"), 504,
               "deadline_exceeded");
}

TEST_F(HttpDeliveryTest, AnswersWithinTheDeadlineAreWhole) {
  start();
  const std::string hour = R"({"prompt":"x","timeout_ms":3600000})";
  EXPECT_EQ(json::parse(post("/v1/completions", hour).body)["choices"][0]["text"], "Hello");
  for (const char* ms : {"0", "-1", "1.5", "\"1\"", "86400001"}) {
    const std::string body = std::string(R"({"prompt":"x","timeout_ms":)") + ms + "}";
    expect_error(post("/v1/completions", body), 400, "invalid_value");
  }
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","timeout_ms":null})").status, 200);
}

// ---- progress

TEST_F(HttpDeliveryTest, TellsHowFarThePromptIs) {
  options.progress_interval = 0ms;
  start(/*held=*/true);
  model->prefill = {0.25, 0.5, 1};  // of 8 tokens
  model->start.open();
  RawClient c(server->port());
  c.post(kChatPath, kProgress);
  for (const char* done : {"\"processed\":2", "\"processed\":4", "\"processed\":8"}) {
    model->step.add(1);
    EXPECT_EQ(c.until(done).find("Hel"), std::string::npos);
  }
  model->step.open();
  const std::string& response = c.until("[DONE]\n\n\r\n0\r\n\r\n");
  const auto events = data_of(unchunk(response));
  EXPECT_EQ(events[0]["choices"][0]["delta"], json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_FALSE(events[0].contains("prompt_progress"));
  const auto progress = progress_of(response);
  ASSERT_EQ(progress.size(), 3u);
  for (const json& p : progress) {
    EXPECT_EQ(p["total"], 8);
    EXPECT_EQ(p["cache"], 2);
    EXPECT_TRUE(p["time_ms"].is_number_integer());
  }
  for (const json& e : events) {
    if (!e.contains("prompt_progress")) continue;
    EXPECT_EQ(e["choices"][0]["delta"], json::object());
  }
}

TEST_F(HttpDeliveryTest, TellsProgressToTextEndpointsInTheirForm) {
  start();
  model->prefill = {0, 1};
  auto events =
      data_of(stream("/v1/completions", R"({"prompt":"x","stream":true,"return_progress":true})"));
  EXPECT_EQ(events[0]["choices"][0]["text"], "");
  EXPECT_EQ(events[0]["prompt_progress"]["processed"], 1);
  events = data_of(stream("/completion", R"({"prompt":"x","stream":true,"return_progress":true})"));
  EXPECT_EQ(events[0]["stop"], false);
  EXPECT_EQ(events[0]["prompt_progress"]["total"], 1);
}

TEST_F(HttpDeliveryTest, TellsProgressOnlyWhereAskedAndNotToDeath) {
  options.progress_interval = 1h;
  start();
  model->prefill.assign(1000, 0.5);
  model->prefill.push_back(1);
  EXPECT_EQ(stream(kChatPath, kHiStream).find("prompt_progress"), std::string::npos);
  RawClient c(server->port());
  c.post(kChatPath, kProgress);
  EXPECT_LE(progress_of(c.until("[DONE]\n\n\r\n0\r\n\r\n")).size(), 2u);
  const auto whole = post(kChatPath, R"({"messages":[{"role":"user","content":"hi"}],
                                         "return_progress":true})");
  EXPECT_EQ(whole.body.find("prompt_progress"), std::string::npos);
}

TEST(ProgressPaceTest, LetsTheFirstTheLastAndSomeBetweenThrough) {
  ProgressPace pace(100ms);
  const ProgressPace::Time t0{};
  const auto at = [&](int ms, std::optional<uint32_t> n_done) {
    std::optional<PromptProgress> news;
    if (n_done) news = PromptProgress{10, 0, *n_done, 0};
    const auto due = pace.due(news, t0 + std::chrono::milliseconds(ms));
    return due ? static_cast<int>(due->n_done) : -1;
  };
  EXPECT_EQ(at(0, std::nullopt), -1);
  EXPECT_EQ(at(1, 1), 1);
  EXPECT_EQ(at(50, 2), -1);
  EXPECT_EQ(at(60, 3), -1);
  EXPECT_EQ(at(101, std::nullopt), 3);  // the newest, once its time has come
  EXPECT_EQ(at(300, std::nullopt), -1);
  EXPECT_EQ(at(301, 9), 9);
  EXPECT_EQ(at(302, 10), 10);
}

// ---- draining

TEST_F(HttpDeliveryTest, DrainingFinishesWhatIsThereAndTakesNoMore) {
  start(/*held=*/true);
  RawClient running(server->port()), waiting(server->port()), idle(server->port());
  running.post(kChatPath, kHiStream);
  running.until(": ping");
  EXPECT_TRUE(eventually([&] { return n_running() == 1; }));
  waiting.post(kChatPath, kHi);
  EXPECT_TRUE(waits(1));
  idle.send("GET /health HTTP/1.1\r\n\r\n");
  idle.until("ok");
  server->drain();
  idle.until_closed();
  EXPECT_FALSE(client().Get("/health"));
  running.send("GET /health HTTP/1.1\r\n\r\n");  // behind its stream: too late
  model->start.open();
  model->step.open();
  const auto begin = Steady::now();
  thread.join();
  EXPECT_LT(Steady::now() - begin, 5s);
  EXPECT_NE(running.until_closed().find("[DONE]"), std::string::npos);
  EXPECT_EQ(running.until_closed().find("\"status\":\"ok\""), std::string::npos);
  EXPECT_EQ(waiting.until_closed().rfind("HTTP/1.1 200 ", 0), 0u);
  EXPECT_NE(waiting.until_closed().find("Connection: close"), std::string::npos);
  EXPECT_EQ(model->n_cancelled(), 0);
}

TEST_F(HttpDeliveryTest, StoppingEndsADrainThatTakesTooLong) {
  start(/*held=*/true);
  RawClient running(server->port()), waiting(server->port());
  running.post(kChatPath, kHiStream);
  running.until(": ping");
  EXPECT_TRUE(eventually([&] { return n_running() == 1; }));
  waiting.post(kChatPath, kHi);
  EXPECT_TRUE(waits(1));
  server->drain();
  EXPECT_FALSE(running.closes_within(50ms));
  server->stop();
  thread.join();
  EXPECT_NE(running.until_closed().find(R"("code":"stopping")"), std::string::npos);
  EXPECT_EQ(waiting.until_closed().rfind("HTTP/1.1 503 ", 0), 0u);
}

TEST_F(HttpDeliveryTest, ClientsThatLeaveADrainAreForgotten) {
  start(/*held=*/true);
  RawClient leaver(server->port());
  leaver.post(kChatPath, kHiStream);
  EXPECT_TRUE(eventually([&] { return n_running() == 1; }));
  server->drain();
  leaver.hang_up();
  thread.join();
  EXPECT_EQ(model->n_cancelled(), 1);
}

TEST_F(HttpDeliveryTest, RequestsThatArriveWholeDuringADrainGetA503) {
  start(/*held=*/true);
  RawClient running(server->port()), late(server->port());
  running.post(kChatPath, kHiStream);
  running.until(": ping");
  late.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 14\r\n\r\n{\"prompt\"");
  EXPECT_TRUE(eventually(
      [&] { return get("/metrics").body.find("headstart_connections 3\n") != std::string::npos; }));
  std::this_thread::sleep_for(50ms);  // its head has been read
  server->drain();
  late.send(":\"x\"}");
  EXPECT_EQ(late.until_closed().rfind("HTTP/1.1 503 ", 0), 0u);
  running.hang_up();
}

}  // namespace
}  // namespace headstart::server
