// server/fake_completer.h: a model whose every step a test decides.
//
// Tokenizes one byte to one token. Answers with a script, one piece after another; a Gate holds it
// where the test wants it held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/completer.h"

namespace headstart::server {

// Lets threads through one by one. open() lets everyone through from then on.
class Gate {
 public:
  void open() { add(1 << 20); }
  void add(int n) {
    std::lock_guard lock(mutex_);
    n_ += n;
    changed_.notify_all();
  }
  // False where `cancel` was asked to stop first.
  bool pass(const std::stop_token& cancel) {
    std::unique_lock lock(mutex_);
    std::stop_callback wake(cancel, [this] { changed_.notify_all(); });
    while (n_ == 0 && !cancel.stop_requested()) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
    if (cancel.stop_requested()) return false;
    --n_;
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int n_ = 0;
};

class FakeCompleter : public Completer {
 public:
  std::vector<std::string> pieces = {"Hel", "lo"};
  uint32_t n_context = 1024;
  uint32_t n_cached = 0;
  bool throws = false;
  model::ChatParser parser;          // of every chat's text
  std::vector<double> prefill = {};  // what is told of the prompt's progress, each a step
  std::optional<Error> error;        // instead of an answer, after the pieces
  Gate start;                        // before the first piece
  Gate step;                         // before each piece
  FakeCompleter(bool held = false) {
    if (!held) {
      start.open();
      step.open();
    }
  }

  const std::string& model_name() const override { return name_; }
  uint32_t n_ctx() const override { return n_context; }
  int32_t n_vocab() const override { return 256; }
  ModelInfo info() const override { return {"fake.gguf", "{{ a template }}", {}, "<s>", "</s>"}; }
  Result<model::ChatPrompt> apply(const model::ChatInput& chat) const override {
    model::ChatPrompt prompt;
    prompt.parser = parser;
    for (const auto& m : chat.messages) {
      std::string text = m.content;
      for (const auto& part : m.parts) text += (text.empty() ? "" : "\n") + part;
      if (text == "refuse me") {
        return Error{Code::kInvalidArgument, "the template refuses these messages"};
      }
      prompt.text += "<" + m.role + ">" + text;
    }
    return prompt;
  }
  std::vector<Token> tokenize(std::string_view text, bool, bool) const override {
    std::vector<Token> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string piece(Token token) const override { return std::string(1, static_cast<char>(token)); }
  Result<void> check(const model::SamplingOptions& options) const override {
    if (options.grammar.empty()) return {};
    return model::check_gbnf(options.grammar.gbnf, nullptr);
  }
  Result<exec::Completion> complete(const exec::CompletionRequest& request) override {
    note(request, +1);
    auto result = answer(request);
    note(request, -1);
    if (!result.ok() && result.error().code == Code::kCancelled) count_cancelled();
    return result;
  }
  exec::EngineStats stats() const override {
    exec::EngineStats stats;
    stats.n_prompt_token = 12;
    store::TierStats ram;
    ram.n_hit = 3;
    ram.size_bytes = 4096;
    stats.store.tiers.emplace_back("ram", ram);
    return stats;
  }

  std::vector<exec::SlotState> slots() const override {
    return {{0, n_active() > 0, 7, 12}, {1, n_active() > 1, 0, 0}};
  }
  Result<exec::SlotMoved> save_slot(uint32_t id, const std::filesystem::path& dir) override {
    return move_slot(id, dir);
  }
  Result<exec::SlotMoved> restore_slot(uint32_t id, const std::filesystem::path& dir) override {
    return move_slot(id, dir);
  }
  Result<exec::SlotMoved> erase_slot(uint32_t id) override { return move_slot(id, {}); }
  std::filesystem::path slot_dir() const { return locked(slot_dir_); }  // of the newest action

  // What was asked, in the order in which it ran.
  std::vector<exec::CompletionRequest> seen() const { return locked(seen_); }
  int n_cancelled() const { return locked(n_cancelled_); }
  int n_active() const { return locked(n_active_); }
  int n_active_max() const { return locked(n_active_max_); }

 private:
  Result<exec::SlotMoved> move_slot(uint32_t id, const std::filesystem::path& dir) {
    if (id > 1) return Error{Code::kNotFound, "there are slots 0 to 1"};
    if (n_active() > 0) return Error{Code::kUnavailable, "a request runs in this slot"};
    std::lock_guard lock(mutex_);
    slot_dir_ = dir;
    return exec::SlotMoved{7, 4096, 1.5};
  }
  Result<exec::Completion> answer(const exec::CompletionRequest& request) {
    const Error cancelled{Code::kCancelled, "cancelled"};
    if (!start.pass(request.cancel)) return cancelled;
    if (throws) throw std::runtime_error("a library's exception");
    exec::Completion out;
    out.n_prompt = static_cast<uint32_t>(request.tokens.size());
    out.n_cached = n_cached;
    out.finish = exec::FinishReason::kStop;
    out.ttft_ms = 5;
    for (const double done : prefill) {
      if (!step.pass(request.cancel)) return cancelled;
      request.progress("prefill", done);
    }
    for (const std::string& piece : pieces) {
      if (out.tokens.size() == request.n_predict) {
        out.finish = exec::FinishReason::kLength;
        break;
      }
      if (!step.pass(request.cancel)) return cancelled;
      out.text += piece;
      out.tokens.push_back(1);
      if (request.n_top_logprobs) {
        model::TokenProbs probs;
        probs.picked = {1, -0.5f, piece};
        out.probs.push_back(std::move(probs));
        request.on_probs(std::span(&out.probs.back(), 1));
      }
      if (!request.on_text(piece)) return cancelled;
    }
    if (error) return *error;
    return out;
  }
  void note(const exec::CompletionRequest& request, int change) {
    std::lock_guard lock(mutex_);
    if (change > 0) seen_.push_back(request);
    n_active_ += change;
    n_active_max_ = std::max(n_active_max_, n_active_);
  }
  void count_cancelled() {
    std::lock_guard lock(mutex_);
    ++n_cancelled_;
  }
  template <class T>
  T locked(const T& value) const {
    std::lock_guard lock(mutex_);
    return value;
  }

  const std::string name_ = "fake-model";
  mutable std::mutex mutex_;
  std::vector<exec::CompletionRequest> seen_;
  std::filesystem::path slot_dir_;
  int n_active_ = 0, n_active_max_ = 0, n_cancelled_ = 0;
};

}  // namespace headstart::server
