// plan/proposal_length.h: how many tokens a decode step should propose.
//
// A step's columns are not free, and a proposal after a wrong one is lost. How likely a proposal is
// right depends on how long the text has agreed with the place that it is taken from, and on the
// text. So the length follows what came of earlier proposals of the same match length: none while
// they fail, all that are allowed while text is quoted.
//
//   units    tokens; n_match: tokens before the first proposal that agree with its source
//   threads  pure: values in, a length out
#pragma once

#include <array>
#include <cstdint>

namespace headstart::plan {

class ProposalLength {
 public:
  ProposalLength();
  // The length, at most n_max, with the most tokens for the step's cost.
  uint32_t best(uint32_t n_match, uint32_t n_max) const;
  // Of a step's n_proposed tokens the first n_accepted were right. Where none were proposed, what
  // was learnt is forgotten a little, so that they are tried again.
  void observe(uint32_t n_match, uint32_t n_proposed, uint32_t n_accepted);

 private:
  static constexpr uint32_t kMatchMax = 8;  // longer ones count as this
  double& p_accept(uint32_t n_match);

  std::array<double, kMatchMax + 1> p_accept_;  // that a proposal is right, by n_match
};

}  // namespace headstart::plan
