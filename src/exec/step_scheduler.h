// exec/step_scheduler.h: steps of several requests on one executor.
//
// Each request runs on a thread of its own and calls run() for its next step; one of the waiting
// threads computes what plan/step_choice.h chooses, for itself and for others, while the rest wait.
// So a single request costs no change of threads, and answers of several share the reading of the
// weights. What a step computes does not depend on who shares it (exec/layer_executor.h).
//
// While answers run, a slice of a prompt is computed a few layers at a time, and answers have their
// turn between; a request's run() returns when its slice has passed all layers.
//
//   units    seconds
//   threads  run() and Answering from any thread at once
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "exec/layer_executor.h"
#include "model/params.h"
#include "plan/step_choice.h"

namespace headstart::exec {

// One request's next step.
struct StepRequest {
  NumericClass numeric_class = NumericClass::kPrefill;
  std::span<const Token> tokens;  // decode: all are computed; prefill: at least the first, to where
                                  // a slice ends
  uint32_t pos = 0;               // of the first
  // Of a prompt whose slice before was computed: that one's. Nothing: it comes now.
  std::optional<uint64_t> order;
  kv::LiveKv* kv = nullptr;
  kv::Capture* capture = nullptr;
  // Prefill: of the last token, where the slice reaches it. Decode: of all.
  bool want_logits = false;
  std::vector<float>* logits = nullptr;
  AttentionReport* attention = nullptr;
  std::stop_token cancel;
};

struct StepResult {
  uint32_t n_token = 0;  // computed
  double compute_s = 0;  // of a shared step the request's share
  double wait_s = 0;     // before it began, and between its layers
  uint64_t order = 0;    // the step's place among others
};

class StepScheduler {
 public:
  // Executor and clock must outlive it.
  StepScheduler(LayerExecutor& executor, const Clock& clock, const model::ModelParams& params);

  // Errors: those of the executor; kCancelled also while waiting.
  Result<StepResult> run(const StepRequest& request);

  uint32_t n_waiting() const;  // requests whose step is not being computed

  // While it lives, a request generates: others may wait a moment for its next step.
  class Answering {
   public:
    explicit Answering(StepScheduler& scheduler);
    ~Answering();
    Answering(const Answering&) = delete;
    Answering& operator=(const Answering&) = delete;

   private:
    StepScheduler& scheduler_;
  };

 private:
  struct Waiting;
  std::vector<Waiting*> choose(double now_s) const;
  double compute(std::span<Waiting* const> steps);  // seconds
  void compute_prompt(Waiting& step);
  void compute_answers(std::span<Waiting* const> steps);
  void observe(std::span<Waiting* const> steps, double seconds);
  double gather_end_s() const;
  void begin_slice(Waiting& step) const;

  LayerExecutor& executor_;
  const Clock& clock_;
  const uint32_t n_layer_, n_vocab_, d_model_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting*> waiting_;  // of all that are not computed
  bool computing_ = false;
  uint32_t n_answering_ = 0;
  bool after_prefill_ = false;
  double free_since_s_ = 0;  // nothing is computed since then
  uint64_t n_arrived_ = 0, n_prompt_token_ = 0;
  plan::SliceSize slice_size_;
  double decode_s_ = 0;  // of the newest decode steps
  // Of the thread that computes.
  std::vector<Token> tokens_;
  std::vector<uint32_t> positions_;
  std::vector<float> logits_;
};

}  // namespace headstart::exec
