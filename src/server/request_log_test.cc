// Proves what the dashboard is told: the life of a request, its times by part, and the bounds.
#include "server/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headstart::server {
namespace {

using testing::ElementsAre;

class RequestLogTest : public testing::Test {
 protected:
  uint64_t accept() { return log.accepted("cmpl-1", "completions", 1000, 50); }
  RequestRecord newest() const { return log.snapshot().at(0); }
  void pass_ms(double ms) { clock.advance(ms / 1e3); }
  static exec::PromptCells cells(uint32_t pos, uint32_t n, std::string source,
                                 store::CellRange layers = {0, 4}) {
    return {pos, n, layers, std::move(source)};
  }

  FakeClock clock{1000};
  RequestLog log{clock};
};

TEST_F(RequestLogTest, CountsTimeToWhatARequestDoes) {
  const uint64_t n = accept();
  pass_ms(10);
  EXPECT_EQ(newest().state, RequestState::kWaiting);
  log.started(n);
  pass_ms(5);
  log.progress(n, "lookup", 0);
  pass_ms(2);
  log.progress(n, "load", 0);
  pass_ms(30);
  log.progress(n, "prefill", 0.6);
  pass_ms(100);
  RequestRecord r = newest();
  EXPECT_EQ(r.state, RequestState::kRunning);
  EXPECT_EQ(r.n_prefilled, 600u);
  EXPECT_EQ(r.n_cached, 600u);
  EXPECT_EQ(r.ttft_ms, 0);
  EXPECT_NEAR(r.part_ms[0], 10, 1e-3);
  EXPECT_NEAR(r.part_ms[1], 5, 1e-3);
  EXPECT_NEAR(r.part_ms[2], 2, 1e-3);
  EXPECT_NEAR(r.part_ms[3], 30, 1e-3);
  EXPECT_NEAR(r.part_ms[4], 100, 1e-3);
  log.progress(n, "prefill", 1);
  log.progress(n, "decode", 0.02);
  pass_ms(40);
  log.progress(n, "decode", 0.04);
  r = newest();
  EXPECT_NEAR(r.ttft_ms, 147, 1e-3);
  EXPECT_NEAR(r.decode_ms, 40, 1e-3);
  EXPECT_EQ(r.n_generated, 2u);
  EXPECT_EQ(log.totals().n_prefilled, 400u);  // what was reused does not count
  EXPECT_EQ(log.totals().n_generated, 2u);
}

TEST_F(RequestLogTest, TakesWhatTheEngineMeasuredAtTheEnd) {
  const uint64_t n = accept();
  pass_ms(10);
  log.started(n);
  exec::Completion c;
  c.n_prompt = 1000;
  c.n_cached = 900;
  c.tokens = {1, 2, 3};
  c.ttft_ms = 70;
  c.wait_ms = 1;
  c.lookup_ms = 2;
  c.load_ms = 3;
  c.compute_ms = 64;
  c.cells = {cells(0, 900, "disk"), cells(900, 100, "computed")};
  log.ended(n, c);
  log.progress(n, "decode", 1);  // too late
  pass_ms(1000);
  const RequestRecord r = newest();
  EXPECT_EQ(r.state, RequestState::kDone);
  EXPECT_THAT(r.part_ms, ElementsAre(testing::DoubleNear(10, 1e-3), 1, 2, 3, 64));
  EXPECT_NEAR(r.ttft_ms, 80, 1e-3);
  EXPECT_NEAR(r.age_ms, 10, 1e-3);  // stands still
  EXPECT_EQ(r.n_generated, 3u);
  ASSERT_EQ(r.cells.size(), 2u);
  EXPECT_EQ(r.cells[0].source, "disk");
}

TEST_F(RequestLogTest, SaysHowRequestsEnd) {
  log.ended(accept(), Error{Code::kCancelled, ""});
  EXPECT_EQ(newest().state, RequestState::kCancelled);
  log.ended(accept(), Error{Code::kIo, ""});
  EXPECT_EQ(newest().state, RequestState::kFailed);
  log.ended(99, exec::Completion{});  // unknown
  EXPECT_EQ(log.snapshot().size(), 2u);
}

TEST_F(RequestLogTest, KeepsWhatRunsAndABoundedPast) {
  const uint64_t running = accept();
  log.started(running);
  exec::Completion c;
  c.cells = {cells(0, 10, "computed")};
  for (size_t i = 0; i < RequestLog::kRecentMax + 20; ++i) log.ended(accept(), c);
  const auto all = log.snapshot();
  EXPECT_EQ(all.size(), RequestLog::kRecentMax + 1);
  EXPECT_EQ(all.front().number, RequestLog::kRecentMax + 21);
  EXPECT_EQ(all.back().number, running);
  size_t n_picture = 0;
  for (const RequestRecord& r : all) n_picture += r.cells.empty() ? 0 : 1;
  EXPECT_EQ(n_picture, RequestLog::kPicturesMax);
  EXPECT_FALSE(all.front().cells.empty());
}

TEST_F(RequestLogTest, JoinsNeighboursWhereThereAreTooMany) {
  std::vector<exec::PromptCells> few = {cells(0, 10, "ram"), cells(10, 10, "ram")};
  EXPECT_FALSE(bound_cells(few, 2));
  EXPECT_EQ(few.size(), 2u);

  std::vector<exec::PromptCells> windowed;
  for (uint32_t i = 0; i < 100; ++i) {
    windowed.push_back(cells(i * 10, 10, "ram", {1, 2}));
    windowed.push_back(cells(i * 10, 10, "ram", {3, 4}));
  }
  windowed.push_back(cells(1000, 5, "computed"));
  EXPECT_FALSE(bound_cells(windowed, 20));
  ASSERT_EQ(windowed.size(), 3u);
  EXPECT_EQ(windowed[0].n_token, 1000u);
  EXPECT_EQ(windowed[1].n_token, 1000u);

  std::vector<exec::PromptCells> mixed;
  for (uint32_t i = 0; i < 100; ++i) mixed.push_back(cells(i * 10, 10, i % 2 ? "ram" : "disk"));
  EXPECT_TRUE(bound_cells(mixed, 20));
  EXPECT_EQ(mixed.size(), 20u);
}

}  // namespace
}  // namespace headstart::server
