// exec/executor_choice.h: which executor computes a model.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "exec/layer_executor.h"
#include "exec/rope_tables.h"
#include "kernels/tile.h"
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
  const kernels::TileOps* tile = nullptr;     // of native prefill; null: the fastest there is
  float sparse_attention = 0;                 // share of prefill's attention mass; 0: dense
  std::function<void(double)> progress = {};  // of preparing weights, 0 to 1
  bool read_ahead = true;                     // native: of the next layer's weights
};

// Model and tables must outlive the executor. Errors: kUnsupported, kExhausted, kInvalidArgument
// (sparse attention on ggml's kernels).
Result<std::unique_ptr<LayerExecutor>> open_executor(model::Model& model, RopeTables& tables,
                                                     const ExecutorOptions& options);

}  // namespace headstart::exec
