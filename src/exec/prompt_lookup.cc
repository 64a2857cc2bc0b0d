#include "exec/prompt_lookup.h"

#include <algorithm>
#include <bit>

namespace headstart::exec {
namespace {

constexpr uint32_t kSlotsMin = 1u << 8, kSlotsMax = 1u << 20;

uint64_t hash(std::span<const Token> tokens) {
  uint64_t h = 0;
  for (Token t : tokens) h = (h ^ static_cast<uint32_t>(t)) * 0x9e3779b97f4a7c15u;
  return h >> 32;  // a product's high bits depend on all of its factors
}

}  // namespace

PromptLookup::PromptLookup(uint32_t n_token) {
  // Twice the tokens: about a third of the runs lose their place to another.
  const uint32_t n_slot = std::bit_ceil(std::clamp(n_token, kSlotsMin / 2, kSlotsMax / 2) * 2);
  ends_[0] = {3, std::vector<uint32_t>(n_slot)};
  ends_[1] = {2, std::vector<uint32_t>(n_slot)};
}

void PromptLookup::follow(std::span<const Token> sequence) {
  while (n_token_ < sequence.size()) add(sequence.first(n_token_ + 1));
}

// Takes in the last token of `sequence`.
void PromptLookup::add(std::span<const Token> sequence) {
  const bool as_proposed = n_match_ != 0 && sequence[n_source_] == sequence.back();
  n_match_ = as_proposed ? n_match_ + 1 : 0;
  ++n_source_;
  for (Ends& ends : ends_) {
    const uint32_t end = exchange(ends, sequence);
    if (n_match_ == 0 && end != 0) {
      n_source_ = end;
      n_match_ = ends.n;
    }
  }
  ++n_token_;
}

std::vector<Token> PromptLookup::propose(std::span<const Token> sequence, uint32_t n) const {
  std::vector<Token> proposal;
  // Where the source reaches the end it goes on with the proposal itself: a text that repeats
  // itself is proposed in full.
  for (uint32_t i = n_source_; proposal.size() < n; ++i) {
    proposal.push_back(i < n_token_ ? sequence[i] : proposal[i - n_token_]);
  }
  return proposal;
}

// Where the sequence's last n tokens ended before, 0 for nowhere; they end here from now on.
uint32_t PromptLookup::exchange(Ends& ends, std::span<const Token> sequence) const {
  if (sequence.size() < ends.n) return 0;
  const auto run = sequence.last(ends.n);
  uint32_t& slot = ends.slots[hash(run) & (ends.slots.size() - 1)];
  const uint32_t end = slot;
  slot = static_cast<uint32_t>(sequence.size());
  if (end == 0) return 0;
  return std::equal(run.begin(), run.end(), sequence.begin() + (end - ends.n)) ? end : 0;
}

}  // namespace headstart::exec
