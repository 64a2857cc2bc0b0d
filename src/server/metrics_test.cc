// Proves the numbers and that a Prometheus server can read them.
#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace headstart::server {
namespace {

exec::Completion completion(double ttft_ms) {
  exec::Completion c;
  c.ttft_ms = ttft_ms;
  c.compute_ms = ttft_ms;
  return c;
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(Metrics, CountsOutcomes) {
  Metrics metrics;
  metrics.count_response(200);
  metrics.count_response(200);
  metrics.count_response(503);
  metrics.count_completion(completion(30), 0);
  metrics.count_completion(Error{Code::kCancelled, ""}, 0);
  metrics.count_completion(Error{Code::kIo, ""}, 0);
  const std::string text = metrics.expose({});
  EXPECT_TRUE(has_line(text, "headstart_http_responses_total{code=\"200\"} 2")) << text;
  EXPECT_TRUE(has_line(text, "headstart_http_responses_total{code=\"503\"} 1"));
  EXPECT_TRUE(has_line(text, "headstart_completions_total{outcome=\"ok\"} 1"));
  EXPECT_TRUE(has_line(text, "headstart_completions_total{outcome=\"cancelled\"} 1"));
  EXPECT_TRUE(has_line(text, "headstart_completions_total{outcome=\"error\"} 1"));
}

TEST(Metrics, CumulatesTtft) {
  Metrics metrics;
  metrics.count_completion(completion(10), 0);       // exactly a bound belongs to its bucket
  metrics.count_completion(completion(30), 10);      // the wait counts: 40 ms
  metrics.count_completion(completion(100'000), 0);  // beyond the last bound
  const std::string text = metrics.expose({});
  EXPECT_TRUE(has_line(text, "headstart_ttft_seconds_bucket{le=\"0.01\"} 1")) << text;
  EXPECT_TRUE(has_line(text, "headstart_ttft_seconds_bucket{le=\"0.025\"} 1"));
  EXPECT_TRUE(has_line(text, "headstart_ttft_seconds_bucket{le=\"0.05\"} 2"));
  EXPECT_TRUE(has_line(text, "headstart_ttft_seconds_bucket{le=\"60\"} 2"));
  EXPECT_TRUE(has_line(text, "headstart_ttft_seconds_bucket{le=\"+Inf\"} 3"));
  EXPECT_TRUE(has_line(text, "headstart_ttft_seconds_count 3"));
  EXPECT_TRUE(has_line(text, "headstart_ttft_part_seconds_total{part=\"queue\"} 0.01"));
}

TEST(Metrics, ExposesTheEngine) {
  Metrics metrics;
  Gauges gauges;
  EXPECT_EQ(metrics.expose(gauges).find("headstart_prompt_tokens_total"), std::string::npos);
  gauges.ready = true;
  gauges.n_waiting = 4;
  gauges.engine.emplace();
  gauges.engine->kernels = "native/2/AVX3";
  gauges.engine->n_cached_token = 17;
  gauges.engine->n_proposed_token = 8;
  gauges.engine->n_accepted_token = 5;
  store::TierStats disk;
  disk.n_hit = 9;
  gauges.engine->store.tiers.emplace_back("ram", store::TierStats{});
  gauges.engine->store.tiers.emplace_back("disk", disk);
  const std::string text = metrics.expose(gauges);
  EXPECT_TRUE(has_line(text, "headstart_kernels_info{kernels=\"native/2/AVX3\"} 1"));
  EXPECT_TRUE(has_line(text, "headstart_ready 1"));
  EXPECT_TRUE(has_line(text, "headstart_requests_waiting 4"));
  EXPECT_TRUE(has_line(text, "headstart_cached_tokens_total 17"));
  EXPECT_TRUE(has_line(text, "headstart_proposed_tokens_total 8"));
  EXPECT_TRUE(has_line(text, "headstart_accepted_tokens_total 5"));
  EXPECT_TRUE(has_line(text, "headstart_cache_hits_total{tier=\"disk\"} 9"));
  EXPECT_TRUE(has_line(text, "headstart_cache_hits_total{tier=\"ram\"} 0"));
}

TEST(Metrics, FollowsTheExpositionFormat) {
  Metrics metrics;
  metrics.count_response(200);
  metrics.count_completion(completion(1), 0);
  Gauges gauges;
  gauges.engine.emplace();
  gauges.engine->kernels = "native/2/AVX3";
  gauges.engine->store.tiers.emplace_back("ram", store::TierStats{});
  std::istringstream lines(metrics.expose(gauges));
  // POSIX syntax: g++ 12 warns inside std::regex under the sanitizers.
  const auto comment = ::testing::MatchesRegex("# (HELP|TYPE) headstart_[a-z_]+ .+");
  const auto sample =
      ::testing::MatchesRegex("headstart_[a-z_]+(\\{[a-z]+=\"[^\"]+\"\\})? [0-9.e+-]+");
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    EXPECT_THAT(line, ::testing::AnyOf(comment, sample));
  }
  EXPECT_GT(n, 40);
}

}  // namespace
}  // namespace headstart::server
