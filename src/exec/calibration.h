// exec/calibration.h: how fast each way to compute a model was on this machine, and which of them
// follows from it.
//
// `headstart bench calibrate` measures and keeps it; opening an engine reads it. A kept file is of
// one model, CPU, build and set of allowed instructions: whatever of these changes, it is not
// found.
//
//   units    seconds
//   threads  any; save_calibration() replaces a file in one step
//   source   format: docs/formats/calibration.md
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace headstart::exec {

inline constexpr size_t kCalibrationBytesMax = 64 << 10;
inline constexpr std::string_view kGgmlCandidate = "ggml";

struct Calibration {
  struct Point {
    uint32_t n_token = 0;  // of a suffix
    double s = 0;
  };
  struct Candidate {
    std::string name;            // the operands of native kernels, or kGgmlCandidate
    std::vector<Point> prefill;  // ascending n_token
    double decode_s = 0;         // a token
  };
  uint32_t n_threads = 1;
  std::vector<Candidate> candidates;
};

// The fastest for a prompt of 512 tokens and an answer of 128, of equals the first: one for the
// whole model, because results of two would not have the same bits. Nothing where a candidate lacks
// the point for 512, or there is none.
std::optional<std::string> fastest(const Calibration& calibration, bool native_only);

// The shortest measured suffix from which on `name` is faster than `other` for every longer one
// too. Nothing where there is none, or no such candidate.
std::optional<uint32_t> crossover(const Calibration& calibration, std::string_view name,
                                  std::string_view other);

std::string to_json(const Calibration& calibration);
// Errors: kCorrupt (not of this format and version, or out of its bounds).
Result<Calibration> parse_calibration(std::string_view json);

// Where it is kept: a file for each model, CPU and build. Errors: kInvalidArgument (no home).
Result<std::filesystem::path> calibration_dir();
std::filesystem::path calibration_file(const std::filesystem::path& dir, const Digest& fingerprint);

// Written whole or not at all. Errors: kIo, kExhausted.
Result<void> save_calibration(const std::filesystem::path& file, const Calibration& calibration);
// Nothing where there is no file, or one that is damaged, which is warned of.
std::optional<Calibration> load_calibration(const std::filesystem::path& file);

}  // namespace headstart::exec
