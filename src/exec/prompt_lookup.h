// exec/prompt_lookup.h: proposes the tokens that come next, from what stands earlier in the text.
//
// Text that quotes its context repeats runs of tokens. The last 3 tokens of the sequence, or the
// last 2, are looked up where they stood before; what followed there is proposed. While the text
// goes on as proposed, the place is kept, however often its next tokens stand elsewhere.
//
// A wrong proposal costs time only: exec/session.cc takes a token only where the sampler picks it.
//
//   memory   at most 8 MiB
//   time     O(1) for each token of the sequence and of a proposal
//   threads  one owner; pure
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"

namespace headstart::exec {

class PromptLookup {
 public:
  // A longer sequence is looked up as well, but finds less of what is long past.
  explicit PromptLookup(uint32_t n_token);

  // Takes in what was added to the sequence since the last call.
  void follow(std::span<const Token> sequence);
  // How many tokens at the sequence's end also stand where the proposal is taken from; 0: it has
  // not been seen before.
  uint32_t n_match() const { return n_match_; }
  // n tokens that may come next, where n_match() is not 0. `sequence` is that of follow().
  std::vector<Token> propose(std::span<const Token> sequence, uint32_t n) const;

 private:
  // Where each run of n tokens last ended: position after it, 0: nowhere, by its hash. Another run
  // of the same hash takes its place, so what is found must be compared.
  struct Ends {
    uint32_t n;
    std::vector<uint32_t> slots;
  };
  void add(std::span<const Token> sequence);
  uint32_t exchange(Ends& ends, std::span<const Token> sequence) const;

  Ends ends_[2];           // the longest first
  uint32_t n_token_ = 0;   // of the sequence, so far
  uint32_t n_source_ = 0;  // the sequence goes on like its first n_source tokens do
  uint32_t n_match_ = 0;   // of which the last n_match are those at its end
};

}  // namespace headstart::exec
