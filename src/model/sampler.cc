#include "model/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>

namespace headstart::model {
namespace {

constexpr int32_t kPenaltyWindow = 64;  // llama.cpp's repeat_last_n
constexpr size_t kBiasMax = 1024;

Result<void> check(const SamplingOptions& o, int32_t n_vocab) {
  auto outside = [](const char* name, double value, double low, double high) {
    return std::isfinite(value) && value >= low && value <= high
               ? std::string()
               : std::string(name) + " must lie between " + std::to_string(low) + " and " +
                     std::to_string(high);
  };
  for (const std::string& message :
       {outside("temperature", o.temperature, 0, 100), outside("top_p", o.top_p, 0, 1),
        outside("min_p", o.min_p, 0, 1), outside("presence_penalty", o.presence_penalty, -2, 2),
        outside("frequency_penalty", o.frequency_penalty, -2, 2),
        outside("repeat_penalty", o.repeat_penalty, 0.01, 100)}) {
    if (!message.empty()) return Error{Code::kInvalidArgument, message};
  }
  if (o.top_k < 0) return Error{Code::kInvalidArgument, "top_k must be 0 (all) or more"};
  if (o.logit_bias.size() > kBiasMax) {
    return Error{Code::kInvalidArgument, "logit_bias has more than 1024 entries"};
  }
  for (const auto& [token, bias] : o.logit_bias) {
    if (token < 0 || token >= n_vocab || std::isnan(bias)) {
      return Error{Code::kInvalidArgument, "logit_bias names no token of this model"};
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Sampler>> Sampler::open(const SamplingOptions& o, const llama_vocab* vocab) {
  const int32_t n_vocab = llama_vocab_n_tokens(vocab);
  HS_RETURN_IF_ERROR(check(o, n_vocab));
  llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  auto add = [&](llama_sampler* s) { llama_sampler_chain_add(chain, s); };
  if (!o.logit_bias.empty()) {
    std::vector<llama_logit_bias> biases;
    for (const auto& [token, bias] : o.logit_bias) biases.push_back({token, bias});
    add(llama_sampler_init_logit_bias(n_vocab, static_cast<int32_t>(biases.size()), biases.data()));
  }
  const bool penalised =
      o.repeat_penalty != 1.0f || o.frequency_penalty != 0.0f || o.presence_penalty != 0.0f;
  if (penalised) {
    add(llama_sampler_init_penalties(n_vocab, kPenaltyWindow, o.repeat_penalty, o.frequency_penalty,
                                     o.presence_penalty));
  }
  if (o.temperature == 0.0f) {
    add(llama_sampler_init_greedy());
  } else {
    if (o.top_k > 0) add(llama_sampler_init_top_k(o.top_k));
    if (o.top_p < 1.0f) add(llama_sampler_init_top_p(o.top_p, 1));
    if (o.min_p > 0.0f) add(llama_sampler_init_min_p(o.min_p, 1));
    add(llama_sampler_init_temp(o.temperature));
    // libllama takes its largest seed for "draw one"; ours is a seed like any other.
    add(llama_sampler_init_dist(o.seed == LLAMA_DEFAULT_SEED ? 0x5eedu : o.seed));
  }
  const bool plain_greedy = o.temperature == 0.0f && !penalised && o.logit_bias.empty();
  return std::unique_ptr<Sampler>(new Sampler(chain, plain_greedy));
}

Sampler::~Sampler() { llama_sampler_free(chain_); }

void Sampler::accept(Token token) { llama_sampler_accept(chain_, token); }

Token Sampler::sample(std::span<const float> logits) {
  if (plain_greedy_) {
    return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_[i] = {static_cast<Token>(i), logits[i], 0.0f};
  }
  llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
  llama_sampler_apply(chain_, &array);
  HS_CHECK(array.selected >= 0, "the chain ends with a sampler that selects");
  const Token token = array.data[array.selected].id;
  llama_sampler_accept(chain_, token);
  return token;
}

}  // namespace headstart::model
