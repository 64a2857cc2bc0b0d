#include "exec/executor_choice.h"

#include "base/log.h"
#include "exec/ggml_executor.h"
#include "exec/native_executor.h"

namespace headstart::exec {
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
