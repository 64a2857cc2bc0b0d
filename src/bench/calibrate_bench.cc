// Which executor computes a model fastest on this machine: measured, shown, and kept for engines to
// read.
#include <cstdio>

#include "bench/model_benches.h"
#include "bench/sides.h"
#include "exec/calibration.h"
#include "kernels/operands.h"
#include "model/fingerprint.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kPrefix = 512;
constexpr uint32_t kSuffixes[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
constexpr uint32_t kDecode = 16;

struct Candidate {
  std::string name;
  std::unique_ptr<Ours> side;
  // One sample a round: of every suffix, and of a decoded token.
  std::vector<std::vector<double>> prefill_s =
      std::vector<std::vector<double>>(std::size(kSuffixes));
  std::vector<double> decode_s;
};

class CalibrationRun {
 public:
  static Result<CalibrationRun> open(const std::filesystem::path& path, const BenchOptions& o) {
    CalibrationRun run(path, o.n_threads);
    for (const std::string& name : kernels::exact_operands()) {
      HS_ASSIGN_OR_RETURN(const auto prefill, kernels::prefill_ops(name));
      HS_RETURN_IF_ERROR(run.add(name, exec::Kernels::kNative, prefill));
    }
    HS_RETURN_IF_ERROR(run.add(std::string(exec::kGgmlCandidate), exec::Kernels::kGgml, {}));
    run.tokens_ = random_tokens(kPrefix + kBatch, run.candidates_.back().side->n_vocab());
    return run;
  }

  void measure(uint32_t n_repeat) {
    for (Candidate& c : candidates_) {
      c.side->step(std::span(tokens_).first(kPrefix), 0, exec::NumericClass::kPrefill, false);
    }
    for (uint32_t i = 0; i < n_repeat; ++i) {
      for (size_t length = 0; length < std::size(kSuffixes); ++length) {
        for (Candidate& c : candidates_) c.prefill_s[length].push_back(prefill_s(c, length));
      }
      for (Candidate& c : candidates_) c.decode_s.push_back(decode_s(c));
    }
  }

  exec::Calibration calibration() const {
    exec::Calibration calibration;
    calibration.n_threads = n_threads_;
    for (const Candidate& c : candidates_) {
      exec::Calibration::Candidate kept{c.name, {}, median(c.decode_s)};
      for (size_t i = 0; i < std::size(kSuffixes); ++i) {
        kept.prefill.push_back({kSuffixes[i], median(c.prefill_s[i])});
      }
      calibration.candidates.push_back(std::move(kept));
    }
    return calibration;
  }

  // Each against ggml, the last candidate.
  std::vector<Row> rows() const {
    std::vector<Row> rows;
    const Candidate& ggml = candidates_.back();
    auto add = [&](const std::string& what, const Candidate& c, const std::vector<double>& ours_s,
                   const std::vector<double>& ggml_s, double n_token) {
      std::vector<double> values, references;
      for (const double s : ours_s) values.push_back(n_token / s);
      for (const double s : ggml_s) references.push_back(n_token / s);
      rows.push_back(paired_row(what + ", native " + c.name + ", against ggml", path_, n_threads_,
                                std::string("tok/s ") + time_kind(n_threads_), values, references));
    };
    for (const Candidate& c : candidates_) {
      if (&c == &ggml) break;
      for (size_t i = 0; i < std::size(kSuffixes); ++i) {
        add("prefill " + std::to_string(kSuffixes[i]) + " tokens after " + std::to_string(kPrefix),
            c, c.prefill_s[i], ggml.prefill_s[i], kSuffixes[i]);
      }
      add("decode after " + std::to_string(kPrefix), c, c.decode_s, ggml.decode_s, 1);
    }
    return rows;
  }

 private:
  CalibrationRun(const std::filesystem::path& path, uint32_t n_threads)
      : path_(path), n_threads_(n_threads) {}

  Result<void> add(std::string name, exec::Kernels kernels, const kernels::PrefillOps& prefill) {
    Candidate c;
    c.name = std::move(name);
    HS_ASSIGN_OR_RETURN(c.side, Ours::open(path_, kPrefix + kBatch,
                                           {.n_threads = n_threads_,
                                            .n_token_max = kBatch,
                                            .kernels = kernels,
                                            .prefill = prefill}));
    candidates_.push_back(std::move(c));
    return {};
  }

  double prefill_s(Candidate& c, size_t length) {
    return measure_s(n_threads_, [&] {
      c.side->step(std::span(tokens_).subspan(kPrefix, kSuffixes[length]), kPrefix,
                   exec::NumericClass::kPrefill, true);
    });
  }

  double decode_s(Candidate& c) {
    return measure_s(n_threads_,
                     [&] {
                       for (uint32_t i = 0; i < kDecode; ++i) {
                         c.side->step(std::span(tokens_).subspan(kPrefix + i, 1), kPrefix + i,
                                      exec::NumericClass::kDecode, true);
                       }
                     }) /
           kDecode;
  }

  std::filesystem::path path_;
  uint32_t n_threads_;
  std::vector<Candidate> candidates_;
  std::vector<Token> tokens_;
};

Result<void> keep(const std::filesystem::path& path, const exec::Calibration& calibration) {
  HS_ASSIGN_OR_RETURN(const auto dir, exec::calibration_dir());
  HS_ASSIGN_OR_RETURN(const Digest fingerprint,
                      model::fingerprint(path, dir.parent_path() / "fingerprints"));
  const auto file = exec::calibration_file(dir, fingerprint);
  HS_RETURN_IF_ERROR(exec::save_calibration(file, calibration));
  for (const auto& c : calibration.candidates) {
    const auto from = exec::crossover(calibration, c.name, exec::kGgmlCandidate);
    if (!from) continue;
    std::fprintf(stderr, "%s: native %s beats ggml from suffixes of %u tokens on\n",
                 path.stem().c_str(), c.name.c_str(), *from);
  }
  std::fprintf(stderr, "%s: --kernels auto takes %s (%s)\n", path.stem().c_str(),
               exec::fastest(calibration, false).value_or("what it always did").c_str(),
               file.c_str());
  return {};
}

}  // namespace

Result<std::vector<Row>> bench_calibrate(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(auto run, CalibrationRun::open(path, o));
    run.measure(o.n_repeat != 0 ? o.n_repeat : 5);
    HS_RETURN_IF_ERROR(keep(path, run.calibration()));
    const auto found = run.rows();
    rows.insert(rows.end(), found.begin(), found.end());
  }
  return rows;
}

}  // namespace headstart::bench
