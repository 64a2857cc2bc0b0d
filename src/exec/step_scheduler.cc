#include "exec/step_scheduler.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>
#include <numeric>

#include "plan/prefill_plan.h"

namespace headstart::exec {
namespace {

// What answers wait for others that are about to ask for their next token: sampling takes a few
// milliseconds at most, and a client that does not read never holds its request up.
constexpr double kGatherS = 20e-3;

}  // namespace

struct StepScheduler::Waiting {
  const StepRequest& request;
  plan::WaitingStep step;
  double since_s = 0;
  bool computing = false;
  bool done = false;
  Result<void> outcome = {};
  StepResult result = {};
  // Of a prompt's slice that has begun, whose tokens `result` counts: the layers that this step
  // computes, and what has come out of those before.
  uint32_t layer_first = 0, layer_end = 0;
  std::optional<HiddenStates> hidden = {};
};

StepScheduler::StepScheduler(LayerExecutor& executor, const Clock& clock,
                             const model::ModelParams& params)
    : executor_(executor),
      clock_(clock),
      n_layer_(params.n_layer),
      n_vocab_(params.n_vocab),
      d_model_(params.d_model) {}

StepScheduler::Answering::Answering(StepScheduler& scheduler) : scheduler_(scheduler) {
  const std::lock_guard lock(scheduler_.mutex_);
  ++scheduler_.n_answering_;
}

StepScheduler::Answering::~Answering() {
  const std::lock_guard lock(scheduler_.mutex_);
  --scheduler_.n_answering_;
  scheduler_.changed_.notify_all();
}

Result<StepResult> StepScheduler::run(const StepRequest& request) {
  const auto n_token = static_cast<uint32_t>(request.tokens.size());
  const bool decode = request.numeric_class == NumericClass::kDecode;
  Waiting own{.request = request, .step = {decode, n_token, 0}};
  const std::stop_callback wake(request.cancel, [this] {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  own.since_s = clock_.now_s();
  const uint64_t order = decode ? n_arrived_++ : plan::prompt_order(n_prompt_token_, n_token);
  own.step.order = own.result.order = request.order.value_or(order);
  waiting_.push_back(&own);
  while (!own.done) {
    if (!own.computing && request.cancel.stop_requested()) {
      std::erase(waiting_, &own);
      changed_.notify_all();
      return Error{Code::kCancelled, "cancelled"};
    }
    if (computing_) {
      changed_.wait(lock);
      continue;
    }
    const double now_s = clock_.now_s();
    const auto chosen = choose(now_s);
    if (chosen.empty()) {
      const double left_s = std::max(gather_end_s() - now_s, 1e-4);
      changed_.wait_for(lock, std::chrono::duration<double>(left_s));
      continue;
    }
    computing_ = true;
    for (Waiting* step : chosen) {
      step->computing = true;
      step->result.wait_s += now_s - step->since_s;
      if (!step->step.decode) begin_slice(*step);
      std::erase(waiting_, step);
    }
    lock.unlock();
    const double seconds = compute(chosen);
    lock.lock();
    free_since_s_ = clock_.now_s();
    observe(chosen, seconds);
    computing_ = false;
    for (Waiting* step : chosen) {
      step->computing = false;
      step->done = step->step.decode || !step->outcome.ok() || step->layer_end == n_layer_;
      if (step->done) continue;
      step->layer_first = step->layer_end;
      step->since_s = free_since_s_;
      waiting_.push_back(step);
    }
    changed_.notify_all();
  }
  if (!own.outcome.ok()) return own.outcome.error();
  return own.result;
}

uint32_t StepScheduler::n_waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(waiting_.size());
}

// Until then those that wait, answers before prompts, wait for answers that are about to come.
double StepScheduler::gather_end_s() const {
  const bool any_decode = std::ranges::any_of(waiting_, [](auto* w) { return w->step.decode; });
  double first_s = std::numeric_limits<double>::max();
  for (const Waiting* w : waiting_) {
    if (w->step.decode == any_decode) first_s = std::min(first_s, w->since_s);
  }
  return std::max(first_s, free_since_s_) + kGatherS;
}

// Sets what of a prompt is computed next: alone, all layers of as many tokens as fit; beside
// answers, or where its slice began beside them, what the slice's size says.
void StepScheduler::begin_slice(Waiting& step) const {
  const StepRequest& r = step.request;
  const uint32_t n_max = executor_.n_token_max();
  if (step.layer_first == 0) {
    const auto n_prompt = r.pos + static_cast<uint32_t>(r.tokens.size());
    const uint32_t n_token = n_answering_ == 0 ? n_max : slice_size_.n_token(n_max);
    step.result.n_token = plan::slice_end(r.pos, n_prompt, executor_.grain(), n_token) - r.pos;
  }
  const uint32_t n_layer = n_answering_ == 0 ? n_layer_ : slice_size_.n_layer(step.result.n_token);
  step.layer_end = step.layer_first + std::min(n_layer, n_layer_ - step.layer_first);
}

std::vector<StepScheduler::Waiting*> StepScheduler::choose(double now_s) const {
  std::vector<plan::WaitingStep> steps;
  for (const Waiting* w : waiting_) steps.push_back(w->step);
  std::vector<Waiting*> chosen;
  for (const uint32_t i : plan::choose_steps({.waiting = steps,
                          .n_decoding = n_answering_,
                          .waited_enough = now_s >= gather_end_s(),
                          .after_prefill = after_prefill_,
                          .n_decode_max = executor_.n_decode_max()})) {
    chosen.push_back(waiting_[i]);
  }
  return chosen;
}

double StepScheduler::compute(std::span<Waiting* const> steps) {
  const double begin_s = clock_.now_s();
  try {
    if (steps.front()->step.decode) {
      compute_answers(steps);
    } else {
      compute_prompt(*steps.front());
    }
  } catch (const std::bad_alloc&) {
    for (Waiting* step : steps) {
      step->outcome = Error{Code::kExhausted, "no memory to compute; use a smaller -b or -c"};
    }
  }
  const double seconds = clock_.now_s() - begin_s;
  uint32_t n_token = 0;
  for (const Waiting* step : steps) n_token += step->result.n_token;
  for (Waiting* step : steps) {
    step->result.compute_s += seconds * step->result.n_token / std::max(1u, n_token);
  }
  return seconds;
}

void StepScheduler::compute_prompt(Waiting& waiting) {
  const StepRequest& r = waiting.request;
  const uint32_t n_token = waiting.result.n_token;
  const bool ends_prompt = n_token == r.tokens.size();
  if (waiting.layer_end < n_layer_ && !waiting.hidden) {
    waiting.hidden.emplace(r.pos, n_token, d_model_);
  }
  positions_.resize(n_token);
  std::iota(positions_.begin(), positions_.end(), r.pos);
  LayerStep s;
  s.layer_first = waiting.layer_first;
  s.layer_end = waiting.layer_end;
  s.tokens = r.tokens.first(n_token);
  s.positions = positions_;
  s.sequences = {{n_token, r.kv, r.capture}};
  s.hidden = waiting.hidden ? &*waiting.hidden : nullptr;
  s.want_logits = r.want_logits && ends_prompt && waiting.layer_end == n_layer_ ? WantLogits::kLast
                                                                                : WantLogits::kNone;
  s.logits = r.logits;
  s.cancel = r.cancel;
  s.attention = r.attention;
  waiting.outcome = executor_.run(s);
}

void StepScheduler::compute_answers(std::span<Waiting* const> steps) {
  LayerStep s;
  s.layer_end = n_layer_;
  s.numeric_class = NumericClass::kDecode;
  s.want_logits = WantLogits::kAll;
  tokens_.clear();
  positions_.clear();
  for (Waiting* step : steps) {
    const StepRequest& r = step->request;
    step->result.n_token = static_cast<uint32_t>(r.tokens.size());
    tokens_.insert(tokens_.end(), r.tokens.begin(), r.tokens.end());
    for (uint32_t i = 0; i < r.tokens.size(); ++i) positions_.push_back(r.pos + i);
    s.sequences.push_back({step->result.n_token, r.kv, r.capture});
  }
  s.tokens = tokens_;
  s.positions = positions_;
  s.logits = steps.size() == 1 ? steps.front()->request.logits : &logits_;
  const auto outcome = executor_.run(s);
  auto row = logits_.begin();
  for (Waiting* step : steps) {
    step->outcome = outcome;
    if (!outcome.ok() || steps.size() == 1) continue;
    const auto end = row + static_cast<std::ptrdiff_t>(size_t{step->result.n_token} * n_vocab_);
    step->request.logits->assign(row, end);
    row = end;
  }
}

// What the next choices go by.
void StepScheduler::observe(std::span<Waiting* const> steps, double seconds) {
  const Waiting& first = *steps.front();
  after_prefill_ = !first.step.decode;
  if (first.step.decode) {
    decode_s_ = decode_s_ == 0 ? seconds : decode_s_ + (seconds - decode_s_) / 8;
    return;
  }
  if (!first.outcome.ok()) return;
  const uint32_t n_token = first.result.n_token;
  if (first.layer_first == 0) n_prompt_token_ += n_token;
  // Of the last layer often K and V alone are computed: too little to learn from it.
  const bool ends_early = first.layer_end == n_layer_ && first.layer_first > 0;
  if (n_answering_ > 0 && !ends_early) {
    slice_size_.observe(n_token, first.layer_end - first.layer_first, seconds, decode_s_);
  }
}

}  // namespace headstart::exec
