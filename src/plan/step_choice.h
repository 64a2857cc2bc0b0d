// plan/step_choice.h: which of the steps that wait is computed next, with several requests at once.
//
// Answers that are being generated decode together, at most n_decode_max tokens a step. Prompts are
// computed in slices between decode steps, so that running streams keep flowing: never two slices
// in a row while an answer waits, and slices of a length that keeps the gap bounded.
//
//   units    tokens, seconds
//   threads  pure; a SliceLength has one owner
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

// How many prompt tokens are computed at once while answers run: as many as take kGapSteps times
// what a decode step takes, found by trying.
class SliceLength {
 public:
  static constexpr double kGapSteps = 2;
  static constexpr uint32_t kShortest = 16, kLongest = 2048;

  uint32_t n_token() const { return n_token_; }
  // A slice took so long, decode steps take so long.
  void observe(uint32_t n_token, double slice_s, double decode_s);

 private:
  uint32_t n_token_ = 32;
};

}  // namespace headstart::plan
