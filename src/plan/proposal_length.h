// plan/proposal_length.h: how many tokens a decode step should propose.
//
// A step's columns are not free, and a proposal after a wrong one is lost. So the length follows
// how often proposals proved right lately: few while they fail, all that are allowed while text is
// quoted.
//
//   units    tokens; cost in decode steps of one token
//   threads  pure: values in, a length out
#pragma once

#include <cstdint>

namespace headstart::plan {

class ProposalLength {
 public:
  // The length, at most n_max, with the most tokens for the step's cost. At least 1 where n_max is:
  // a second column costs next to nothing, and without trying nothing is learnt.
  uint32_t best(uint32_t n_max) const;
  // Of a step's n_proposed tokens the first n_accepted were right.
  void observe(uint32_t n_proposed, uint32_t n_accepted);

 private:
  double p_accept_ = 0.7;  // that a proposal whose predecessors were right is right
};

}  // namespace headstart::plan
