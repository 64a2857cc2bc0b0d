#include "exec/executor_choice.h"

#include "base/log.h"
#include "exec/calibration.h"
#include "exec/ggml_executor.h"
#include "exec/native_executor.h"
#include "kernels/target.h"
#include "kernels/tile_bf16.h"
#include "kernels/tile_f32.h"
#include "model/fingerprint.h"

namespace headstart::exec {
namespace {

struct Operands {
  const char* name;
  const kernels::TileOps* tile;  // null: this CPU or --cpu lacks it
};

std::vector<Operands> all_operands() {
  const bool bf16 = kernels::target_allowed(kernels::Target::kAvx512Bf16);
  return {{"f32", &kernels::tile_ops_f32()},
          {"bf16", bf16 ? kernels::tile_ops_avx512bf16() : nullptr}};
}

}  // namespace

Result<const kernels::TileOps*> tile_from_operands(std::string_view name) {
  if (name == "auto") return static_cast<const kernels::TileOps*>(nullptr);
  std::string names = "auto";
  for (const Operands& o : all_operands()) {
    if (name == o.name && o.tile != nullptr) return o.tile;
    if (name == o.name) {
      return Error{Code::kUnsupported, "this CPU multiplies no " + std::string(name) +
                                           ", or --cpu excludes it; use --operands auto"};
    }
    names += std::string(", ") + o.name;
  }
  return Error{Code::kInvalidArgument,
               "--operands: there are no '" + std::string(name) + "'; use one of " + names};
}

std::vector<std::string> operand_names() {
  std::vector<std::string> names;
  for (const Operands& o : all_operands()) {
    if (o.tile != nullptr) names.push_back(o.name);
  }
  return names;
}

void take_calibration(const std::filesystem::path& gguf, ExecutorOptions& options,
                      const std::function<void(double)>& progress) {
  if (options.kernels == Kernels::kGgml || options.tile != nullptr) return;
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
  } else if (const auto tile = tile_from_operands(*name); tile.ok()) {
    options.tile = *tile;
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
  const bool sparse = options.sparse_attention > 0;
  if (sparse && options.kernels == Kernels::kGgml) {
    return Error{Code::kInvalidArgument,
                 "ggml's kernels attend to all keys; sparse attention needs --kernels native"};
  }
  if (options.tile != nullptr && options.kernels == Kernels::kGgml) {
    return Error{Code::kInvalidArgument,
                 "ggml's kernels choose their own operands; --operands needs --kernels native"};
  }
  if (options.kernels != Kernels::kGgml) {
    auto native = NativeExecutor::open(model, tables,
                                       {options.n_threads, options.n_token_max, options.tile,
                                        options.sparse_attention, options.read_ahead});
    if (native.ok()) return std::unique_ptr<LayerExecutor>(*std::move(native));
    if (sparse || options.kernels == Kernels::kNative) {
      return Error{native.error().code,
                   native.error().message +
                       (sparse ? "; do without sparse attention" : "; use --kernels auto")};
    }
    spdlog::info("{}; ggml computes it", native.error().message);
  }
  HS_RETURN_IF_ERROR(model.place_matrices(options.progress));
  HS_ASSIGN_OR_RETURN(std::unique_ptr<LayerExecutor> ggml,
                      GgmlExecutor::open(model, tables, {options.n_threads, options.n_token_max}));
  return ggml;
}

}  // namespace headstart::exec
