// bench/report.h: what a benchmark says: rows of one value against one reference, as table and
// JSON.
//
// Both sides of a row are measured in the same run, alternating; figures are medians, and the
// spread of the ratio is kept. docs/formats/bench.md describes the JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace headstart::bench {

struct Row {
  std::string name;   // "case" in JSON; names the reference
  std::string model;  // empty where none takes part
  uint32_t threads = 1;
  double value = 0;
  double reference = 0;
  std::string unit;
  uint32_t n = 1;     // paired runs
  double spread = 0;  // (max - min) / median over the ratios of the pairs
  double ratio() const { return reference == 0 ? 0 : value / reference; }
};

inline constexpr uint32_t kRowsMax = 131072;

struct BenchOptions {
  std::vector<std::filesystem::path> models;
  std::filesystem::path data;  // benchmark data, may be absent
  uint32_t n_threads = 1;
  std::string operands = "auto";    // of our prefill: kernels/operands.h
  uint32_t n_repeat = 0;            // 0: the bench's own
  std::vector<uint32_t> rows = {};  // prompt lengths in tokens; empty: the bench's own
  std::vector<uint32_t> rows_or(std::vector<uint32_t> own) const {
    return rows.empty() ? std::move(own) : rows;
  }
};

struct Bench {
  const char* name;
  const char* what;
  bool repeats;         // takes --repeat; the others give the same value each time
  bool takes_rows;      // takes --rows
  bool takes_operands;  // takes --operands
  Result<std::vector<Row>> (*run)(const BenchOptions& options);
};
const std::vector<Bench>& all_benches();
// Errors: kInvalidArgument (an option that this bench does not take, or out of range).
Result<void> check_options(const Bench& bench, const BenchOptions& options);

// Seconds since some moment: process CPU time at one thread, because others may be busy here, else
// wall time.
double now_s(uint32_t n_threads);
double measure_s(uint32_t n_threads, const std::function<void()>& work);
const char* time_kind(uint32_t n_threads);  // "cpu" or "wall"

double median(std::vector<double> values);
// A row from paired samples, value[i] measured next to reference[i].
Row paired_row(std::string name, const std::filesystem::path& model, uint32_t n_threads,
               std::string unit, const std::vector<double>& values,
               const std::vector<double>& references);

// The reference's name: libllama, and how it was built where that is not the usual way.
std::string libllama_name();

void print_table(const std::string& name, const std::vector<Row>& rows);
Result<void> write_json(const std::filesystem::path& file, const std::string& name,
                        const std::vector<Row>& rows);

}  // namespace headstart::bench
