// exec/executor_choice.h: which executor computes which numeric class of a model.
#pragma once

#include <memory>
#include <string_view>

#include "exec/layer_executor.h"
#include "exec/rope_tables.h"
#include "model/model.h"

namespace headstart::exec {

enum class Kernels : uint8_t {
  kAuto,    // native where they can compute the model, else ggml
  kNative,  // an error where they cannot
  kGgml,
};

// Errors: kInvalidArgument, listing the names.
Result<Kernels> kernels_from_name(std::string_view name);

struct ExecutorOptions {
  uint32_t n_threads = 1;
  uint32_t n_token_max = 512;
  Kernels kernels = Kernels::kAuto;
};

// Model and tables must outlive the executor. Errors: kUnsupported, kExhausted.
Result<std::unique_ptr<LayerExecutor>> open_executor(const model::Model& model, RopeTables& tables,
                                                     const ExecutorOptions& options);

}  // namespace headstart::exec
