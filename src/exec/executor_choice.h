// exec/executor_choice.h: which executor computes a model.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/layer_executor.h"
#include "exec/rope_tables.h"
#include "kernels/operands.h"
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
  kernels::PrefillOps prefill = {};           // of native prefill; nulls: the fastest exact ones
  float sparse_attention = 0;                 // share of prefill's attention mass; 0: dense
  std::function<void(double)> progress = {};  // of preparing weights, 0 to 1
  bool read_ahead = true;                     // native: of the next layer's weights
};

// Where kernels and operands are left to us and this model was calibrated (exec/calibration.h),
// takes what was the fastest: one executor for the whole model, whatever a step's length, because
// the bits of two differ. `progress` hears the share of the model hashed.
void take_calibration(const std::filesystem::path& gguf, ExecutorOptions& options,
                      const std::function<void(double)>& progress);

// Model and tables must outlive the executor. Errors: kUnsupported, kExhausted, kInvalidArgument
// (what only native kernels have, on ggml's).
Result<std::unique_ptr<LayerExecutor>> open_executor(model::Model& model, RopeTables& tables,
                                                     const ExecutorOptions& options);

}  // namespace headstart::exec
