#include "exec/engine.h"

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "base/memory.h"
#include "base/paths.h"
#include "base/rounding.h"
#include "exec/engine_parts.h"
#include "exec/ggml_graph.h"
#include "exec/kv_shape.h"
#include "exec/session.h"
#include "exec/slot_actions.h"
#include "kernels/sparse_attention.h"
#include "model/fingerprint.h"
#include "store/disk_tier.h"
#include "store/ram_tier.h"

namespace headstart::exec {
namespace {

constexpr uint32_t kContextMax = 1u << 24;
constexpr uint32_t kParallelMax = 64;
// Chunks that wait for the background writer: at least this, and two batches. It fills only when
// the disk is slower than computing, and then storing is given up, not computing.
constexpr uint64_t kStoreQueueBytesMin = uint64_t{256} << 20;

std::string mib(uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

Result<void> check_sparse_attention(const EngineOptions& o) {
  if (o.sparse_attention == 0) return {};
  if (!(o.sparse_attention >= 0.5f && o.sparse_attention <= 1)) {
    return Error{Code::kInvalidArgument,
                 "--sparse-attention: use a share of the attention mass from 0.5 to 1, or 0 for "
                 "dense attention"};
  }
  if (o.n_batch < kernels::kQueryBlock) {
    return Error{Code::kInvalidArgument, "--sparse-attention needs a batch of at least " +
                                             std::to_string(kernels::kQueryBlock) + " tokens (-b)"};
  }
  return {};
}

// Part of the numeric identity.
std::string attention_name(const EngineOptions& o) {
  return o.sparse_attention == 0 ? "dense" : fmt::format("sparse:{}", o.sparse_attention);
}

// Rows of q8_0 are quantised by ggml, whose rounding depends on the build.
std::string cache_name(const std::string& type) {
  return type == "q8_0" ? type + "/" HEADSTART_GGML_KEY : type;
}

}  // namespace

struct Engine::Impl : EngineParts {
  mutable std::mutex stats_mutex;
  EngineStats stats;

  Result<void> open(const ProgressFn& progress);
  Result<void> open_store(const ProgressFn& progress);
  Result<void> check(const CompletionRequest& request) const;
  Result<void> check_memory(const Slot& slot, uint32_t n_token) const;
  uint64_t promised_bytes() const;
  Result<Slot*> take_slot(const CompletionRequest& request);
  void give_back(Slot& slot);
  // A slot while a request has it.
  struct SlotUse {
    SlotUse(Impl& e, Slot& s) : engine(e), slot(s) {}
    ~SlotUse() { engine.give_back(slot); }
    SlotUse(const SlotUse&) = delete;
    SlotUse& operator=(const SlotUse&) = delete;
    Impl& engine;
    Slot& slot;
  };
  void count(const Completion& completion);
  // f(slot) while no request can have the slot.
  template <class F>
  Result<SlotMoved> with_slot(uint32_t id, const F& f);
};

Result<void> Engine::Impl::open(const ProgressFn& progress) {
  HS_ASSIGN_OR_RETURN(const kv::LiveType type_k, kv::live_type_from_name(options.cache_type_k));
  HS_ASSIGN_OR_RETURN(const kv::LiveType type_v, kv::live_type_from_name(options.cache_type_v));
  HS_ASSIGN_OR_RETURN(const Kernels kernels, kernels_from_name(options.kernels));
  HS_ASSIGN_OR_RETURN(const kernels::PrefillOps prefill, kernels::prefill_ops(options.operands));
  if (options.n_batch < 16 || options.n_batch > 2048) {
    return Error{Code::kInvalidArgument, "the batch must have 16 to 2048 tokens"};
  }
  HS_RETURN_IF_ERROR(check_sparse_attention(options));
  if (options.n_threads == 0) options.n_threads = std::max(1u, std::thread::hardware_concurrency());
  if (options.n_threads > 512) return Error{Code::kInvalidArgument, "use 1 to 512 threads"};
  if (options.n_parallel < 1 || options.n_parallel > kParallelMax) {
    return Error{Code::kInvalidArgument, "--parallel: use 1 to 64 requests at once"};
  }

  HS_ASSIGN_OR_RETURN(model, model::Model::open(options.model_path));
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
  ExecutorOptions how{.n_threads = options.n_threads,
                      .n_token_max = options.n_batch,
                      .kernels = kernels,
                      .prefill = prefill,
                      .sparse_attention = options.sparse_attention,
                      .progress = [&](double done) {
                        if (progress) progress("load", done);
                      }};
  take_calibration(options.model_path, how, [&](double done) {
    if (progress) progress("hash", done);
  });
  HS_ASSIGN_OR_RETURN(executor, open_executor(*model, *tables, how));
  scheduler = std::make_unique<StepScheduler>(*executor, clock, p);
  for (uint32_t i = 0; i < options.n_parallel; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->id = i;
    HS_ASSIGN_OR_RETURN(
        slot->kv, kv::LiveKv::open(kv_shape_of(p), type_k, type_v, pad_to(options.n_ctx, kKeyPad)));
    slots.push_back(std::move(slot));
  }
  numeric = Sha256()
                .update(executor->identity() + "/k=" + cache_name(options.cache_type_k) + "/v=" +
                        cache_name(options.cache_type_v) + "/attention=" + attention_name(options))
                .finish();
  stats.kernels = executor->identity();
  return open_store(progress);
}

Result<void> Engine::Impl::open_store(const ProgressFn& progress) {
  if (options.reuse == store::ReuseMode::kOff ||
      (!options.cache_dir && options.ram_budget_bytes == 0)) {
    return {};
  }
  n_capture = options.n_batch + kv::kChunkTokensMax;
  const kv::KvShape shape = slots.front()->kv->shape();
  const uint64_t capture_bytes = options.n_parallel * n_capture * shape.bytes_per_token();
  if (shape.bytes_per_token() * kv::kChunkTokensMax + kv::kHeaderBytesMax > kv::kChunkBytesMax) {
    return Error{Code::kUnsupported,
                 "this model's KV cache is too large to be stored; use --no-cache"};
  }
  if (capture_bytes > available_memory_bytes()) {
    return Error{Code::kExhausted, "storing needs a window of " + mib(capture_bytes) +
                                       "; use a smaller -b or --parallel, or --no-cache"};
  }
  std::filesystem::path digests;
  if (auto home = cache_home(); home.ok()) digests = *home / "fingerprints";
  HS_ASSIGN_OR_RETURN(fingerprint,
                      model::fingerprint(options.model_path, digests, [&](double done) {
                        if (progress) progress("hash", done);
                      }));
  // What sparse attention leaves out is no rounding: nothing of it may meet dense chunks, not even
  // in mode exact.
  if (options.sparse_attention > 0) {
    fingerprint = Sha256()
                      .update(std::as_bytes(std::span(fingerprint)))
                      .update(attention_name(options))
                      .finish();
  }
  std::vector<std::unique_ptr<store::Tier>> tiers;
  if (options.ram_budget_bytes > 0) {
    tiers.push_back(std::make_unique<store::RamTier>(options.ram_budget_bytes));
  }
  if (options.cache_dir) {
    HS_ASSIGN_OR_RETURN(auto tier, store::DiskTier::open(*options.cache_dir,
                                                         options.disk_budget_bytes, disk, clock));
    tiers.push_back(std::move(tier));
  }
  store = std::make_unique<store::Store>(std::move(tiers),
                                         std::max(kStoreQueueBytesMin, 2 * capture_bytes));
  return {};
}

Result<void> Engine::Impl::check(const CompletionRequest& r) const {
  if (r.tokens.empty())
    return Error{Code::kInvalidArgument, "the prompt is empty; give it at least one token of text"};
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
  if (r.salt.size() > kv::kSaltBytesMax) {
    return Error{Code::kInvalidArgument, "the cache salt has more than 256 bytes"};
  }
  if (r.stop.size() > kStopsMax ||
      std::any_of(r.stop.begin(), r.stop.end(), [](const auto& s) { return s.empty(); })) {
    return Error{Code::kInvalidArgument, "give at most 16 stop strings, none of them empty"};
  }
  return {};
}

// What running requests will take of the memory that is still available.
uint64_t Engine::Impl::promised_bytes() const {
  uint64_t n_byte = 0;
  for (const auto& slot : slots) {
    if (!slot->busy) continue;
    const uint32_t n_taken = std::max(slot->n_token_computed.load(), slot->n_token_resident);
    const uint32_t n_wanted = slot->n_token_wanted;
    n_byte += slot->kv->bytes_for(n_wanted) - slot->kv->bytes_for(std::min(n_wanted, n_taken));
  }
  return n_byte;
}

// What the run will take beyond what the process already holds, an upper estimate.
Result<void> Engine::Impl::check_memory(const Slot& slot, uint32_t n_token) const {
  const model::ModelParams& p = model->params();
  const kv::LiveKv* const kv = slot.kv.get();
  const uint64_t kv_bytes =
      kv->bytes_for(n_token) - kv->bytes_for(std::min(n_token, slot.n_token_resident));
  const uint64_t row_floats = uint64_t{p.d_model} * 4 + uint64_t{p.n_ff} * 2 +
                              uint64_t{p.n_head} * p.d_head_k * 3 +
                              (executor->n_decode_max() == 1 ? n_token : 0);  // ggml's masks
  constexpr uint64_t kThreadBytes = uint64_t{6} << 20;  // a thread's panels and attention sums
  const uint64_t rope_bytes = uint64_t{n_token} * p.d_head_k * 4 * 3;
  const uint64_t logits_bytes = (executor->n_decode_max() + 1ull) * p.n_vocab * 4;
  const uint64_t work_bytes = std::min(n_token, options.n_batch) * row_floats * 4 + logits_bytes +
                              options.n_threads * kThreadBytes + rope_bytes;
  const uint64_t free = available_memory_bytes(), promised = promised_bytes();
  const uint64_t available = free > promised ? free - promised : 0;
  if (kv_bytes + work_bytes <= available) return {};
  return Error{Code::kExhausted, "this request needs " + mib(kv_bytes + work_bytes) + " (" +
                                     mib(kv_bytes) + " of KV cache for " + std::to_string(n_token) +
                                     " tokens), but only " + mib(available) +
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

// A free slot, the one with the most memory, once there is one.
Result<Slot*> Engine::Impl::take_slot(const CompletionRequest& request) {
  const auto n_token = static_cast<uint32_t>(request.tokens.size()) + request.n_predict;
  const std::stop_callback wake(request.cancel, [this] {
    const std::lock_guard lock(slots_mutex);
    slot_freed.notify_all();
  });
  std::unique_lock lock(slots_mutex);
  Slot* slot = nullptr;
  slot_freed.wait(lock, [&] {
    slot = nullptr;
    for (const auto& s : slots) {
      if (s->busy) continue;
      if (slot == nullptr || s->n_token_resident > slot->n_token_resident) slot = s.get();
    }
    return slot != nullptr || request.cancel.stop_requested();
  });
  if (request.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
  HS_RETURN_IF_ERROR(check_memory(*slot, n_token));
  slot->busy = true;
  slot->n_token_wanted = n_token;
  slot->n_token_computed = 0;
  // Pages beyond this request's end are given back, those before it are used again.
  if (slot->n_token_resident > n_token) slot->kv->release(n_token);
  slot->n_token_resident = std::min(slot->n_token_resident, n_token);
  return slot;
}

void Engine::Impl::give_back(Slot& slot) {
  {
    const std::lock_guard lock(slots_mutex);
    slot.n_token_resident = std::max(slot.n_token_resident, slot.n_token_computed.load());
    slot.busy = false;
  }
  slot_freed.notify_all();  // one alone may be about to leave, and then nobody takes the slot
}

void Engine::Impl::count(const Completion& c) {
  const std::lock_guard lock(stats_mutex);
  stats.n_prompt_token += c.n_prompt;
  stats.n_cached_token += c.n_cached;
  stats.n_generated_token += c.tokens.size();
  stats.n_proposed_token += c.n_proposed;
  stats.n_accepted_token += c.n_accepted;
}

Result<Completion> Engine::complete(const CompletionRequest& request) {
  HS_RETURN_IF_ERROR(impl_->check(request));
  const double begin_s = impl_->clock.now_s();
  HS_ASSIGN_OR_RETURN(Slot* const slot, impl_->take_slot(request));
  const Impl::SlotUse use(*impl_, *slot);
  if (impl_->store != nullptr && slot->capture == nullptr) {
    slot->capture = std::make_unique<kv::Capture>(slot->kv->shape(), impl_->n_capture);
  }
  const double wait_ms = (impl_->clock.now_s() - begin_s) * 1e3;
  auto completion = Session(*impl_, *slot, request).run();
  {
    const std::lock_guard lock(impl_->stats_mutex);
    ++impl_->stats.n_request;
  }
  if (!completion.ok()) return completion;
  completion->wait_ms += wait_ms;
  completion->ttft_ms += wait_ms;
  impl_->count(*completion);
  return completion;
}

template <class F>
Result<SlotMoved> Engine::Impl::with_slot(uint32_t id, const F& f) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(slots_mutex);
    if (id >= slots.size()) {
      return Error{Code::kNotFound, "there are slots 0 to " + std::to_string(slots.size() - 1)};
    }
    slot = slots[id].get();
    if (slot->busy) {
      return Error{Code::kUnavailable, "a request runs in this slot; try again when it is done"};
    }
    slot->busy = true;
    slot->n_token_wanted = 0;
    slot->n_token_computed = 0;
  }
  const SlotUse use(*this, *slot);
  return f(*slot);
}

std::vector<SlotState> Engine::slots() const {
  const std::lock_guard lock(impl_->slots_mutex);
  std::vector<SlotState> states;
  for (const auto& s : impl_->slots) {
    const auto n_held =
        s->busy ? s->n_token_computed.load() : static_cast<uint32_t>(s->tokens.size());
    states.push_back({s->id, s->busy, n_held, s->busy ? s->n_token_wanted : 0});
  }
  return states;
}

Result<SlotMoved> Engine::save_slot(uint32_t id, const std::filesystem::path& dir) {
  return impl_->with_slot(id, [&](Slot& s) { return exec::save_slot(*impl_, s, dir); });
}

Result<SlotMoved> Engine::restore_slot(uint32_t id, const std::filesystem::path& dir) {
  return impl_->with_slot(id, [&](Slot& s) { return exec::restore_slot(*impl_, s, dir); });
}

Result<SlotMoved> Engine::erase_slot(uint32_t id) {
  return impl_->with_slot(id, [&](Slot& s) { return exec::erase_slot(*impl_, s); });
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
  {
    const std::lock_guard slots_lock(impl_->slots_mutex);
    for (const auto& slot : impl_->slots) {
      const uint32_t n = std::max(slot->n_token_resident, slot->n_token_computed.load());
      stats.kv_bytes += slot->kv->bytes_for(n);
      stats.kv_bytes_max += slot->kv->bytes_for(impl_->options.n_ctx);
    }
  }
  if (impl_->store != nullptr) stats.store = impl_->store->stats();
  return stats;
}

}  // namespace headstart::exec
