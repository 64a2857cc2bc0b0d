#include "plan/step_choice.h"

#include <algorithm>
#include <cmath>

namespace headstart::plan {
namespace {

// Preparing a layer's weights for a slice costs as much as this many of its tokens: measured on
// SmolLM2, 2.8 ms for 16 tokens and 43 ms for 512.
constexpr double kLayerTokens = 16;
constexpr double kWorkMin = SliceSize::kTokensMin + kLayerTokens, kWorkMax = 1 << 24;

std::vector<uint32_t> in_order(const StepQuestion& q, bool decode) {
  std::vector<uint32_t> steps;
  for (uint32_t i = 0; i < q.waiting.size(); ++i) {
    if (q.waiting[i].decode == decode) steps.push_back(i);
  }
  std::ranges::stable_sort(steps, {}, [&](uint32_t i) { return q.waiting[i].order; });
  return steps;
}

// As many as fit, at least the first.
std::vector<uint32_t> fitting(const StepQuestion& q, const std::vector<uint32_t>& steps) {
  std::vector<uint32_t> chosen;
  uint32_t n_token = 0;
  for (const uint32_t i : steps) {
    if (!chosen.empty() && n_token + q.waiting[i].n_token > q.n_decode_max) continue;
    n_token += q.waiting[i].n_token;
    chosen.push_back(i);
  }
  return chosen;
}

}  // namespace

uint64_t prompt_order(uint64_t n_computed_before, uint64_t n_token) {
  return n_computed_before + n_token;
}

std::vector<uint32_t> choose_steps(const StepQuestion& q) {
  const auto decode = in_order(q, true), prompts = in_order(q, false);
  const bool prompt_is_due = !prompts.empty() && (!q.after_prefill || q.n_decoding == 0);
  if (prompt_is_due) return {prompts.front()};
  const bool all_wait = decode.size() >= q.n_decoding || q.waited_enough;
  if (!decode.empty() && all_wait) return fitting(q, decode);
  // Nobody who generates comes back: a stalled client must not stop the prompts.
  if (decode.empty() && !prompts.empty() && q.waited_enough) return {prompts.front()};
  return {};
}

uint32_t SliceSize::n_token(uint32_t n_max) const {
  const double n = std::clamp<double>(work_ - kLayerTokens, kTokensMin, kWorkMax);
  return std::min(n_max, static_cast<uint32_t>(n));
}

uint32_t SliceSize::n_layer(uint32_t n_token) const {
  return std::max(1u, static_cast<uint32_t>(work_ / (n_token + kLayerTokens)));
}

void SliceSize::observe(uint32_t n_token, uint32_t n_layer, double slice_s, double decode_s) {
  if (n_token == 0 || n_layer == 0 || slice_s <= 0 || decode_s <= 0) return;
  const double work = (n_token + kLayerTokens) * n_layer;
  // A half or twice at most: one step that was held up says little.
  work_ = std::clamp(work * kGapSteps * decode_s / slice_s, work_ / 2, work_ * 2);
  work_ = std::clamp(work_, kWorkMin, kWorkMax);
}

}  // namespace headstart::plan
