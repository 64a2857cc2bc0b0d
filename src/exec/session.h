// exec/session.h: one request on its way through the engine.
//
// run() follows ARCHITECTURE.md's life of a prompt: reuse, prefill, generate, store.
//
//   threads  lives on the request's thread; at most one at a time for each slot
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/chunk_collector.h"
#include "exec/engine_parts.h"
#include "exec/kv_loader.h"
#include "exec/prompt_lookup.h"
#include "exec/text_stream.h"
#include "plan/prefill_plan.h"
#include "plan/proposal_length.h"

namespace headstart::exec {

class Session {
 public:
  Session(EngineParts& engine, Slot& slot, const CompletionRequest& request)
      : e_(engine),
        slot_(slot),
        r_(request),
        mode_(request.reuse.value_or(engine.options.reuse)),
        stream_(request.stop),
        sequence_(request.tokens) {
    out_.n_prompt = static_cast<uint32_t>(request.tokens.size());
  }

  Result<Completion> run();

 private:
  bool storing() const { return e_.store != nullptr && mode_ != store::ReuseMode::kOff; }
  double ms_since_start() const { return (e_.clock.now_s() - start_s_) * 1e3; }
  Result<void> reuse();
  store::Match longest_match();
  void explain(const store::Match& match);
  void collect_from(const store::Match& match, const Loaded& loaded);
  void note_computed_cells();
  void progress(std::string_view phase, double done) const;
  Result<void> prefill();
  Result<void> generate();
  Result<void> advance(Token token);
  std::span<const float> logits_after() const;
  void settle();
  void propose();
  Result<StepResult> step(std::span<const Token> tokens, uint32_t pos, NumericClass numeric_class,
                          std::optional<uint64_t> order = {});
  void collect(NumericClass numeric_class, size_t n_token, double measured_s);
  double cost_s(NumericClass numeric_class, size_t n_token, double measured_s);
  Token pick(std::span<const float> logits);
  std::string piece(Token token) const;
  bool deliver(const std::string& text);
  void deliver_probs();

  EngineParts& e_;
  Slot& slot_;
  const CompletionRequest& r_;
  const store::ReuseMode mode_;
  TextStream stream_;
  std::vector<Token> sequence_;  // prompt and what was generated
  std::optional<ChunkCollector> collector_;
  std::optional<PrefillSharing::Entry> sharing_;  // until the prompt is computed
  plan::PrefillPlan plan_;
  std::vector<float> logits_;  // of the newest step
  std::optional<PromptLookup> lookup_;
  plan::ProposalLength proposal_length_;
  // The newest decode step: the token that was picked, then proposals. The first n_used are those
  // that the sequence took; n_used is 0 where there is no step whose logits are of use.
  std::vector<Token> decoded_;
  uint32_t n_used_ = 0;
  uint32_t n_match_ = 0;  // of its proposals
  double decoded_s_ = 0;
  AttentionReport attention_;  // of the step that runs
  std::unique_ptr<model::Sampler> sampler_;
  std::vector<model::TokenProbs> probs_;  // of the tokens whose text is held back
  Completion out_;
  double start_s_ = 0;
};

}  // namespace headstart::exec
