// exec/native_executor.h: LayerExecutor on our own kernels, for prefill.
//
// A layer is computed for all tokens of a step at once, so that each weight is read and dequantised
// once a step. Every row's bits depend on its own token, position and K,V alone (grain 1).
//
//   shapes   outermost first
#pragma once

#include <memory>

#include "exec/layer_executor.h"
#include "exec/rope_tables.h"
#include "model/model.h"

namespace headstart::exec {

struct NativeExecutorOptions {
  uint32_t n_threads = 1;
  uint32_t n_token_max = 512;
};

class NativeExecutor final : public LayerExecutor {
 public:
  // Model and tables must outlive the executor. Errors: kUnsupported (a weight's type, a head size
  // or the architecture's layer; the message says which).
  static Result<std::unique_ptr<NativeExecutor>> open(const model::Model& model, RopeTables& tables,
                                                      const NativeExecutorOptions& options);
  ~NativeExecutor() override;

  std::string identity() const override;
  uint32_t grain() const override { return 1; }
  uint32_t n_token_max() const override;
  // Steps of the prefill class only.
  Result<void> run(const LayerStep& step) override;

 private:
  struct Impl;
  explicit NativeExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headstart::exec
