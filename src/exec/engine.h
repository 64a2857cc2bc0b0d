// exec/engine.h: one loaded model that answers prompts, reusing K,V where it can.
//
// The life of a prompt (ARCHITECTURE.md): tokens → match in the store → plan → load what is known,
// compute the rest → sample, stream out → store new chunks in the background.
//
//   units    times in milliseconds or seconds as named, token counts in tokens
//   threads  any; complete() computes n_parallel requests at once and makes others wait
//   errors   kInvalidArgument (prompt longer than the context, options out of range),
//            kExhausted (memory; the message says what to change), kUnsupported (architecture),
//            kCancelled
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "model/chat_template.h"
#include "model/sampler.h"
#include "model/token_probs.h"
#include "model/tokenizer.h"
#include "store/store.h"

namespace headstart::exec {

struct EngineOptions {
  std::filesystem::path model_path;
  uint32_t n_ctx = 0;                // 0: what the model was trained for
  uint32_t n_threads = 0;            // 0: one for each core
  uint32_t n_batch = 512;            // most tokens computed in one step, 16 to 2048
  uint32_t n_parallel = 1;           // requests at once, each with a KV cache of its own, 1 to 64
  std::string cache_type_k = "f16";  // f16 or q8_0, as llama.cpp's --cache-type-k
  std::string cache_type_v = "f16";
  std::string kernels = "auto";   // what computes: auto, native or ggml
  std::string operands = "auto";  // of native prefill: kernels/operands.h
  float sparse_attention = 0;  // share of the attention mass that prefill keeps, 0.5 to 1; 0: dense
  std::optional<std::filesystem::path> cache_dir;  // nothing: no disk tier
  uint64_t disk_budget_bytes = uint64_t{4} << 30;
  uint64_t ram_budget_bytes = 0;                      // 0: no RAM tier
  store::ReuseMode reuse = store::ReuseMode::kExact;  // of a request that does not say
  uint32_t n_propose_max = 0;                         // of a request that does not say
};

// Share of `phase` that is done, 0 to 1. Called from the computing thread. Phases of a request are
// "lookup", "wait" (for another that computes the same), "load", "prefill" (of the prompt's tokens,
// first what is reused) and "decode" (of n_predict).
using ProgressFn = std::function<void(std::string_view phase, double done)>;

inline constexpr size_t kStopsMax = 16;

struct CompletionRequest {
  std::vector<Token> tokens;  // the prompt; at least one, at most n_ctx - n_predict (n_ctx for 0)
  uint32_t n_predict = 128;   // most tokens to generate; 0 fills the cache and returns none
  model::SamplingOptions sampling;
  std::vector<std::string> stop;  // ends the text before any of these; at most 16, none empty
  std::optional<store::ReuseMode> reuse;  // nothing: the engine's
  // Most tokens that a decode step computes on trial (exec/prompt_lookup.h): 0 is off, nothing the
  // engine's, more than the executor can do is cut. The answer is the same whatever it is.
  std::optional<uint32_t> n_propose_max;
  std::string salt;          // partitions the store; at most 256 bytes
  std::vector<Token> shown;  // control tokens that the text shows, as a parser of it needs them
  std::optional<uint32_t> n_top_logprobs;  // nothing: no probabilities; at most kTopTokensMax
  std::stop_token cancel;
  ProgressFn progress;  // of "prefill": first what is reused, then each slice; may be empty
  // Receives the text as it is generated, always whole UTF-8 sequences, stop strings held back.
  // Returning false cancels the request. May be empty.
  std::function<bool(std::string_view piece)> on_text;
  // Receives the probabilities of the tokens whose text comes with the next on_text. May be empty.
  std::function<void(std::span<const model::TokenProbs>)> on_probs;
};

// Why no more of a prompt was reused: the stored prompt that it follows longest goes on
// differently.
struct PromptDivergence {
  uint32_t pos = 0;         // of the first token that differs
  std::string prompt_text;  // from there on, a few tokens
  std::string stored_text;
};

inline constexpr std::string_view kComputed = "computed";

// A block of the prompt's lattice, tokens × layers, and where its K,V came from. What no block
// covers was not needed: it lies outside the window of a sliding-window layer.
struct PromptCells {
  uint32_t pos_first = 0;
  uint32_t n_token = 0;  // at most a chunk
  store::CellRange layers;
  std::string source;  // a tier's name, store::kQueueName or kComputed
};

enum class FinishReason { kStop, kLength };

struct Completion {
  std::string text;
  std::vector<Token> tokens;  // generated, an end-of-text token not included
  // Of the tokens whose text was sent: those that only made up a stop string are not there.
  std::vector<model::TokenProbs> probs;
  FinishReason finish = FinishReason::kLength;
  std::string stop;  // the stop string that ended the text; empty: another reason
  uint32_t n_prompt = 0;
  uint32_t n_cached = 0;          // prompt tokens not computed
  uint32_t n_cached_rounded = 0;  // of these, equal to a cold run up to rounding only
  std::optional<PromptDivergence> divergence;
  std::vector<PromptCells> cells;  // in order of position
  uint32_t n_proposed = 0;         // tokens computed on trial while decoding
  uint32_t n_accepted = 0;         // of these, tokens that the sampler then picked
  double ttft_ms = 0;              // prompt given to first token sampled
  // Parts of ttft_ms; wait: for a slot, for steps of other requests, for a prefix that another one
  // was computing.
  double wait_ms = 0, lookup_ms = 0, load_ms = 0, compute_ms = 0;
  double decode_ms = 0;      // first token sampled to the last one
  double prefill_tok_s = 0;  // computed prompt tokens per second of compute_ms
  double decode_tok_s = 0;   // generated tokens after the first, per second
  // Of sparse attention, over layers, query heads and blocks of queries (exec/layer_executor.h).
  uint64_t n_attention_active = 0, n_attention_causal = 0;
};

// A request's place; what it held last can be saved and restored.
struct SlotState {
  uint32_t id = 0;
  bool busy = false;
  uint32_t n_token = 0;         // computed of the running request, else of the newest one
  uint32_t n_token_wanted = 0;  // of the running request
};

// Tokens and bytes of a slot action.
struct SlotMoved {
  uint32_t n_token = 0;
  uint64_t n_byte = 0;
  double ms = 0;
};

struct EngineStats {
  store::StoreStats store;
  uint64_t n_request = 0;
  uint64_t n_prompt_token = 0, n_cached_token = 0, n_generated_token = 0;
  uint64_t n_proposed_token = 0, n_accepted_token = 0;
  uint64_t kv_bytes = 0;      // live K,V that requests have taken
  uint64_t kv_bytes_max = 0;  // what they can take, all of them with a full context
  std::string kernels;        // what computes: executor, revision, instruction sets
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options,
                                              ProgressFn progress = {});
  ~Engine();  // flushes the store

  Result<Completion> complete(const CompletionRequest& request);

  const model::Tokenizer& tokenizer() const;
  const model::ChatTemplate& chat_template() const;
  const std::string& model_name() const;  // general.name, else the file's stem
  uint32_t n_ctx() const;
  std::vector<SlotState> slots() const;
  // Keeps what slot `id` held last in the folder `dir`, whatever the store evicts later. Tokens
  // that are no longer stored are not saved, and not counted.
  Result<SlotMoved> save_slot(uint32_t id, const std::filesystem::path& dir);
  // Brings it back into the store. n_token: what the next request with this beginning reuses.
  Result<SlotMoved> restore_slot(uint32_t id, const std::filesystem::path& dir);
  // Forgets what the slot held, also what the store has of it.
  Result<SlotMoved> erase_slot(uint32_t id);
  // Errors of the three: kNotFound (no such slot, nothing saved), kUnavailable (a request runs in
  // it), kUnsupported (no store; another model's), kCorrupt, kExhausted, kIo.

  void flush_store();
  EngineStats stats() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headstart::exec
