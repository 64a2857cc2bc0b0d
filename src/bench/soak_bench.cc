// Many mixed requests at once in one engine, a third of them cancelled at random: every answer is
// the one that its request gets alone, nothing hangs, memory does not grow.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "base/memory.h"
#include "bench/documents.h"
#include "bench/model_benches.h"
#include "bench/scratch_dir.h"
#include "exec/engine.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kRequests = 2000;
constexpr uint32_t kParallel = 4, kClients = 10;
constexpr uint32_t kPrompts = 24;
constexpr auto kHangs = std::chrono::minutes(5);  // without any request ending

double resident_mib() {
  const ResidentMemory m = resident_memory();
  return static_cast<double>(m.private_bytes + m.file_bytes) / (1 << 20);
}

exec::EngineOptions engine_options(const std::filesystem::path& model, const BenchOptions& o) {
  exec::EngineOptions e;
  e.model_path = model;
  e.n_ctx = 2048;
  e.n_threads = o.n_threads;
  e.operands = o.operands;
  e.reuse = store::ReuseMode::kOff;
  return e;
}

class Soak {
 public:
  static Result<std::unique_ptr<Soak>> open(const std::filesystem::path& model,
                                            const BenchOptions& o) {
    std::unique_ptr<Soak> soak(new Soak);
    HS_ASSIGN_OR_RETURN(const auto alone, exec::Engine::open(engine_options(model, o)));
    HS_RETURN_IF_ERROR(soak->make_requests(*alone));
    exec::EngineOptions e = engine_options(model, o);
    e.n_parallel = kParallel;
    e.reuse = store::ReuseMode::kStrict;
    e.cache_dir = soak->dir_.path() / "kv";
    e.disk_budget_bytes = uint64_t{64} << 20;
    e.ram_budget_bytes = uint64_t{16} << 20;
    HS_ASSIGN_OR_RETURN(soak->engine_, exec::Engine::open(e));
    return soak;
  }

  struct Outcome {
    uint32_t n_answered = 0, n_right = 0, n_cancelled = 0;
    double quarter_mib = 0, end_mib = 0;
  };
  Outcome run(uint32_t n_request) {
    n_request_ = n_request;
    std::vector<std::thread> clients;
    for (uint32_t i = 0; i < kClients; ++i) {
      clients.emplace_back([this, i] { work(i); });
    }
    watch();
    for (std::thread& c : clients) c.join();
    outcome_.end_mib = resident_mib();
    return outcome_;
  }

 private:
  // Beginnings in common, lengths and ways of sampling as they come; what each gets alone.
  Result<void> make_requests(exec::Engine& alone) {
    HS_ASSIGN_OR_RETURN(const std::string text, documents(alone.tokenizer(), 1500));
    const auto tokens = alone.tokenizer().encode(text, true, false);
    for (uint32_t i = 0; i < kPrompts; ++i) {
      exec::CompletionRequest r;
      const size_t n = std::min<size_t>(tokens.size(), 10 + 61 * (i % 7));
      const size_t from = i % 3 * 400;
      r.tokens.push_back(tokens.front());
      for (size_t t = 0; t < n; ++t) r.tokens.push_back(tokens[(from + t) % tokens.size()]);
      r.tokens.push_back(tokens[(from + i) % tokens.size()]);
      r.n_predict = 4 + i % 13;
      r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      r.sampling.seed = i;
      r.n_propose_max = i % 5 == 0 ? 4 : 0;
      HS_ASSIGN_OR_RETURN(const exec::Completion c, alone.complete(r));
      requests_.push_back(std::move(r));
      answers_.push_back(c.tokens);
    }
    return {};
  }

  void work(uint32_t client) {
    std::mt19937 random(client);
    for (;;) {
      const uint32_t i = n_begun_++;
      if (i >= n_request_) return;
      one(i, random);
      const std::lock_guard lock(mutex_);
      if (++n_ended_ == std::max(1u, n_request_ / 4)) outcome_.quarter_mib = resident_mib();
      ended_.notify_one();
    }
  }

  void one(uint32_t i, std::mt19937& random) {
    const auto which = static_cast<uint32_t>(random() % kPrompts);
    exec::CompletionRequest r = requests_[which];
    std::stop_source stop;
    r.cancel = stop.get_token();
    const bool cancels = i % 3 == 0;
    auto n_left = static_cast<uint32_t>(random() % 6);
    if (cancels && n_left == 0) stop.request_stop();
    r.on_text = [&](std::string_view) {
      if (cancels && --n_left == 0) stop.request_stop();
      return true;
    };
    const auto done = engine_->complete(r);
    const std::lock_guard lock(mutex_);
    if (!done.ok() && cancels && done.error().code == Code::kCancelled) {
      ++outcome_.n_cancelled;
      return;
    }
    ++outcome_.n_answered;
    if (done.ok() && done->tokens == answers_[which]) ++outcome_.n_right;
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (n_ended_ < n_request_) {
      const uint32_t before = n_ended_;
      const bool moves = ended_.wait_for(lock, kHangs, [&] { return n_ended_ > before; });
      HS_CHECK(moves, "a request ends");
    }
  }

  ScratchDir dir_;
  std::unique_ptr<exec::Engine> engine_;
  std::vector<exec::CompletionRequest> requests_;
  std::vector<std::vector<Token>> answers_;
  uint32_t n_request_ = 0;
  std::atomic<uint32_t> n_begun_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  uint32_t n_ended_ = 0;
  Outcome outcome_;
};

Row row(const std::string& name, const std::filesystem::path& model, const BenchOptions& o,
        double value, double reference, const char* unit, uint32_t n) {
  return {name, model.stem().string(), o.n_threads, value, reference, unit, n, 0};
}

}  // namespace

Result<std::vector<Row>> bench_soak(const BenchOptions& o) {
  const uint32_t n = o.n_repeat != 0 ? o.n_repeat : kRequests;
  std::vector<Row> rows;
  for (const auto& model : o.models) {
    HS_ASSIGN_OR_RETURN(const auto soak, Soak::open(model, o));
    const Soak::Outcome out = soak->run(n);
    if (out.n_right != out.n_answered) {
      return Error{Code::kCorrupt, fmt::format("{} of {} answers were not those that the requests "
                                               "get alone",
                                               out.n_answered - out.n_right, out.n_answered)};
    }
    rows.push_back(row("right answers of 4 at once, against all answers", model, o, out.n_right,
                       out.n_answered, "answers", n));
    rows.push_back(
        row("requests cancelled, against all", model, o, out.n_cancelled, n, "requests", n));
    rows.push_back(row("memory at the end, against after a quarter", model, o, out.end_mib,
                       out.quarter_mib, "MiB", n));
  }
  return rows;
}

}  // namespace headstart::bench
