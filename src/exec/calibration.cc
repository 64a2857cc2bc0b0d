#include "exec/calibration.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/disk.h"
#include "base/log.h"
#include "base/paths.h"
#include "exec/executor_choice.h"
#include "exec/native_executor.h"
#include "kernels/operands.h"
#include "kernels/rope.h"

namespace headstart::exec {
namespace fs = std::filesystem;
namespace {

constexpr int kVersion = 1;
constexpr size_t kCandidatesMax = 8;
constexpr size_t kPointsMax = 64;
constexpr size_t kNameBytesMax = 32;
constexpr uint32_t kTokensMax = 1 << 20;
constexpr double kSecondsMax = 1e6;

// A request between a chat's and a document's: neither prefill nor decode decides alone.
constexpr uint32_t kPromptTokens = 512;
constexpr double kAnswerTokens = 128;

std::optional<double> prefill_s(const Calibration::Candidate& c, uint32_t n_token) {
  for (const Calibration::Point& p : c.prefill) {
    if (p.n_token == n_token) return p.s;
  }
  return std::nullopt;
}

const Calibration::Candidate* find(const Calibration& c, std::string_view name) {
  for (const Calibration::Candidate& candidate : c.candidates) {
    if (candidate.name == name) return &candidate;
  }
  return nullptr;
}

Error corrupt(const std::string& what) { return {Code::kCorrupt, "a calibration " + what}; }

Result<double> seconds(const nlohmann::json& value) {
  const double s = value.is_number() ? value.get<double>() : -1;
  if (!std::isfinite(s) || s <= 0 || s > kSecondsMax) return corrupt("has a time that is none");
  return s;
}

Result<Calibration::Candidate> parse_candidate(const nlohmann::json& value) {
  if (!value.is_object() || !value.contains("name") || !value["name"].is_string() ||
      !value.contains("prefill_s") || !value["prefill_s"].is_array() ||
      value["prefill_s"].size() > kPointsMax || !value.contains("decode_s")) {
    return corrupt("has an incomplete candidate");
  }
  Calibration::Candidate c;
  c.name = value["name"].get<std::string>();
  if (c.name.empty() || c.name.size() > kNameBytesMax) return corrupt("has a name that is none");
  HS_ASSIGN_OR_RETURN(c.decode_s, seconds(value["decode_s"]));
  for (const nlohmann::json& point : value["prefill_s"]) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number_unsigned()) {
      return corrupt("has a point that is none");
    }
    const uint64_t n_token = point[0].get<uint64_t>();
    const uint64_t least = c.prefill.empty() ? 1 : c.prefill.back().n_token + uint64_t{1};
    if (n_token < least || n_token > kTokensMax) return corrupt("has points out of order");
    HS_ASSIGN_OR_RETURN(const double s, seconds(point[1]));
    c.prefill.push_back({static_cast<uint32_t>(n_token), s});
  }
  return c;
}

}  // namespace

std::optional<std::string> fastest(const Calibration& calibration, bool native_only) {
  std::optional<std::string> best;
  double best_s = 0;
  for (const Calibration::Candidate& c : calibration.candidates) {
    if (native_only && c.name == kGgmlCandidate) continue;
    const auto prompt_s = prefill_s(c, kPromptTokens);
    if (!prompt_s) return std::nullopt;
    const double s = *prompt_s + kAnswerTokens * c.decode_s;
    if (best && s >= best_s) continue;
    best = c.name;
    best_s = s;
  }
  return best;
}

std::optional<uint32_t> crossover(const Calibration& calibration, std::string_view name,
                                  std::string_view other) {
  const auto *const a = find(calibration, name), *const b = find(calibration, other);
  if (a == nullptr || b == nullptr) return std::nullopt;
  std::optional<uint32_t> shortest;
  for (auto p = a->prefill.rbegin(); p != a->prefill.rend(); ++p) {
    const auto other_s = prefill_s(*b, p->n_token);
    if (!other_s || p->s >= *other_s) break;
    shortest = p->n_token;
  }
  return shortest;
}

std::string to_json(const Calibration& calibration) {
  nlohmann::ordered_json out = {{"version", kVersion},
                                {"cpu", cpu_name()},
                                {"threads", calibration.n_threads},
                                {"candidates", nlohmann::ordered_json::array()}};
  for (const Calibration::Candidate& c : calibration.candidates) {
    nlohmann::ordered_json points = nlohmann::ordered_json::array();
    for (const Calibration::Point& p : c.prefill) points.push_back({p.n_token, p.s});
    out["candidates"].push_back(
        {{"name", c.name}, {"prefill_s", std::move(points)}, {"decode_s", c.decode_s}});
  }
  return out.dump(2) + "\n";
}

Result<Calibration> parse_calibration(std::string_view json) {
  if (json.size() > kCalibrationBytesMax) return corrupt("has more than 64 KiB");
  const auto in = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!in.is_object() || !in.contains("version") || in["version"] != kVersion) {
    return corrupt("is not of version " + std::to_string(kVersion));
  }
  if (!in.contains("threads") || !in["threads"].is_number_unsigned() || in["threads"] < 1u ||
      in["threads"] > 512u || !in.contains("candidates") || !in["candidates"].is_array() ||
      in["candidates"].empty() || in["candidates"].size() > kCandidatesMax) {
    return corrupt("lacks threads or candidates");
  }
  Calibration c;
  c.n_threads = in["threads"].get<uint32_t>();
  for (const nlohmann::json& candidate : in["candidates"]) {
    HS_ASSIGN_OR_RETURN(Calibration::Candidate parsed, parse_candidate(candidate));
    if (find(c, parsed.name) != nullptr) return corrupt("has a candidate twice");
    c.candidates.push_back(std::move(parsed));
  }
  return c;
}

Result<fs::path> calibration_dir() {
  HS_ASSIGN_OR_RETURN(const fs::path home, cache_home());
  return home / "calibration";
}

fs::path calibration_file(const fs::path& dir, const Digest& fingerprint) {
  std::string machine = cpu_name() + "|" HEADSTART_VERSION "|" HEADSTART_GGML_KEY "|" +
                        NativeExecutor::revision() + "|" + kernels::target_name();
  for (const std::string& name : kernels::exact_operands()) machine += "|" + name;
  const Digest key =
      Sha256().update(std::as_bytes(std::span(fingerprint))).update(machine).finish();
  return dir / (to_hex(key).substr(0, 32) + ".json");
}

Result<void> save_calibration(const fs::path& file, const Calibration& calibration) {
  PosixDisk disk;
  const std::string text = to_json(calibration);
  const fs::path beside = file.string() + ".tmp" + std::to_string(::getpid());
  HS_RETURN_IF_ERROR(disk.make_private_dir(file.parent_path()));
  HS_RETURN_IF_ERROR(disk.write_durable(beside, std::as_bytes(std::span(text))));
  return disk.rename_durable(beside, file);
}

std::optional<Calibration> load_calibration(const fs::path& file) {
  PosixDisk disk;
  auto read = [&]() -> Result<Calibration> {
    HS_ASSIGN_OR_RETURN(const auto in, disk.open(file));
    if (in->size_bytes() > kCalibrationBytesMax) return corrupt("has more than 64 KiB");
    std::string text(in->size_bytes(), '\0');
    HS_RETURN_IF_ERROR(in->read_at(0, std::as_writable_bytes(std::span(text))));
    return parse_calibration(text);
  };
  auto calibration = read();
  if (calibration.ok()) return *std::move(calibration);
  if (calibration.error().code != Code::kNotFound) {
    spdlog::warn("{} is ignored: {}; `headstart bench calibrate` makes it anew", file.string(),
                 calibration.error().message);
  }
  return std::nullopt;
}

}  // namespace headstart::exec
