// exec/prefill_sharing.h: requests whose prompts begin alike compute the common part once.
//
// A request joins with its prompt. One that came earlier and is still computing a longer common
// beginning than the store has is waited for, up to where its chunks reach that beginning's end.
//
//   units    tokens
//   threads  any; an Entry belongs to one thread
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/token.h"

namespace headstart::exec {

class PrefillSharing {
 private:
  struct Prompt {
    Prompt(std::span<const Token> t, std::string s) : tokens(t), salt(std::move(s)) {}
    std::span<const Token> tokens;
    std::string salt;
    uint32_t n_stored = 0;   // leading tokens whose chunks can be matched
    uint32_t n_waiting = 0;  // requests that wait for it
    bool left = false;       // its request stores nothing more
  };

 public:
  // Waiting for fewer tokens than these costs more than computing them.
  static constexpr uint32_t kWorthTokens = 64;

  // A request's membership. `tokens` must outlive it.
  class Entry {
   public:
    Entry(PrefillSharing& sharing, std::span<const Token> tokens, std::string salt);
    ~Entry();  // leave()
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    // True where it waited for an earlier request and the store should be asked again; false where
    // nothing more than the n_match tokens that the store has is to be had, or after `cancel`.
    bool wait(uint32_t n_match, const std::stop_token& cancel);
    // The first n_token tokens can be matched in the store from now on.
    void stored(uint32_t n_token);
    bool awaited() const;
    // Nothing of the prompt is to come: those who wait go on.
    void leave();

   private:
    struct Leader {
      std::shared_ptr<Prompt> prompt;
      uint32_t n_common = 0;
    };
    Leader best() const;
    PrefillSharing& sharing_;
    const std::shared_ptr<Prompt> prompt_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Prompt>> prompts_;  // in order of arrival, those that have not left
};

}  // namespace headstart::exec
