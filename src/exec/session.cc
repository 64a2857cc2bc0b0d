#include "exec/session.h"

#include <algorithm>
#include <iterator>

namespace headstart::exec {

Result<Completion> Session::run() {
  start_s_ = e_.clock.now_s();
  HS_ASSIGN_OR_RETURN(sampler_, model::Sampler::open(r_.sampling, e_.tokenizer->vocab()));
  for (Token t : r_.tokens) sampler_->accept(t);
  e_.tables->reserve(out_.n_prompt);  // decoding makes the others as it goes
  auto done = reuse();
  if (done.ok()) done = prefill();
  sharing_.reset();
  if (done.ok() && r_.n_predict > 0) done = generate();
  settle();
  // What was computed is kept even if the client has left.
  if (collector_) collector_->finish(sequence_, plan_.n_strict);
  slot_.tokens = std::move(sequence_);
  slot_.tokens.resize(std::min<size_t>(slot_.tokens.size(), slot_.n_token_computed));
  slot_.salt = r_.salt;
  if (!done.ok()) return done.error();
  return std::move(out_);
}

// What the store has, after waiting for a request that computes a longer common beginning.
store::Match Session::longest_match() {
  store::Match match;
  if (!sharing_) sharing_.emplace(e_.sharing, r_.tokens, r_.salt);
  for (;;) {
    const double begin_ms = ms_since_start();
    progress("lookup", 0);
    match = e_.store->match({e_.fingerprint, e_.numeric, slot_.kv->shape(), r_.salt,
                             std::span(r_.tokens).first(r_.tokens.size() - 1), mode_});
    const double found_ms = ms_since_start();
    out_.lookup_ms += found_ms - begin_ms;
    progress("wait", 0);
    const bool again = sharing_->wait(match.n_token, r_.cancel);
    out_.wait_ms += ms_since_start() - found_ms;
    if (!again) return match;
  }
}

Result<void> Session::reuse() {
  store::Match match;
  Loaded loaded;
  // A tail may be replaced by a longer one between being found and being read, a file may be
  // damaged: look again a few times, then compute.
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    loaded = {};
    match = {};
    if (storing() && attempt + 1 < kAttempts) match = longest_match();
    if (r_.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
    const double begin_ms = ms_since_start();
    plan_ =
        plan::plan_prefill({out_.n_prompt, match.n_token, match.n_strict, e_.executor->grain()});
    if (plan_.n_reuse > 0) {
      const LoadTarget target{&e_.model->params(), e_.tables.get(), e_.fingerprint, slot_.kv.get()};
      progress("load", 0);
      loaded = load_prefix(*e_.store, match, plan_.n_reuse, target, *slot_.capture);
    }
    out_.load_ms += ms_since_start() - begin_ms;
    // Anything less than planned is of no use: which cells a sliding window needs depends on where
    // reuse ends. The chunk that failed is gone from its tier, so the next match ends before it.
    if (loaded.n_token == plan_.n_reuse) break;
  }
  explain(match);
  if (storing()) collect_from(match, loaded);
  out_.n_cached = plan_.n_reuse;
  out_.cells = std::move(loaded.cells);
  out_.n_cached_rounded = plan_.n_reuse > plan_.n_strict ? plan_.n_reuse - plan_.n_strict : 0;
  slot_.n_token_computed = plan_.n_reuse;
  if (!collector_) sharing_.reset();  // it stores nothing that others could wait for
  return {};
}

void Session::explain(const store::Match& match) {
  if (!match.divergence) return;
  constexpr size_t kShownTokens = 16;
  const auto text = [&](std::span<const Token> tokens) {
    return valid_utf8(e_.tokenizer->decode(tokens.first(std::min(kShownTokens, tokens.size()))));
  };
  out_.divergence = {match.divergence->pos,
                     text(std::span(r_.tokens).subspan(match.divergence->pos)),
                     text(match.divergence->stored)};
}

// Chunks go on after the last one that is complete; a captured one is begun again, together with
// what is computed.
void Session::collect_from(const store::Match& match, const Loaded& loaded) {
  Digest parent = kv::prefix_root(e_.fingerprint, r_.salt);
  uint32_t pos = 0;
  for (uint32_t i = 0; i < loaded.n_chunk - (loaded.captured ? 1 : 0); ++i) {
    const store::MatchedChunk& m = match.chunks[i];
    parent = m.chunk.id.prefix_key;
    pos = m.pos_first + static_cast<uint32_t>(m.chunk.tokens->size());
  }
  const uint32_t n_inherited = loaded.n_token - pos;
  // Where reuse had to end earlier than what was loaded, inside a chunk, nothing can be continued.
  if (pos + n_inherited != plan_.n_reuse) return;
  collector_.emplace(*e_.store, *slot_.capture, *e_.tokenizer,
                     ChunkOrigin{e_.fingerprint, e_.numeric, r_.salt}, slot_.kv->shape());
  collector_->start(pos, parent);
  if (n_inherited > 0) {
    const store::ChunkSummary& last = match.chunks[loaded.n_chunk - 1].chunk;
    collector_->computed(n_inherited,
                         last.compute_s * n_inherited / static_cast<double>(last.tokens->size()));
  }
}

Result<StepResult> Session::step(std::span<const Token> tokens, uint32_t pos,
                                 NumericClass numeric_class, std::optional<uint64_t> order) {
  StepRequest s;
  s.order = order;
  s.numeric_class = numeric_class;
  s.tokens = tokens;
  s.pos = pos;
  s.kv = slot_.kv.get();
  s.capture = collector_ ? slot_.capture.get() : nullptr;
  s.want_logits = r_.n_predict > 0;
  s.logits = &logits_;
  s.cancel = r_.cancel;
  attention_.activity.clear();
  s.attention = &attention_;
  HS_ASSIGN_OR_RETURN(const StepResult done, e_.scheduler->run(s));
  slot_.n_token_computed = pos + done.n_token;
  for (const AttentionActivity& a : attention_.activity) {
    out_.n_attention_active += a.n_active;
    out_.n_attention_causal += a.n_causal;
  }
  return done;
}

void Session::collect(NumericClass numeric_class, size_t n_token, double measured_s) {
  if (!collector_) return;
  collector_->computed(static_cast<uint32_t>(n_token), cost_s(numeric_class, n_token, measured_s));
  collector_->emit(sequence_, plan_.n_strict);
}

// What prefilling these tokens would take: the price of losing them. Decoding, and a few tokens
// alone, take far longer than the same tokens in a prompt.
double Session::cost_s(NumericClass numeric_class, size_t n_token, double measured_s) {
  constexpr size_t kTypicalSlice = 64;
  if (numeric_class == NumericClass::kPrefill && n_token >= kTypicalSlice) {
    e_.prefill_s_per_token = measured_s / static_cast<double>(n_token);
  }
  const double s_per_token = e_.prefill_s_per_token;
  return s_per_token > 0 ? s_per_token * static_cast<double>(n_token) : measured_s;
}

void Session::progress(std::string_view phase, double done) const {
  if (r_.progress) r_.progress(phase, done);
}

// In the chunks that they were cut into; what is left after the last cut is the tail.
void Session::note_computed_cells() {
  const store::CellRange all{0, e_.model->params().n_layer};
  uint32_t pos = plan_.n_reuse;
  const auto add = [&](uint32_t end) {
    if (end <= pos || end > out_.n_prompt) return;
    out_.cells.push_back({pos, end - pos, all, std::string(kComputed)});
    pos = end;
  };
  if (collector_) {
    for (const uint32_t end : collector_->ends()) add(end);
  }
  add(out_.n_prompt);
}

Result<void> Session::prefill() {
  progress("prefill", static_cast<double>(plan_.n_reuse) / out_.n_prompt);
  std::optional<uint64_t> order;
  for (uint32_t pos = plan_.n_reuse; pos < out_.n_prompt;) {
    if (r_.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
    HS_ASSIGN_OR_RETURN(const StepResult done, step(std::span(r_.tokens).subspan(pos), pos,
                                                    NumericClass::kPrefill, order));
    order = done.order;
    pos += done.n_token;
    out_.wait_ms += done.wait_s * 1e3;
    out_.compute_ms += done.compute_s * 1e3;
    collect(NumericClass::kPrefill, done.n_token, done.compute_s);
    if (sharing_ && collector_) sharing_->stored(collector_->pos());
    progress("prefill", static_cast<double>(pos) / out_.n_prompt);
  }
  note_computed_cells();
  if (sharing_ && collector_ && sharing_->awaited()) {
    collector_->offer_tail(sequence_, plan_.n_strict);
    sharing_->stored(out_.n_prompt);
  }
  sharing_.reset();
  out_.ttft_ms = ms_since_start();
  out_.prefill_tok_s = (out_.n_prompt - plan_.n_reuse) / (out_.compute_ms * 1e-3);
  return {};
}

Result<void> Session::generate() {
  const StepScheduler::Answering answering(*e_.scheduler);
  Token token = pick(logits_);
  out_.ttft_ms = ms_since_start();
  const double begin_s = e_.clock.now_s();
  for (;;) {
    if (token == model::Sampler::kNoToken || e_.tokenizer->is_end(token)) {
      out_.finish = FinishReason::kStop;
      break;
    }
    out_.tokens.push_back(token);
    progress("decode", static_cast<double>(out_.tokens.size()) / r_.n_predict);
    if (!deliver(stream_.push(piece(token)))) return Error{Code::kCancelled, "cancelled"};
    if (stream_.stopped()) {
      out_.stop = stream_.stop();
      out_.finish = FinishReason::kStop;
      break;
    }
    if (out_.tokens.size() >= r_.n_predict) break;
    if (r_.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
    HS_RETURN_IF_ERROR(advance(token));
    token = pick(logits_after());
  }
  const double decode_s = e_.clock.now_s() - begin_s;
  const size_t n_decoded = sequence_.size() - r_.tokens.size();
  out_.decode_ms = decode_s * 1e3;
  out_.decode_tok_s = n_decoded > 0 ? static_cast<double>(n_decoded) / decode_s : 0;
  if (!stream_.stopped()) deliver_probs();
  if (!deliver(stream_.finish())) return Error{Code::kCancelled, "cancelled"};
  out_.text = stream_.text();
  return {};
}

Token Session::pick(std::span<const float> logits) {
  const Token token = sampler_->sample(logits);
  if (r_.n_top_logprobs && token != model::Sampler::kNoToken && !e_.tokenizer->is_end(token)) {
    model::TokenProbs& probs =
        probs_.emplace_back(model::token_probs(logits, token, *r_.n_top_logprobs));
    probs.picked.text = e_.tokenizer->piece(token, /*special=*/true);
    for (auto& t : probs.top) t.text = e_.tokenizer->piece(t.token, /*special=*/true);
  }
  return token;
}

std::string Session::piece(Token token) const {
  const bool shown = std::find(r_.shown.begin(), r_.shown.end(), token) != r_.shown.end();
  return e_.tokenizer->piece(token, shown);
}

bool Session::deliver(const std::string& text) {
  if (text.empty()) return true;
  deliver_probs();
  return !r_.on_text || r_.on_text(text);
}

void Session::deliver_probs() {
  if (probs_.empty()) return;
  if (r_.on_probs) r_.on_probs(probs_);
  std::move(probs_.begin(), probs_.end(), std::back_inserter(out_.probs));
  probs_.clear();
}

// Adds `token` to the sequence; its K,V and the logits after it are there then. Either the last
// decode step computed them on trial, or a new one does. The sampler sees the same logits in the
// same order as without proposals, so the text is the same.
Result<void> Session::advance(Token token) {
  if (n_used_ < decoded_.size() && decoded_[n_used_] == token) {
    sequence_.push_back(token);
    ++n_used_;
    return {};
  }
  settle();
  const auto pos = static_cast<uint32_t>(sequence_.size());
  sequence_.push_back(token);
  decoded_ = {token};
  propose();
  HS_ASSIGN_OR_RETURN(const StepResult done, step(decoded_, pos, NumericClass::kDecode));
  decoded_s_ = done.compute_s;
  n_used_ = 1;
  return {};
}

// Adds proposals to the step. They never reach beyond the last token whose K,V plain decoding would
// compute, so the context and the live cache's pages are bounded as without them.
void Session::propose() {
  const uint32_t n_allowed = std::min(r_.n_propose_max.value_or(e_.options.n_propose_max),
                                      e_.executor->n_decode_max() - 1);
  if (n_allowed == 0) return;
  if (!lookup_) lookup_.emplace(out_.n_prompt + r_.n_predict);
  lookup_->follow(sequence_);
  n_match_ = lookup_->n_match();
  if (n_match_ == 0) return;
  const auto n_left = r_.n_predict - static_cast<uint32_t>(out_.tokens.size()) - 1;
  const uint32_t n = proposal_length_.best(n_match_, std::min(n_allowed, n_left));
  const auto proposal = lookup_->propose(sequence_, n);
  decoded_.insert(decoded_.end(), proposal.begin(), proposal.end());
}

std::span<const float> Session::logits_after() const {
  const size_t n_vocab = e_.model->params().n_vocab;
  return std::span(logits_).subspan((n_used_ - 1) * n_vocab, n_vocab);
}

// Closes the last decode step: what the sequence took of it is collected, the rest is forgotten.
// Its rows in the live cache and in the capture window are written again before they are read.
// Only then, because a chunk that leaves moves the window's rows, also those still on trial.
void Session::settle() {
  if (n_used_ == 0) return;
  collect(NumericClass::kDecode, n_used_, decoded_s_);
  const auto n_proposed = static_cast<uint32_t>(decoded_.size()) - 1;
  if (n_match_ > 0) proposal_length_.observe(n_match_, n_proposed, n_used_ - 1);
  out_.n_proposed += n_proposed;
  out_.n_accepted += n_used_ - 1;
  decoded_.clear();
  n_used_ = 0;
}

}  // namespace headstart::exec
