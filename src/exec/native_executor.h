// exec/native_executor.h: LayerExecutor on our own kernels.
//
// A layer is computed for all tokens of a step at once, so that each weight is read once a step. In
// both classes a row's bits depend on its own token, position and K,V alone: not on the other
// tokens of the step, not on the number of threads. With block-sparse attention, prefill's depend
// on the step's other tokens in the same block of 128 positions too: that is the grain.
//
//   prefill   f32 or bf16 rows times dequantised panels, or int8 rows times the file's integers:
//             kernels/gemm.h
//   decode    1 to 8 rows, quantised, times the weights where they lie: kernels/matvec.h
//
//   shapes   outermost first
#pragma once

#include <memory>

#include "exec/layer_executor.h"
#include "exec/rope_tables.h"
#include "kernels/operands.h"
#include "model/model.h"

namespace headstart::exec {

struct NativeExecutorOptions {
  uint32_t n_threads = 1;
  uint32_t n_token_max = 512;
  kernels::PrefillOps prefill = {};  // nulls: the fastest exact ones that this CPU has
  float sparse_attention = 0;        // share of the mass that prefill attends to; 0: dense
  bool read_ahead = true;            // of the next layer's weights
};

class NativeExecutor final : public LayerExecutor {
 public:
  // Model and tables must outlive the executor. Errors: kUnsupported (a weight's type, a head size
  // or the architecture's layer; the message says which).
  static Result<std::unique_ptr<NativeExecutor>> open(const model::Model& model, RopeTables& tables,
                                                      const NativeExecutorOptions& options);
  ~NativeExecutor() override;

  static std::string revision();  // changes with the bits
  std::string identity() const override;
  uint32_t grain() const override;
  uint32_t n_token_max() const override;
  uint32_t n_decode_max() const override;
  Result<void> run(const LayerStep& step) override;

 private:
  struct Impl;
  explicit NativeExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headstart::exec
