#include "exec/executor_choice.h"

#include "base/log.h"
#include "exec/ggml_executor.h"
#include "exec/native_executor.h"

namespace headstart::exec {
namespace {

// Prompts on our kernels, generated tokens on ggml's: both keep K,V in the same form.
class ExecutorPair final : public LayerExecutor {
 public:
  ExecutorPair(std::unique_ptr<LayerExecutor> prefill, std::unique_ptr<LayerExecutor> decode)
      : prefill_(std::move(prefill)), decode_(std::move(decode)) {}

  std::string identity() const override { return prefill_->identity() + "+" + decode_->identity(); }
  uint32_t grain() const override { return prefill_->grain(); }
  uint32_t n_token_max() const override { return prefill_->n_token_max(); }
  Result<void> run(const LayerStep& step) override {
    return (step.numeric_class == NumericClass::kPrefill ? prefill_ : decode_)->run(step);
  }

 private:
  std::unique_ptr<LayerExecutor> prefill_;
  std::unique_ptr<LayerExecutor> decode_;
};

}  // namespace

Result<Kernels> kernels_from_name(std::string_view name) {
  if (name == "auto") return Kernels::kAuto;
  if (name == "native") return Kernels::kNative;
  if (name == "ggml") return Kernels::kGgml;
  return Error{Code::kInvalidArgument,
               "there are no kernels named '" + std::string(name) + "'; use auto, native or ggml"};
}

Result<std::unique_ptr<LayerExecutor>> open_executor(const model::Model& model, RopeTables& tables,
                                                     const ExecutorOptions& options) {
  HS_ASSIGN_OR_RETURN(std::unique_ptr<LayerExecutor> ggml,
                      GgmlExecutor::open(model, tables, {options.n_threads, options.n_token_max}));
  if (options.kernels == Kernels::kGgml) return ggml;
  auto native = NativeExecutor::open(model, tables, {options.n_threads, options.n_token_max});
  if (!native.ok()) {
    if (options.kernels == Kernels::kNative) return native.error();
    spdlog::info("{}", native.error().message);
    return ggml;
  }
  return std::unique_ptr<LayerExecutor>(
      std::make_unique<ExecutorPair>(*std::move(native), std::move(ggml)));
}

}  // namespace headstart::exec
