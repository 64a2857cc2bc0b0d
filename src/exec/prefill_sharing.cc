#include "exec/prefill_sharing.h"

#include <algorithm>
#include <utility>

namespace headstart::exec {

PrefillSharing::Entry::Entry(PrefillSharing& sharing, std::span<const Token> tokens,
                             std::string salt)
    : sharing_(sharing), prompt_(std::make_shared<Prompt>(tokens, std::move(salt))) {
  const std::lock_guard lock(sharing_.mutex_);
  sharing_.prompts_.push_back(prompt_);
}

PrefillSharing::Entry::~Entry() { leave(); }

// The earlier request with the longest beginning in common.
PrefillSharing::Entry::Leader PrefillSharing::Entry::best() const {
  Leader leader;
  for (const auto& p : sharing_.prompts_) {
    if (p == prompt_) break;
    if (p->salt != prompt_->salt) continue;
    const auto common = std::ranges::mismatch(prompt_->tokens, p->tokens).in1;
    // A prompt's last token is always computed.
    const auto n = static_cast<uint32_t>(
        std::min<size_t>(common - prompt_->tokens.begin(), prompt_->tokens.size() - 1));
    if (n > leader.n_common) leader = {p, n};
  }
  return leader;
}

bool PrefillSharing::Entry::wait(uint32_t n_match, const std::stop_token& cancel) {
  const std::stop_callback wake(cancel, [this] {
    const std::lock_guard lock(sharing_.mutex_);
    sharing_.changed_.notify_all();
  });
  std::unique_lock lock(sharing_.mutex_);
  const Leader leader = best();
  if (leader.n_common < n_match + kWorthTokens) return false;
  Prompt& p = *leader.prompt;
  if (p.n_stored >= leader.n_common) return false;
  ++p.n_waiting;
  sharing_.changed_.wait(
      lock, [&] { return p.left || p.n_stored >= leader.n_common || cancel.stop_requested(); });
  --p.n_waiting;
  return !cancel.stop_requested();
}

void PrefillSharing::Entry::stored(uint32_t n_token) {
  const std::lock_guard lock(sharing_.mutex_);
  if (n_token <= prompt_->n_stored) return;
  prompt_->n_stored = n_token;
  if (prompt_->n_waiting > 0) sharing_.changed_.notify_all();
}

bool PrefillSharing::Entry::awaited() const {
  const std::lock_guard lock(sharing_.mutex_);
  return prompt_->n_waiting > 0;
}

void PrefillSharing::Entry::leave() {
  const std::lock_guard lock(sharing_.mutex_);
  if (std::exchange(prompt_->left, true)) return;
  std::erase(sharing_.prompts_, prompt_);
  sharing_.changed_.notify_all();
}

}  // namespace headstart::exec
