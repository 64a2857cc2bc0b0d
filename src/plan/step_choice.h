// plan/step_choice.h: which of the steps that wait is computed next, with several requests at once.
//
// Answers that are being generated decode together, at most n_decode_max tokens a step. Prompts are
// computed in slices between decode steps, so that running streams keep flowing: never two slices
// in a row while an answer waits, and slices of a size that keeps the gap bounded.
//
//   units    tokens, seconds
//   threads  pure; a SliceSize has one owner
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headstart::plan {

struct WaitingStep {
  bool decode = false;
  uint32_t n_token = 0;  // of a decode step
  // The lowest goes first. Decode steps: the order in which they came. Prompts: prompt_order().
  uint64_t order = 0;
};

// A short prompt overtakes a long one, but none waits for ever: what counts is the tokens that had
// been computed when the prompt came, plus its own.
uint64_t prompt_order(uint64_t n_computed_before, uint64_t n_token);

struct StepQuestion {
  std::span<const WaitingStep> waiting = {};
  uint32_t n_decoding = 0;     // answers under way, waiting or about to wait again
  bool waited_enough = false;  // for those about to wait
  bool after_prefill = false;  // the newest step was a slice of a prompt
  uint32_t n_decode_max = 1;   // tokens of one decode step
};

// Indices of `waiting`: some decode steps, or one prompt, or none where waiting is better.
std::vector<uint32_t> choose_steps(const StepQuestion& question);

// How much of a prompt is computed at once while answers run: as much as takes kGapSteps times what
// a decode step takes, found by trying. Many tokens through few layers, because products of many
// rows cost the least a row: one layer of hundreds of tokens takes no longer than all layers of a
// few.
class SliceSize {
 public:
  static constexpr double kGapSteps = 1.5;
  static constexpr uint32_t kTokensMin = 16;

  // Tokens of the next slice, at most n_max.
  uint32_t n_token(uint32_t n_max) const;
  // Layers of a slice of so many tokens that are computed before answers have their turn.
  uint32_t n_layer(uint32_t n_token) const;
  // So many layers of so many tokens took so long, decode steps take so long.
  void observe(uint32_t n_token, uint32_t n_layer, double slice_s, double decode_s);

 private:
  double work_ = 128;  // layers × (tokens and what a layer costs besides)
};

}  // namespace headstart::plan
