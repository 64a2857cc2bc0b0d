#include "bench/report.h"

#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/cpu.h"
#include "base/memory.h"
#include "bench/eviction_bench.h"
#include "bench/model_benches.h"

namespace headstart::bench {
namespace {

Result<std::vector<Row>> run_eviction(const BenchOptions& options) {
  HS_ASSIGN_OR_RETURN(const auto found, bench_eviction(options.data / "conversation_trace.jsonl"));
  std::vector<Row> rows;
  for (const EvictionRow& r : found) {
    rows.push_back({r.name, "", 1, r.value, r.reference, r.unit, static_cast<uint32_t>(r.n), 0});
  }
  return rows;
}

}  // namespace

const std::vector<Bench>& all_benches() {
  static const std::vector<Bench> benches = {
      {"prefill", "prompt tokens per second against libllama", true, true, true, bench_prefill},
      {"decode", "generated tokens per second against libllama", true, true, true, bench_decode},
      {"attention", "products and attention of prefill against what the core could do", true, true,
       false, bench_attention},
      {"calibrate", "which executor and operands are the fastest here, kept for --kernels auto",
       true, false, false, bench_calibrate},
      {"accuracy", "distance from f32 arithmetic against libllama's", false, false, true,
       bench_accuracy},
      {"lookup", "generated tokens per second with prompt lookup against without", true, false,
       true, bench_lookup},
      {"sparse", "block-sparse prefill against dense", true, false, false, bench_sparse},
      {"parallel", "several requests at once against one alone, and against libllama", true, false,
       true, bench_parallel},
      {"overhead", "the server's share of a warm prompt's first token", true, false, true,
       bench_overhead},
      {"soak", "many requests at once, a third cancelled: right answers, memory", true, false, true,
       bench_soak},
      {"out-of-core", "prefill with less memory than the weights take", true, true, false,
       bench_out_of_core},
      {"reuse", "time to first token with reuse against own cold run", true, false, true,
       bench_reuse},
      {"store", "a cold prompt with the store on against off", true, false, true, bench_store},
      {"load", "loading chunks into the live cache against memcpy", true, false, false, bench_load},
      {"eviction", "hit rate on a request trace against LRU and Belady", false, false, false,
       run_eviction},
  };
  return benches;
}

Result<void> check_options(const Bench& bench, const BenchOptions& options) {
  const std::string name = bench.name;
  if (options.n_repeat != 0 && !bench.repeats) {
    return Error{Code::kInvalidArgument,
                 "--repeat: '" + name + "' gives the same values each time; do without"};
  }
  if (!options.rows.empty() && !bench.takes_rows) {
    return Error{Code::kInvalidArgument, "--rows: '" + name + "' has one length of prompt"};
  }
  if (options.operands != "auto" && !bench.takes_operands) {
    return Error{Code::kInvalidArgument, "--operands: '" + name + "' has its own; do without"};
  }
  for (const uint32_t n : options.rows) {
    if (n < 1 || n > kRowsMax) {
      return Error{Code::kInvalidArgument,
                   "--rows: use 1 to " + std::to_string(kRowsMax) + " tokens"};
    }
  }
  if (options.n_threads < 1 || options.n_threads > 512) {
    return Error{Code::kInvalidArgument, "-t: use 1 to 512 threads"};
  }
  return {};
}

double now_s(uint32_t n_threads) {
  timespec t;
  ::clock_gettime(n_threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double measure_s(uint32_t n_threads, const std::function<void()>& work) {
  const double begin_s = now_s(n_threads);
  work();
  return now_s(n_threads) - begin_s;
}

const char* time_kind(uint32_t n_threads) { return n_threads == 1 ? "cpu" : "wall"; }

double median(std::vector<double> values) {
  HS_CHECK(!values.empty(), "a median of nothing");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Row paired_row(std::string name, const std::filesystem::path& model, uint32_t n_threads,
               std::string unit, const std::vector<double>& values,
               const std::vector<double>& references) {
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / references[i]);
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return {std::move(name),
          model.stem().string(),
          n_threads,
          median(values),
          median(references),
          std::move(unit),
          static_cast<uint32_t>(values.size()),
          (*high - *low) / median(ratios)};
}

std::string libllama_name() {
  const std::string_view variant = HEADSTART_LLAMA_VARIANT;
  if (variant == "avx2") return "libllama built for AVX2";
  return variant == "openblas" ? "libllama with OpenBLAS" : "libllama";
}

void print_table(const std::string& name, const std::vector<Row>& rows) {
  std::printf("%s\n%-66s %-34s %3s %12s %12s %8s %7s %s\n", name.c_str(), "case", "model", "thr",
              "value", "reference", "ratio", "spread", "unit");
  for (const Row& r : rows) {
    std::printf("%-66s %-34.34s %3u %12.4g %12.4g %8.4f %6.1f%% %s (n=%u)\n", r.name.c_str(),
                r.model.c_str(), r.threads, r.value, r.reference, r.ratio(), r.spread * 100,
                r.unit.c_str(), r.n);
  }
}

Result<void> write_json(const std::filesystem::path& file, const std::string& name,
                        const std::vector<Row>& rows) {
  nlohmann::ordered_json out;
  out["name"] = name;
  out["machine"] = {{"cpu", cpu_name()},
                    {"cores", std::thread::hardware_concurrency()},
                    {"memory_bytes", total_memory_bytes()}};
  out["build"] = {{"version", HEADSTART_VERSION},
                  {"compiler", __VERSION__},
                  {"llama", HEADSTART_LLAMA_VARIANT},
                  {"llama_features", llama_print_system_info()}};
  out["rows"] = nlohmann::ordered_json::array();
  for (const Row& r : rows) {
    out["rows"].push_back({{"case", r.name},
                           {"model", r.model},
                           {"threads", r.threads},
                           {"value", r.value},
                           {"reference", r.reference},
                           {"ratio", r.ratio()},
                           {"unit", r.unit},
                           {"n", r.n},
                           {"spread", r.spread}});
  }
  std::ofstream stream(file);
  stream << out.dump(2) << "\n";
  stream.close();
  if (!stream) return Error{Code::kIo, "cannot write " + file.string() + " (--json)"};
  return {};
}

}  // namespace headstart::bench
