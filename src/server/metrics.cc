#include "server/metrics.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace headstart::server {
namespace {

class Exposition {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP headstart_{0} {2}\n# TYPE headstart_{0} {1}\n", name, type, help);
  }
  template <class Number>
  void sample(std::string_view name, Number value, std::string_view labels = "") {
    if (labels.empty()) {
      text_ += fmt::format("headstart_{} {}\n", name, value);
    } else {
      text_ += fmt::format("headstart_{}{{{}}} {}\n", name, labels, value);
    }
  }
  template <class Number>
  void single(std::string_view name, std::string_view type, std::string_view help, Number value) {
    family(name, type, help);
    sample(name, value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

using TierStats = store::TierStats;

void expose_tiers(Exposition& out, const store::StoreStats& store) {
  struct Row {
    std::string_view name, type, help;
    uint64_t TierStats::*field;
  };
  static constexpr Row kRows[] = {
      {"cache_chunks", "gauge", "Chunks in the tier.", &TierStats::n_chunk},
      {"cache_bytes", "gauge", "Bytes in the tier.", &TierStats::size_bytes},
      {"cache_budget_bytes", "gauge", "Most bytes in the tier.", &TierStats::budget_bytes},
      {"cache_hits_total", "counter", "Chunks delivered.", &TierStats::n_hit},
      {"cache_misses_total", "counter", "Chunks that had vanished.", &TierStats::n_miss},
      {"cache_corrupt_total", "counter", "Damaged chunks dropped.", &TierStats::n_corrupt},
      {"cache_puts_total", "counter", "Chunks stored.", &TierStats::n_put},
      {"cache_put_failures_total", "counter", "Chunks not stored.", &TierStats::n_put_failed},
      {"cache_evictions_total", "counter", "Chunks evicted.", &TierStats::n_evicted},
  };
  for (const Row& row : kRows) {
    out.family(row.name, row.type, row.help);
    for (const auto& [tier, stats] : store.tiers) {
      out.sample(row.name, stats.*row.field, fmt::format("tier=\"{}\"", tier));
    }
  }
  out.single("store_queue_bytes", "gauge", "Bytes that wait to be stored.", store.queue_bytes);
  out.single("store_dropped_total", "counter", "Chunks dropped because the store was behind.",
             store.n_queue_dropped);
}

void expose_engine(Exposition& out, const exec::EngineStats& stats) {
  out.single("prompt_tokens_total", "counter", "Prompt tokens.", stats.n_prompt_token);
  out.single("cached_tokens_total", "counter", "Prompt tokens that were not computed.",
             stats.n_cached_token);
  out.single("generated_tokens_total", "counter", "Generated tokens.", stats.n_generated_token);
  out.single("proposed_tokens_total", "counter", "Tokens computed on trial while decoding.",
             stats.n_proposed_token);
  out.single("accepted_tokens_total", "counter", "Of these, tokens that were then picked.",
             stats.n_accepted_token);
  out.single("kv_bytes", "gauge", "Live K,V in use.", stats.kv_bytes);
  out.family("kernels_info", "gauge", "What computes.");
  out.sample("kernels_info", 1, fmt::format("kernels=\"{}\"", stats.kernels));
  expose_tiers(out, stats.store);
}

const char* outcome_of(const Result<exec::Completion>& result) {
  if (result.ok()) return "ok";
  return result.error().code == Code::kCancelled ? "cancelled" : "error";
}

}  // namespace

void Metrics::count_response(int http_status) {
  std::lock_guard lock(mutex_);
  ++n_response_[http_status];
}

void Metrics::count_completion(const Result<exec::Completion>& result, double queue_ms) {
  std::lock_guard lock(mutex_);
  ++n_completion_[outcome_of(result)];
  if (!result.ok()) return;
  const double ttft_s = (queue_ms + result->ttft_ms) / 1e3;
  const auto bucket = std::lower_bound(kTtftBounds.begin(), kTtftBounds.end(), ttft_s);
  ++n_ttft_[static_cast<size_t>(bucket - kTtftBounds.begin())];
  ttft_s_ += ttft_s;
  queue_s_ += queue_ms / 1e3;
  lookup_s_ += result->lookup_ms / 1e3;
  load_s_ += result->load_ms / 1e3;
  compute_s_ += result->compute_ms / 1e3;
}

std::string Metrics::expose(const Gauges& gauges) const {
  Exposition out;
  out.single("ready", "gauge", "1 once the model is loaded.", gauges.ready ? 1 : 0);
  out.single("requests_waiting", "gauge", "Requests in the queue.", gauges.n_waiting);
  out.single("requests_running", "gauge", "Requests being computed.", gauges.n_running);
  out.single("connections", "gauge", "Open connections.", gauges.n_connection);

  std::lock_guard lock(mutex_);
  out.family("http_responses_total", "counter", "Responses by HTTP status.");
  for (const auto& [status, n] : n_response_) {
    out.sample("http_responses_total", n, fmt::format("code=\"{}\"", status));
  }
  out.family("completions_total", "counter", "Completions that ran, by outcome.");
  for (const auto& [outcome, n] : n_completion_) {
    out.sample("completions_total", n, fmt::format("outcome=\"{}\"", outcome));
  }
  out.family("ttft_seconds", "histogram", "From acceptance to the first token.");
  uint64_t n_so_far = 0;
  for (size_t i = 0; i < n_ttft_.size(); ++i) {
    n_so_far += n_ttft_[i];
    const std::string bound = i < kTtftBounds.size() ? fmt::format("{}", kTtftBounds[i]) : "+Inf";
    out.sample("ttft_seconds_bucket", n_so_far, fmt::format("le=\"{}\"", bound));
  }
  out.sample("ttft_seconds_sum", ttft_s_);
  out.sample("ttft_seconds_count", n_so_far);
  out.family("ttft_part_seconds_total", "counter", "Parts of ttft_seconds_sum.");
  out.sample("ttft_part_seconds_total", queue_s_, "part=\"queue\"");
  out.sample("ttft_part_seconds_total", lookup_s_, "part=\"lookup\"");
  out.sample("ttft_part_seconds_total", load_s_, "part=\"load\"");
  out.sample("ttft_part_seconds_total", compute_s_, "part=\"compute\"");
  if (gauges.engine) expose_engine(out, *gauges.engine);
  return out.take();
}

}  // namespace headstart::server
