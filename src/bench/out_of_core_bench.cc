// Prefill with less memory than the weights take: with read-ahead of the next layer, without, and
// libllama, each in a process of its own in a control group with that limit.
#include <sys/resource.h>

#include <cinttypes>
#include <cstdio>

#include "base/hash.h"
#include "base/rounding.h"
#include "bench/memory_group.h"
#include "bench/out_of_core.h"
#include "bench/scratch_dir.h"
#include "bench/sides.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kTokens = 2048;
constexpr double kShareOfFile = 0.7;  // the limit; K,V and buffers have to fit in as well

std::string to_text(const Pass& p) {
  char text[160];
  std::snprintf(text, sizeof text, "%.9g %.9g %.9g %" PRIu64 " %016" PRIx64, p.s, p.wait_s,
                p.read_bytes, p.n_fault, p.logits_hash);
  return text;
}

Result<Pass> from_text(const std::string& text) {
  Pass p;
  if (std::sscanf(text.c_str(), "%lg %lg %lg %" SCNu64 " %" SCNx64, &p.s, &p.wait_s, &p.read_bytes,
                  &p.n_fault, &p.logits_hash) != 5) {
    return Error{Code::kCorrupt, "the measured process answered nonsense"};
  }
  return p;
}

// What the process has had read from the disk so far.
double read_bytes() {
  double bytes = 0;
  if (std::FILE* io = std::fopen("/proc/self/io", "r"); io != nullptr) {
    char line[128];
    while (std::fgets(line, sizeof line, io) != nullptr)
      std::sscanf(line, "read_bytes: %lg", &bytes);
    std::fclose(io);
  }
  return bytes;
}

// Seconds that this thread has run or could have run, had a core been free: others may be busy
// here.
double runnable_s() {
  double ran_ns = 0, waited_ns = 0;
  if (std::FILE* stat = std::fopen("/proc/thread-self/schedstat", "r"); stat != nullptr) {
    if (std::fscanf(stat, "%lg %lg", &ran_ns, &waited_ns) != 2) ran_ns = waited_ns = 0;
    std::fclose(stat);
  }
  return (ran_ns + waited_ns) * 1e-9;
}

uint64_t n_major_fault() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_majflt);
}

// Wall time whatever the number of threads: waiting for the disk is what counts. Opening the model
// is not measured.
Result<Pass> measure(uint32_t n_token, const std::function<void(uint32_t pos, uint32_t n)>& step) {
  Pass p;
  const double bytes_before = read_bytes();
  const uint64_t faults_before = n_major_fault();
  const double runnable_before_s = runnable_s();
  p.s = measure_s(2, [&] {
    for (uint32_t pos = 0; pos < n_token; pos += kBatch) step(pos, std::min(kBatch, n_token - pos));
  });
  p.wait_s = p.s - (runnable_s() - runnable_before_s);
  p.read_bytes = read_bytes() - bytes_before;
  p.n_fault = n_major_fault() - faults_before;
  return p;
}

Result<Pass> measure_ours(const PassOptions& o, bool read_ahead) {
  HS_ASSIGN_OR_RETURN(const auto side, Ours::open(o.model, pad_to(o.n_token, kBatch),
                                                  {.n_threads = o.n_threads,
                                                   .n_token_max = kBatch,
                                                   .kernels = exec::Kernels::kNative,
                                                   .read_ahead = read_ahead}));
  const auto tokens = random_tokens(o.n_token, side->n_vocab());
  HS_ASSIGN_OR_RETURN(Pass p, measure(o.n_token, [&](uint32_t pos, uint32_t n) {
                        side->step(std::span(tokens).subspan(pos, n), pos,
                                   exec::NumericClass::kPrefill, pos + n == o.n_token);
                      }));
  p.logits_hash = checksum(std::as_bytes(std::span(side->logits())));
  return p;
}

// Its weights stay mapped: repacked ones would be memory of its own, more than there is.
Result<Pass> measure_libllama(const PassOptions& o) {
  HS_ASSIGN_OR_RETURN(const auto side,
                      Libllama::open(o.model, o.n_threads, pad_to(o.n_token, kBatch), false));
  const auto tokens = random_tokens(o.n_token, o.n_vocab);
  return measure(o.n_token, [&](uint32_t pos, uint32_t n) {
    side->step(std::span(tokens).subspan(pos, n), pos, pos + n == o.n_token);
  });
}

}  // namespace

Result<Pass> run_pass(const PassOptions& o, Runner runner, const MemoryGroup* group) {
  HS_RETURN_IF_ERROR(drop_from_memory(o.model));
  HS_ASSIGN_OR_RETURN(const std::string text, in_child(group, [&]() -> Result<std::string> {
                        auto pass = runner == Runner::kLibllama
                                        ? measure_libllama(o)
                                        : measure_ours(o, runner == Runner::kReadAhead);
                        if (!pass.ok()) return pass.error();
                        return to_text(*pass);
                      }));
  return from_text(text);
}

namespace {

struct Samples {
  std::vector<double> with, without, libllama, unlimited;  // tok/s
  std::vector<double> with_wait_s, without_wait_s, libllama_wait_s;
  std::vector<double> with_mb, without_mb;
};

// One round of all that are compared.
Result<void> add_round(const PassOptions& pass, const MemoryGroup* group, Samples& samples) {
  HS_ASSIGN_OR_RETURN(const Pass with, run_pass(pass, Runner::kReadAhead, group));
  HS_ASSIGN_OR_RETURN(const Pass without, run_pass(pass, Runner::kNoReadAhead, group));
  HS_ASSIGN_OR_RETURN(const Pass libllama, run_pass(pass, Runner::kLibllama, group));
  HS_ASSIGN_OR_RETURN(const Pass unlimited, run_pass(pass, Runner::kReadAhead, nullptr));
  if (with.logits_hash != unlimited.logits_hash || with.logits_hash != without.logits_hash) {
    return Error{Code::kCorrupt, "the answers differ with the memory at hand"};
  }
  samples.with.push_back(pass.n_token / with.s);
  samples.without.push_back(pass.n_token / without.s);
  samples.libllama.push_back(pass.n_token / libllama.s);
  samples.unlimited.push_back(pass.n_token / unlimited.s);
  samples.with_wait_s.push_back(with.wait_s);
  samples.without_wait_s.push_back(without.wait_s);
  samples.libllama_wait_s.push_back(libllama.wait_s);
  samples.with_mb.push_back(with.read_bytes * 1e-6);
  samples.without_mb.push_back(without.read_bytes * 1e-6);
  return {};
}

Result<std::vector<Row>> compare(const std::filesystem::path& path, const PassOptions& pass,
                                 uint32_t n_repeat) {
  const uint64_t file_bytes = std::filesystem::file_size(path);
  const auto limit = static_cast<uint64_t>(kShareOfFile * static_cast<double>(file_bytes));
  const auto group = MemoryGroup::open(limit);
  if (!group.ok()) {
    std::fprintf(stderr, "%s; measured with the model dropped from memory instead\n",
                 group.error().message.c_str());
  }
  Samples s;
  for (uint32_t i = 0; i < n_repeat; ++i) {
    HS_RETURN_IF_ERROR(add_round(pass, group.ok() ? &*group : nullptr, s));
  }
  const std::string memory =
      group.ok() ? std::to_string(limit >> 20) + " of " + std::to_string(file_bytes >> 20) + " MiB"
                 : "cold page cache";
  const std::string name = "prefill " + std::to_string(pass.n_token) + " tokens, " + memory;
  auto row = [&](const std::string& against, const char* unit, const std::vector<double>& values,
                 const std::vector<double>& references) {
    return paired_row(name + ", against " + against, path, pass.n_threads, unit, values,
                      references);
  };
  std::vector<Row> rows = {row("no read-ahead", "tok/s wall", s.with, s.without),
                           row(libllama_name() + ", mapped", "tok/s wall", s.with, s.libllama),
                           row("no limit, cold page cache", "tok/s wall", s.with, s.unlimited),
                           row("no read-ahead", "MB read", s.with_mb, s.without_mb)};
  if (pass.n_threads == 1) {
    rows.push_back(row("no read-ahead", "s asleep", s.with_wait_s, s.without_wait_s));
    rows.push_back(row(libllama_name() + ", mapped", "s asleep", s.with_wait_s, s.libllama_wait_s));
  }
  return rows;
}

}  // namespace

Result<std::vector<Row>> bench_out_of_core(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    // A copy: pages of the file itself may be held by whoever else maps it.
    const ScratchDir dir;
    PassOptions pass{dir.path() / path.filename(), 0, o.n_threads, 0};
    std::filesystem::copy_file(path, pass.model);
    {
      HS_ASSIGN_OR_RETURN(const auto model, model::Model::open(path));
      pass.n_vocab = model->params().n_vocab;
    }
    for (const uint32_t n_token : o.rows_or({kTokens})) {
      pass.n_token = n_token;
      HS_ASSIGN_OR_RETURN(const auto found, compare(path, pass, o.n_repeat != 0 ? o.n_repeat : 3));
      rows.insert(rows.end(), found.begin(), found.end());
    }
  }
  return rows;
}

}  // namespace headstart::bench
