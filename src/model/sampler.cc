#include "model/sampler.h"

#include <llama.h>
#include <reasoning-budget.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

namespace headstart::model {
namespace {

constexpr int32_t kRepeatLastMax = 1 << 20;

Result<void> check(const SamplingOptions& o, int32_t n_vocab) {
  auto outside = [](const char* name, double value, double low, double high) {
    return std::isfinite(value) && value >= low && value <= high
               ? std::string()
               : std::string(name) + " must lie between " + std::to_string(low) + " and " +
                     std::to_string(high);
  };
  for (const std::string& message :
       {outside("temperature", o.temperature, 0, 100), outside("top_p", o.top_p, 0, 1),
        outside("min_p", o.min_p, 0, 1), outside("typical_p", o.typical_p, 0, 1),
        outside("top_n_sigma", o.top_n_sigma, -1, 100),
        outside("xtc_probability", o.xtc_probability, 0, 1),
        outside("xtc_threshold", o.xtc_threshold, 0, 1),
        outside("dynatemp_range", o.dynatemp_range, 0, 100),
        outside("dynatemp_exponent", o.dynatemp_exponent, 0, 100),
        outside("presence_penalty", o.presence_penalty, -2, 2),
        outside("frequency_penalty", o.frequency_penalty, -2, 2),
        outside("repeat_penalty", o.repeat_penalty, 0.01, 100),
        outside("repeat_last_n", o.repeat_last_n, 0, kRepeatLastMax),
        outside("top_k", o.top_k, 0, INT32_MAX)}) {
    if (!message.empty()) return Error{Code::kInvalidArgument, message};
  }
  if (o.logit_bias.size() > kLogitBiasMax) {
    return Error{Code::kInvalidArgument, "logit_bias has more than 1024 entries"};
  }
  for (const auto& [token, bias] : o.logit_bias) {
    if (token < 0 || token >= n_vocab || std::isnan(bias)) {
      return Error{Code::kInvalidArgument, "logit_bias names no token of this model"};
    }
  }
  return {};
}

std::vector<llama_logit_bias> biases_of(const SamplingOptions& o, const llama_vocab* vocab) {
  std::vector<llama_logit_bias> biases;
  for (const auto& [token, bias] : o.logit_bias) biases.push_back({token, bias});
  for (Token t = 0; o.ignore_eos && t < llama_vocab_n_tokens(vocab); ++t) {
    if (llama_vocab_is_eog(vocab, t)) biases.push_back({t, -INFINITY});
  }
  return biases;
}

// Narrows the candidates and picks one of them, in common's order.
void add_random(llama_sampler* chain, const SamplingOptions& o) {
  auto add = [&](llama_sampler* s) { llama_sampler_chain_add(chain, s); };
  // libllama takes its largest seed for "draw one"; ours is a seed like any other.
  const uint32_t seed = o.seed == LLAMA_DEFAULT_SEED ? 0x5eedu : o.seed;
  if (o.top_n_sigma > 0.0f) add(llama_sampler_init_top_n_sigma(o.top_n_sigma));
  if (o.top_k > 0) add(llama_sampler_init_top_k(o.top_k));
  if (o.typical_p < 1.0f) add(llama_sampler_init_typical(o.typical_p, 1));
  if (o.top_p < 1.0f) add(llama_sampler_init_top_p(o.top_p, 1));
  if (o.min_p > 0.0f) add(llama_sampler_init_min_p(o.min_p, 1));
  if (o.xtc_probability > 0.0f) {
    add(llama_sampler_init_xtc(o.xtc_probability, o.xtc_threshold, 1, seed));
  }
  add(o.dynatemp_range > 0.0f
          ? llama_sampler_init_temp_ext(o.temperature, o.dynatemp_range, o.dynatemp_exponent)
          : llama_sampler_init_temp(o.temperature));
  add(llama_sampler_init_dist(seed));
}

}  // namespace

Result<std::unique_ptr<Sampler>> Sampler::open(const SamplingOptions& o, const llama_vocab* vocab) {
  const int32_t n_vocab = llama_vocab_n_tokens(vocab);
  HS_RETURN_IF_ERROR(check(o, n_vocab));
  Owned chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  auto add = [&](llama_sampler* s) { llama_sampler_chain_add(chain.get(), s); };
  const auto biases = biases_of(o, vocab);
  if (!biases.empty()) {
    add(llama_sampler_init_logit_bias(n_vocab, static_cast<int32_t>(biases.size()), biases.data()));
  }
  const bool penalised =
      o.repeat_last_n > 0 &&
      (o.repeat_penalty != 1.0f || o.frequency_penalty != 0.0f || o.presence_penalty != 0.0f);
  if (penalised) {
    add(llama_sampler_init_penalties(n_vocab, o.repeat_last_n, o.repeat_penalty,
                                     o.frequency_penalty, o.presence_penalty));
  }
  if (o.temperature == 0.0f) {
    add(llama_sampler_init_greedy());
  } else {
    add_random(chain.get(), o);
  }
  const bool plain_greedy = o.temperature == 0.0f && !penalised && biases.empty();
  std::unique_ptr<Sampler> sampler(new Sampler(std::move(chain), plain_greedy));
  if (!o.grammar.empty()) HS_RETURN_IF_ERROR(sampler->open_grammar(o.grammar, vocab));
  return sampler;
}

Result<void> Sampler::open_grammar(const GrammarOptions& o, const llama_vocab* vocab) {
  HS_RETURN_IF_ERROR(check_gbnf(o.gbnf, vocab));
  try {
    if (o.lazy) {
      std::vector<const char*> patterns;
      for (const std::string& p : o.trigger_patterns) patterns.push_back(p.c_str());
      grammar_.reset(llama_sampler_init_grammar_lazy_patterns(
          vocab, o.gbnf.c_str(), "root", patterns.data(), patterns.size(), o.trigger_tokens.data(),
          o.trigger_tokens.size()));
    } else {
      grammar_.reset(llama_sampler_init_grammar(vocab, o.gbnf.c_str(), "root"));
    }
    if (!grammar_) return Error{Code::kInvalidArgument, "libllama refuses the grammar"};
    if (!o.lazy) {
      for (const Token t : o.prefill) llama_sampler_accept(grammar_.get(), t);
    }
  } catch (const std::exception&) {  // a pattern, or a prefill that does not fit
    return Error{Code::kInvalidArgument, "the grammar does not fit this model's chat template"};
  }
  if (o.lazy && !o.thinking_start.empty() && !o.thinking_ends.empty()) {
    constexpr int32_t kNoBudget = std::numeric_limits<int32_t>::max();
    thinking_.reset(
        common_reasoning_budget_init(vocab, {o.thinking_start}, o.thinking_ends, {}, kNoBudget));
    for (const Token t : o.prefill) llama_sampler_accept(thinking_.get(), t);
  }
  return {};
}

void Sampler::accept(Token token) { llama_sampler_accept(chain_.get(), token); }

// Whether the grammar has a say in the next token.
bool Sampler::constrained() const {
  if (!grammar_) return false;
  if (!thinking_) return true;
  const auto state = common_reasoning_budget_get_state(thinking_.get());
  return state == REASONING_BUDGET_IDLE || state == REASONING_BUDGET_DONE;
}

bool Sampler::allows(Token token) {
  llama_token_data one{token, 1.0f, 0.0f};
  llama_token_data_array array{&one, 1, -1, false};
  llama_sampler_apply(grammar_.get(), &array);
  return one.logit != -INFINITY;
}

llama_token_data_array Sampler::candidates(std::span<const float> logits) {
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_[i] = {static_cast<Token>(i), logits[i], 0.0f};
  }
  return {candidates_.data(), candidates_.size(), -1, false};
}

Token Sampler::pick(std::span<const float> logits) {
  if (plain_greedy_) {
    return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  llama_token_data_array array = candidates(logits);
  llama_sampler_apply(chain_.get(), &array);
  HS_CHECK(array.selected >= 0, "the chain ends with a sampler that selects");
  return array.data[array.selected].id;
}

// The grammar before the chain: slow, for it looks at the whole vocabulary.
Token Sampler::pick_allowed(std::span<const float> logits) {
  llama_token_data_array array = candidates(logits);
  llama_sampler_apply(grammar_.get(), &array);
  // libllama aborts where it accepts what its grammar forbids.
  std::erase_if(candidates_, [](const auto& c) { return c.logit == -INFINITY; });
  if (candidates_.empty()) return kNoToken;
  array = {candidates_.data(), candidates_.size(), -1, false};
  llama_sampler_apply(chain_.get(), &array);
  // Nothing is selected where biases exclude all that the grammar allows.
  return array.selected >= 0 ? array.data[array.selected].id : kNoToken;
}

void Sampler::accept_picked(Token token) {
  const bool was_constrained = constrained();
  try {
    if (thinking_) {
      llama_sampler_accept(thinking_.get(), token);
      const auto state = common_reasoning_budget_get_state(thinking_.get());
      if (!was_constrained && state == REASONING_BUDGET_DONE) {
        // The end of thinking may hold a trigger.
        const auto* end = common_reasoning_budget_get_end_match(thinking_.get());
        for (const Token t : end != nullptr ? *end : std::vector<Token>()) {
          llama_sampler_accept(grammar_.get(), t);
        }
      }
    }
    if (was_constrained) llama_sampler_accept(grammar_.get(), token);
  } catch (const std::exception&) {
    // A lazy grammar may wake inside a token whose rest it does not allow. The text is then not a
    // call, and goes on without it.
    grammar_.reset();
  }
  llama_sampler_accept(chain_.get(), token);
}

Token Sampler::sample(std::span<const float> logits) {
  Token token = pick(logits);
  if (constrained() && !allows(token)) token = pick_allowed(logits);
  if (token != kNoToken && (!plain_greedy_ || grammar_)) accept_picked(token);
  return token;
}

}  // namespace headstart::model
