// store/tier.h: one place where encoded KV chunks can live (RAM, disk; later HTTP, Redis).
//
// A chunk never changes once named: its id covers the model, how it was computed and every token
// it depends on (kv/chunk_id.h). A tier may drop a chunk, never edit it. A longer tail replaces a
// shorter one, and a chunk with more strict tokens one with fewer, each as a whole.
//
//   units    sizes in bytes, deadlines on the steady clock
//   threads  every method may be called from any thread at once
//   source   format: docs/formats/chunk.md
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "kv/chunk_format.h"

namespace headstart::store {

// What an index knows of a chunk without reading its cells.
struct ChunkSummary {
  kv::ChunkId id;
  Digest fingerprint{};
  Digest parent_key{};
  std::shared_ptr<const std::vector<Token>> tokens;
  kv::KvShape shape;
  uint32_t flags = 0;
  uint32_t pos_first = 0;
  uint32_t n_strict = 0;
  uint64_t size_bytes = 0;
  double compute_s = 0;
};

ChunkSummary summary_of(const kv::ChunkMeta& meta, uint64_t size_bytes);

// How many leading tokens two runs share.
uint32_t n_shared(std::span<const Token> a, std::span<const Token> b);

inline constexpr size_t kChildrenMax = 16;

// Which layers of a chunk are wanted.
struct CellRange {
  uint32_t layer_first = 0;
  uint32_t layer_end = 0;  // one past the last
};

// Takes the cells of one chunk. Called on the thread that called get(), K of a layer before its V.
class CellSink {
 public:
  virtual ~CellSink() = default;
  // Called before any cell, once in each get(). An error ends the get() and is handed back: the
  // sink refuses a chunk whose tokens, model or shape are not what it asked for.
  virtual Result<void> begin(const kv::ChunkHeader& header) = 0;
  // `values` is f16 [n_token, n_head_kv, d_head], checksum verified, valid during the call.
  virtual void cell(uint32_t layer, kv::Part part, std::span<const kv::Half> values) = 0;
};

struct TierStats {
  uint64_t n_chunk = 0;
  uint64_t size_bytes = 0;
  uint64_t budget_bytes = 0;
  uint64_t n_hit = 0;      // get() that delivered
  uint64_t n_miss = 0;     // get() of an unknown or vanished chunk
  uint64_t n_corrupt = 0;  // chunks dropped because bytes did not check out
  uint64_t n_put = 0;
  uint64_t n_evicted = 0;     // dropped or never taken in, for lack of room
  uint64_t n_put_failed = 0;  // disk full and the like
};

struct VerifyReport {
  uint64_t n_ok = 0;
  uint64_t n_corrupt = 0;  // dropped
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual std::string_view name() const = 0;
  // The chunks whose parent is `parent_key`, of every numeric identity, that start with the same
  // token as `tokens`: those that share most leading tokens first, at most kChildrenMax (a system
  // prompt may have thousands of children). Empty is an answer.
  virtual std::vector<ChunkSummary> children(const Digest& parent_key,
                                             std::span<const Token> tokens) = 0;
  // Hands the wanted cells to `sink`, verified since they were last read from outside this process,
  // and marks the chunk as used.
  // Cells may have been handed over before an error: the caller must not use them then.
  // Errors: kNotFound; kUnavailable (deadline); kCorrupt (this tier has dropped the chunk); kIo;
  // kInvalidArgument (layers that the chunk lacks); what the sink's begin() returned (the chunk
  // stays).
  virtual Result<void> get(const kv::ChunkId& id, CellRange want, CellSink& sink,
                           Deadline deadline) = 0;
  // The whole chunk, verified, to be copied to another tier: neither a use nor a hit.
  // Errors: kNotFound, kCorrupt (dropped), kIo.
  virtual Result<kv::ChunkPtr> read(const kv::ChunkId& id) = 0;
  // Marks the chunk as used: a faster tier delivered it. Unknown ids are ignored.
  virtual void note_use(const kv::ChunkId& id) = 0;
  // Keeps the chunk, evicting others to stay within the budget. Ignored, which is success, is a
  // chunk that is already here, that loses against what it would replace (shorter tail, fewer
  // strict tokens), or that is worth less than every chunk it could evict.
  // Errors: kExhausted (larger than the budget, disk full), kIo. Nothing half-written stays.
  virtual Result<void> put(kv::ChunkPtr chunk) = 0;
  virtual Result<void> erase(const kv::ChunkId& id) = 0;  // absent is success
  virtual Result<void> clear() = 0;
  virtual Result<VerifyReport> verify() = 0;  // reads everything, drops what is damaged
  virtual TierStats stats() const = 0;
};

}  // namespace headstart::store
