// server/metrics.h: what the server counts, in Prometheus' text exposition format.
//
// Counters only grow while the process lives. Labels never hold anything that a client chose.
//
//   units    seconds and bytes, as Prometheus wants them
//   threads  every method may be called from any thread at once
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "exec/engine.h"

namespace headstart::server {

// What is true at the moment of asking.
struct Gauges {
  bool ready = false;
  uint32_t n_waiting = 0, n_running = 0, n_connection = 0;
  std::optional<exec::EngineStats> engine;  // nothing while the model loads
};

class Metrics {
 public:
  void count_response(int http_status);
  void count_completion(const Result<exec::Completion>& result, double queue_ms);
  std::string expose(const Gauges& gauges) const;

 private:
  // Upper bounds in seconds of the TTFT histogram; the last bucket is +Inf.
  static constexpr std::array<double, 10> kTtftBounds = {.01, .025, .05, .1, .25, .5, 1, 5, 20, 60};

  mutable std::mutex mutex_;
  std::map<int, uint64_t> n_response_;                     // by HTTP status
  std::map<std::string, uint64_t> n_completion_;           // by outcome
  std::array<uint64_t, kTtftBounds.size() + 1> n_ttft_{};  // by bucket, not cumulated
  double ttft_s_ = 0, queue_s_ = 0, lookup_s_ = 0, load_s_ = 0, compute_s_ = 0;
};

}  // namespace headstart::server
