// exec/ggml_executor.h: LayerExecutor as ggml graphs on the CPU backend.
//
// ggml's results depend on the batch in two places: attention of fewer than 64 rows takes another
// path, and repacked matrices treat rows in groups. Both are made the same for every prefill by
// padding (docs/decisions/0002-batch-invariant-prefill.md); probe_grain() checks it on the model's
// own weights when it is loaded.
#pragma once

#include <memory>

#include "exec/layer_executor.h"
#include "exec/rope_tables.h"
#include "model/model.h"

namespace headstart::exec {

struct GgmlExecutorOptions {
  uint32_t n_threads = 1;
  uint32_t n_token_max = 512;
  // Tests only: K is rotated by ggml in f32 without rounding before, as libllama does, so that
  // logits can be compared bit for bit. Such K,V are never stored.
  bool reference_numerics = false;
};

class GgmlExecutor final : public LayerExecutor {
 public:
  // After model.place_matrices(). Model and tables must outlive the executor. Errors: kExhausted.
  static Result<std::unique_ptr<GgmlExecutor>> open(const model::Model& model, RopeTables& tables,
                                                    const GgmlExecutorOptions& options);
  ~GgmlExecutor() override;

  std::string identity() const override;
  uint32_t grain() const override;
  uint32_t n_token_max() const override;
  uint32_t n_decode_max() const override { return 1; }  // its bits depend on the batch
  Result<void> run(const LayerStep& step) override;

 private:
  struct Impl;
  explicit GgmlExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headstart::exec
