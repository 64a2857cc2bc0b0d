// server/prompt_progress.h: how far a prompt has been prefilled, and how often a client is told.
//
//   units    tokens; time_ms from the start of computing
//   threads  one owner
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace headstart::server {

struct PromptProgress {
  uint32_t n_total = 0;
  uint32_t n_cached = 0;  // not computed
  uint32_t n_done = 0;    // cached and computed
  double time_ms = 0;
};

// Lets the first and the last through, and of the others the newest, at most one an interval: small
// slices would otherwise cost more in events than in computing.
class ProgressPace {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit ProgressPace(std::chrono::milliseconds interval) : interval_(interval) {}

  std::optional<PromptProgress> due(const std::optional<PromptProgress>& news, Time now) {
    if (news) pending_ = news;
    if (!pending_) return std::nullopt;
    const bool last = pending_->n_done == pending_->n_total;
    if (!last && now < next_at_) return std::nullopt;
    next_at_ = now + interval_;
    return std::exchange(pending_, std::nullopt);
  }

 private:
  const std::chrono::milliseconds interval_;
  std::optional<PromptProgress> pending_;
  Time next_at_ = Time::min();
};

}  // namespace headstart::server
