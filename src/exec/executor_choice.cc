#include "exec/executor_choice.h"

#include <string>

#include "base/log.h"
#include "exec/calibration.h"
#include "exec/ggml_executor.h"
#include "exec/native_executor.h"
#include "model/fingerprint.h"

namespace headstart::exec {
void take_calibration(const std::filesystem::path& gguf, ExecutorOptions& options,
                      const std::function<void(double)>& progress) {
  if (options.kernels == Kernels::kGgml || options.prefill.weights != nullptr) return;
  const auto dir = calibration_dir();
  std::error_code error;
  // Hashing a model takes seconds: not where nothing was ever calibrated.
  if (!dir.ok() || std::filesystem::is_empty(*dir, error) || error) return;
  const auto fingerprint = model::fingerprint(gguf, dir->parent_path() / "fingerprints", progress);
  if (!fingerprint.ok()) return;
  const auto calibration = load_calibration(calibration_file(*dir, *fingerprint));
  const bool native_only = options.kernels == Kernels::kNative || options.sparse_attention > 0;
  const auto name = calibration ? fastest(*calibration, native_only) : std::nullopt;
  if (!name) return;
  if (*name == kGgmlCandidate) {
    options.kernels = Kernels::kGgml;
  } else if (const auto ops = kernels::prefill_ops(*name); ops.ok()) {
    options.prefill = *ops;
  }
  spdlog::info("calibrated: {} is the fastest", *name);
}

Result<Kernels> kernels_from_name(std::string_view name) {
  if (name == "auto") return Kernels::kAuto;
  if (name == "native") return Kernels::kNative;
  if (name == "ggml") return Kernels::kGgml;
  return Error{Code::kInvalidArgument,
               "there are no kernels named '" + std::string(name) + "'; use auto, native or ggml"};
}

Result<std::unique_ptr<LayerExecutor>> open_executor(model::Model& model, RopeTables& tables,
                                                     const ExecutorOptions& options) {
  // What was asked for that only native kernels have, and what to do without them.
  const char* wants = nullptr;
  if (options.prefill.weights != nullptr) wants = "--operands";
  if (options.sparse_attention > 0) wants = "sparse attention";
  if (wants != nullptr && options.kernels == Kernels::kGgml) {
    return Error{Code::kInvalidArgument, std::string("ggml's kernels have no choice of ") + wants +
                                             "; use --kernels native"};
  }
  if (options.kernels != Kernels::kGgml) {
    auto native = NativeExecutor::open(model, tables,
                                       {options.n_threads, options.n_token_max, options.prefill,
                                        options.sparse_attention, options.read_ahead});
    if (native.ok()) return std::unique_ptr<LayerExecutor>(*std::move(native));
    if (wants != nullptr || options.kernels == Kernels::kNative) {
      return Error{native.error().code,
                   native.error().message + (wants != nullptr ? std::string("; do without ") + wants
                                                              : "; use --kernels auto")};
    }
    spdlog::info("{}; ggml computes it", native.error().message);
  }
  HS_RETURN_IF_ERROR(model.place_matrices(options.progress));
  HS_ASSIGN_OR_RETURN(std::unique_ptr<LayerExecutor> ggml,
                      GgmlExecutor::open(model, tables, {options.n_threads, options.n_token_max}));
  return ggml;
}

}  // namespace headstart::exec
