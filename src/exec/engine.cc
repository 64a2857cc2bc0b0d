#include "exec/engine.h"

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "base/memory.h"
#include "base/paths.h"
#include "exec/chunk_collector.h"
#include "exec/ggml_executor.h"
#include "exec/kv_loader.h"
#include "exec/text_stream.h"
#include "kv/capture.h"
#include "kv/live_kv.h"
#include "model/fingerprint.h"
#include "model/model.h"
#include "plan/prefill_plan.h"
#include "store/disk_tier.h"
#include "store/ram_tier.h"

namespace headstart::exec {
namespace {

constexpr uint32_t kContextMax = 1u << 24;
constexpr size_t kSaltBytesMax = 256;
constexpr size_t kStopsMax = 16;
// Chunks that wait for the background writer. A prompt produces some MB a second, a disk takes
// hundreds: it fills only when the disk hangs, and then storing is given up, not computing.
constexpr uint64_t kStoreQueueBytesMax = uint64_t{256} << 20;

uint32_t pad_to(uint32_t n, uint32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

std::string mib(uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

kv::KvShape shape_of(const model::ModelParams& p) {
  return {p.n_layer, p.n_head_kv, p.d_head_k, p.d_head_v};
}

}  // namespace

struct Engine::Impl {
  EngineOptions options;
  SystemClock clock;
  PosixDisk disk;
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::unique_ptr<model::ChatTemplate> chat_template;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<RopeTables> tables;
  std::unique_ptr<GgmlExecutor> executor;
  std::unique_ptr<kv::LiveKv> kv;
  std::unique_ptr<kv::Capture> capture;  // null without a store
  std::unique_ptr<store::Store> store;   // null where nothing is reused
  Digest fingerprint{};
  Digest numeric{};
  std::mutex busy;  // one request at a time
  double prefill_s_per_token = 0;  // of the newest slice of typical size

  mutable std::mutex stats_mutex;
  EngineStats stats;

  Result<void> open(const ProgressFn& progress);
  Result<void> open_store();
  Result<void> check(const CompletionRequest& request) const;
  Result<void> check_memory(uint32_t n_token) const;
};

// One request on its way through the engine; lives while complete() runs.
class Session {
 public:
  Session(Engine::Impl& engine, const CompletionRequest& request)
      : e_(engine),
        r_(request),
        mode_(std::min(request.reuse.value_or(engine.options.reuse), store::ReuseMode::kExact)),
        stream_(request.stop),
        sequence_(request.tokens) {
    out_.n_prompt = static_cast<uint32_t>(request.tokens.size());
  }

  Result<Completion> run();

 private:
  bool storing() const { return e_.store != nullptr && mode_ != store::ReuseMode::kOff; }
  double ms_since_start() const { return (e_.clock.now_s() - start_s_) * 1e3; }
  void reuse();
  void collect_from(const store::Match& match, const Loaded& loaded);
  Result<void> prefill();
  Result<void> generate();
  Result<void> step(std::span<const Token> tokens, uint32_t pos, NumericClass numeric_class,
                    WantLogits want);
  double cost_s(NumericClass numeric_class, size_t n_token, double measured_s);
  bool deliver(const std::string& text) { return text.empty() || !r_.on_text || r_.on_text(text); }

  Engine::Impl& e_;
  const CompletionRequest& r_;
  const store::ReuseMode mode_;
  TextStream stream_;
  std::vector<Token> sequence_;  // prompt and what was generated
  std::optional<ChunkCollector> collector_;
  plan::PrefillPlan plan_;
  std::vector<float> logits_;
  std::unique_ptr<model::Sampler> sampler_;
  Completion out_;
  double start_s_ = 0;
};

Result<Completion> Session::run() {
  start_s_ = e_.clock.now_s();
  HS_ASSIGN_OR_RETURN(sampler_, model::Sampler::open(r_.sampling, e_.tokenizer->vocab()));
  for (Token t : r_.tokens) sampler_->accept(t);
  e_.tables->reserve(out_.n_prompt + r_.n_predict);
  reuse();
  auto done = prefill();
  if (done.ok() && r_.n_predict > 0) done = generate();
  // What was computed is kept even if the client has left.
  if (collector_) collector_->finish(sequence_, plan_.n_strict);
  if (!done.ok()) return done.error();
  return std::move(out_);
}

void Session::reuse() {
  store::Match match;
  Loaded loaded;
  // A tail may be replaced by a longer one between being found and being read: look again, once.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const double begin_ms = ms_since_start();
    if (storing()) {
      match = e_.store->match({e_.fingerprint, e_.numeric, e_.kv->shape(), r_.salt,
                               std::span(r_.tokens).first(r_.tokens.size() - 1), mode_});
    }
    const double found_ms = ms_since_start();
    plan::PrefillQuestion question{out_.n_prompt, match.n_token, match.n_strict,
                                   e_.executor->grain(), e_.executor->n_token_max()};
    plan_ = plan::plan_prefill(question);
    const uint32_t n_wanted = plan_.n_reuse;
    if (n_wanted > 0) {
      const LoadTarget target{&e_.model->params(), e_.tables.get(), e_.fingerprint, e_.kv.get()};
      loaded = load_prefix(*e_.store, match, n_wanted, target, *e_.capture);
      question.n_match = std::min(question.n_match, loaded.n_token);
      question.n_match_strict = std::min(question.n_match_strict, loaded.n_token);
      plan_ = plan::plan_prefill(question);
    }
    out_.lookup_ms += found_ms - begin_ms;
    out_.load_ms += ms_since_start() - found_ms;
    if (loaded.n_token == n_wanted) break;
  }
  if (storing()) collect_from(match, loaded);
  out_.n_cached = plan_.n_reuse;
  out_.n_cached_rounded = plan_.n_reuse > plan_.n_strict ? plan_.n_reuse - plan_.n_strict : 0;
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
  collector_.emplace(*e_.store, *e_.capture, *e_.tokenizer,
                     ChunkOrigin{e_.fingerprint, e_.numeric, r_.salt}, e_.kv->shape());
  collector_->start(pos, parent);
  if (n_inherited > 0) {
    const store::ChunkSummary& last = match.chunks[loaded.n_chunk - 1].chunk;
    collector_->computed(n_inherited,
                         last.compute_s * n_inherited / static_cast<double>(last.tokens->size()));
  }
}

Result<void> Session::step(std::span<const Token> tokens, uint32_t pos, NumericClass numeric_class,
                           WantLogits want) {
  std::vector<uint32_t> positions(tokens.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = pos + static_cast<uint32_t>(i);
  LayerStep s;
  s.layer_end = e_.model->params().n_layer;
  s.tokens = tokens;
  s.positions = positions;
  s.numeric_class = numeric_class;
  s.kv = e_.kv.get();
  s.capture = collector_ ? e_.capture.get() : nullptr;
  s.want_logits = want;
  s.logits = &logits_;
  s.cancel = r_.cancel;
  const double begin_s = e_.clock.now_s();
  HS_RETURN_IF_ERROR(e_.executor->run(s));
  if (collector_) {
    collector_->computed(static_cast<uint32_t>(tokens.size()),
                         cost_s(numeric_class, tokens.size(), e_.clock.now_s() - begin_s));
    collector_->emit(sequence_, plan_.n_strict);
  }
  return {};
}

// What prefilling these tokens would take: the price of losing them. Decoding, and a few tokens
// alone, take far longer than the same tokens in a prompt.
double Session::cost_s(NumericClass numeric_class, size_t n_token, double measured_s) {
  constexpr size_t kTypicalSlice = 64;
  if (numeric_class == NumericClass::kPrefill && n_token >= kTypicalSlice) {
    e_.prefill_s_per_token = measured_s / static_cast<double>(n_token);
  }
  return e_.prefill_s_per_token > 0 ? e_.prefill_s_per_token * static_cast<double>(n_token)
                                    : measured_s;
}

Result<void> Session::prefill() {
  const double begin_ms = ms_since_start();
  for (const plan::Slice& slice : plan_.slices) {
    if (r_.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
    const bool last = slice.end == out_.n_prompt;
    HS_RETURN_IF_ERROR(step(std::span(r_.tokens).subspan(slice.first, slice.end - slice.first),
                            slice.first, NumericClass::kPrefill,
                            last && r_.n_predict > 0 ? WantLogits::kLast : WantLogits::kNone));
    if (r_.progress) r_.progress("prefill", static_cast<double>(slice.end) / out_.n_prompt);
  }
  out_.compute_ms = ms_since_start() - begin_ms;
  out_.ttft_ms = ms_since_start();
  out_.prefill_tok_s = (out_.n_prompt - plan_.n_reuse) / (out_.compute_ms * 1e-3);
  return {};
}

Result<void> Session::generate() {
  Token token = sampler_->sample(logits_);
  out_.ttft_ms = ms_since_start();
  const double begin_s = e_.clock.now_s();
  for (;;) {
    if (e_.tokenizer->is_end(token)) {
      out_.finish = FinishReason::kStop;
      break;
    }
    out_.tokens.push_back(token);
    if (!deliver(stream_.push(e_.tokenizer->piece(token)))) return Error{Code::kCancelled, "cancelled"};
    if (stream_.stopped()) {
      out_.finish = FinishReason::kStop;
      break;
    }
    if (out_.tokens.size() >= r_.n_predict) break;
    if (r_.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
    const auto pos = static_cast<uint32_t>(sequence_.size());
    sequence_.push_back(token);
    HS_RETURN_IF_ERROR(step({&token, 1}, pos, NumericClass::kDecode, WantLogits::kLast));
    token = sampler_->sample(logits_);
  }
  const double decode_s = e_.clock.now_s() - begin_s;
  const size_t n_decoded = sequence_.size() - r_.tokens.size();
  out_.decode_tok_s = n_decoded > 0 ? static_cast<double>(n_decoded) / decode_s : 0;
  if (!deliver(stream_.finish())) return Error{Code::kCancelled, "cancelled"};
  out_.text = stream_.text();
  return {};
}

Result<void> Engine::Impl::open(const ProgressFn& progress) {
  HS_ASSIGN_OR_RETURN(const kv::LiveType type_k, kv::live_type_from_name(options.cache_type_k));
  HS_ASSIGN_OR_RETURN(const kv::LiveType type_v, kv::live_type_from_name(options.cache_type_v));
  if (options.n_batch < 16 || options.n_batch > 2048) {
    return Error{Code::kInvalidArgument, "the batch must have 16 to 2048 tokens"};
  }
  if (options.n_threads == 0) options.n_threads = std::max(1u, std::thread::hardware_concurrency());
  if (options.n_threads > 512) return Error{Code::kInvalidArgument, "use 1 to 512 threads"};

  HS_ASSIGN_OR_RETURN(model, model::Model::open(options.model_path, [&](double done) {
                        if (progress) progress("load", done);
                      }));
  HS_ASSIGN_OR_RETURN(tokenizer, model::Tokenizer::open(options.model_path));
  HS_ASSIGN_OR_RETURN(chat_template, model::ChatTemplate::open(tokenizer->handle()));
  const model::ModelParams& p = model->params();
  if (static_cast<uint32_t>(tokenizer->n_vocab()) > p.n_vocab) {
    return Error{Code::kCorrupt, options.model_path.string() +
                                     " has more tokens in its vocabulary than embeddings"};
  }
  if (options.n_ctx == 0) options.n_ctx = p.n_ctx_train;
  if (options.n_ctx > kContextMax) {
    return Error{Code::kInvalidArgument, "the context must have at most 16777216 tokens"};
  }
  if (options.n_ctx > p.n_ctx_train) {
    spdlog::warn("a context of {} tokens is more than the {} that the model was trained with",
                 options.n_ctx, p.n_ctx_train);
  }
  tables = std::make_unique<RopeTables>(p);
  HS_ASSIGN_OR_RETURN(executor, GgmlExecutor::open(*model, *tables, {options.n_threads, options.n_batch}));
  HS_ASSIGN_OR_RETURN(kv, kv::LiveKv::open(shape_of(p), type_k, type_v, pad_to(options.n_ctx, 256)));
  numeric = Sha256()
                .update(executor->identity() + "/k=" + options.cache_type_k +
                        "/v=" + options.cache_type_v + "/attention=dense")
                .finish();
  return open_store();
}

Result<void> Engine::Impl::open_store() {
  if (options.reuse == store::ReuseMode::kOff ||
      (!options.cache_dir && options.ram_budget_bytes == 0)) {
    return {};
  }
  std::filesystem::path digests;
  if (auto home = cache_home(); home.ok()) digests = *home / "fingerprints";
  HS_ASSIGN_OR_RETURN(fingerprint, model::fingerprint(options.model_path, digests));
  std::vector<std::unique_ptr<store::Tier>> tiers;
  if (options.ram_budget_bytes > 0) {
    tiers.push_back(std::make_unique<store::RamTier>(options.ram_budget_bytes));
  }
  if (options.cache_dir) {
    HS_ASSIGN_OR_RETURN(auto tier, store::DiskTier::open(*options.cache_dir,
                                                         options.disk_budget_bytes, disk, clock));
    tiers.push_back(std::move(tier));
  }
  store = std::make_unique<store::Store>(std::move(tiers), kStoreQueueBytesMax);
  capture = std::make_unique<kv::Capture>(kv->shape(), options.n_batch + kv::kChunkTokensMax);
  return {};
}

Result<void> Engine::Impl::check(const CompletionRequest& r) const {
  if (r.tokens.empty()) return Error{Code::kInvalidArgument, "the prompt is empty"};
  const uint64_t n_token = r.tokens.size() + uint64_t{r.n_predict};
  if (n_token > options.n_ctx) {
    return Error{Code::kInvalidArgument,
                 "the prompt has " + std::to_string(r.tokens.size()) + " tokens and " +
                     std::to_string(r.n_predict) + " more are wanted, but the context has " +
                     std::to_string(options.n_ctx) + "; shorten the prompt or raise -c"};
  }
  for (Token t : r.tokens) {
    if (t < 0 || static_cast<uint32_t>(t) >= model->params().n_vocab) {
      return Error{Code::kInvalidArgument, "the prompt holds a token that the model does not have"};
    }
  }
  if (r.salt.size() > kSaltBytesMax) {
    return Error{Code::kInvalidArgument, "the cache salt has more than 256 bytes"};
  }
  if (r.stop.size() > kStopsMax || std::any_of(r.stop.begin(), r.stop.end(),
                                               [](const auto& s) { return s.empty(); })) {
    return Error{Code::kInvalidArgument, "give at most 16 stop strings, none of them empty"};
  }
  return check_memory(static_cast<uint32_t>(n_token));
}

// What the run will take beyond what the process already holds, an upper estimate.
Result<void> Engine::Impl::check_memory(uint32_t n_token) const {
  const model::ModelParams& p = model->params();
  const uint64_t kv_bytes = kv->bytes_for(n_token);
  const uint64_t row_floats = uint64_t{p.d_model} * 4 + uint64_t{p.n_ff} * 2 +
                              uint64_t{p.n_head} * p.d_head_k * 3 + n_token;
  const uint64_t work_bytes = std::min(n_token, options.n_batch) * row_floats * 4 + p.n_vocab * 8ull;
  const uint64_t available = available_memory_bytes();
  if (kv_bytes + work_bytes <= available) return {};
  return Error{Code::kExhausted,
               "this request needs " + mib(kv_bytes + work_bytes) + " (" + mib(kv_bytes) +
                   " of KV cache for " + std::to_string(n_token) + " tokens), but only " +
                   mib(available) +
                   " are available; shorten the prompt, generate less, or use "
                   "--cache-type-k q8_0 --cache-type-v q8_0"};
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options, ProgressFn progress) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  HS_RETURN_IF_ERROR(impl->open(progress));
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<Completion> Engine::complete(const CompletionRequest& request) {
  std::lock_guard lock(impl_->busy);
  HS_RETURN_IF_ERROR(impl_->check(request));
  auto completion = Session(*impl_, request).run();
  std::lock_guard stats_lock(impl_->stats_mutex);
  EngineStats& s = impl_->stats;
  ++s.n_request;
  if (completion.ok()) {
    s.n_prompt_token += completion->n_prompt;
    s.n_cached_token += completion->n_cached;
    s.n_generated_token += completion->tokens.size();
    s.kv_bytes = impl_->kv->bytes_for(
        static_cast<uint32_t>(completion->n_prompt + completion->tokens.size()));
  }
  return completion;
}

const model::Tokenizer& Engine::tokenizer() const { return *impl_->tokenizer; }
const model::ChatTemplate& Engine::chat_template() const { return *impl_->chat_template; }
const std::string& Engine::model_name() const { return impl_->model->params().name; }
uint32_t Engine::n_ctx() const { return impl_->options.n_ctx; }

void Engine::flush_store() {
  if (impl_->store != nullptr) impl_->store->flush();
}

EngineStats Engine::stats() const {
  std::lock_guard lock(impl_->stats_mutex);
  EngineStats stats = impl_->stats;
  if (impl_->store != nullptr) stats.store = impl_->store->stats();
  return stats;
}

}  // namespace headstart::exec
