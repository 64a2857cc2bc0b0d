// store/store.h: the tiers as one: longest match, loading with fall-back, background storing.
//
// A chunk can be matched and loaded from the moment that put() returns, while it still waits to be
// sealed and written.
//
//   units    sizes in bytes, tokens in tokens
//   threads  every method may be called from any thread at once; one background thread seals,
//            stores and copies chunks to faster tiers
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "kv/chunk_format.h"
#include "store/tier.h"

namespace headstart::store {

// off: nothing is looked up or stored. strict: only K,V with the bits of a cold run. exact: also
// K,V equal up to rounding (generated tokens, other numeric identities).
enum class ReuseMode { kOff, kStrict, kExact };

struct MatchQuery {
  Digest fingerprint;
  Digest numeric;
  kv::KvShape shape;
  std::string salt;
  std::span<const Token> tokens;  // at most this many are matched
  ReuseMode mode = ReuseMode::kExact;
};

struct MatchedChunk {
  ChunkSummary chunk;
  uint32_t pos_first = 0;  // where its first token stands in the query
  uint32_t n_use = 0;      // its first n_use tokens equal the query's
  uint32_t n_strict = 0;   // of these, the first n_strict have the bits of a cold run
};

// Where a query leaves the stored prompt that it follows longest.
struct Divergence {
  uint32_t pos = 0;           // of the first token that differs
  std::vector<Token> stored;  // from there on, up to the end of that chunk
};

struct Match {
  std::vector<MatchedChunk> chunks;      // in order of position, without gaps
  std::optional<Divergence> divergence;  // nothing: nothing that is stored goes on differently
  uint32_t n_token = 0;                  // sum of n_use
  uint32_t n_strict = 0;                 // length of the leading part with the bits of a cold run
};

// Where a chunk is that still waits to be stored.
inline constexpr std::string_view kQueueName = "queue";

struct StoreStats {
  std::vector<std::pair<std::string, TierStats>> tiers;
  uint64_t n_queue_dropped = 0;  // chunks not stored because the queue was full
  uint64_t queue_bytes = 0;      // of chunks that wait to be stored
};

class Store {
 public:
  // Tiers in order of speed. `queue_bytes_max` bounds the chunks that wait to be stored.
  Store(std::vector<std::unique_ptr<Tier>> tiers, uint64_t queue_bytes_max);
  ~Store();  // flushes
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // The longest run of stored chunks that the query starts with; token ids are compared, never
  // hashes alone. In strict mode only chunks of the query's numeric identity count, and only up to
  // their n_strict tokens. Only the last chunk of a match may be used in part. Where several
  // children fit, the longest run wins, then own identity, then more strict tokens.
  Match match(const MatchQuery& query);
  // Loads from the first place that delivers. begin() is called again for each tier that is tried,
  // so a sink must overwrite what an earlier one handed over. Where all layers were asked for, a
  // faster tier that lacks the chunk receives a copy in the background, a little later.
  // Returns the name of the tier that delivered, or kQueueName; valid as long as the store.
  // Errors: as Tier::get of the last tier that was tried.
  Result<std::string_view> load(const MatchedChunk& matched, CellRange want, CellSink& sink,
                                Deadline deadline);
  // Queues the chunk; sealing and writing happen on the background thread. False if the queue is
  // full: then the chunk is dropped and counted.
  bool put(kv::ChunkBuilder chunk);
  // A whole matched chunk, to be kept elsewhere. flush() first: one that still waits is not read.
  // Errors: as Tier::read of the last tier that was tried.
  Result<kv::ChunkPtr> read(const kv::ChunkId& id);
  // Puts a chunk that was kept elsewhere into each tier. Errors: those of the last tier, where none
  // took it.
  Result<void> take_in(kv::ChunkPtr chunk);
  void erase(const kv::ChunkId& id);  // from all tiers; flush() first
  void flush();                       // returns when nothing is queued
  StoreStats stats() const;
  Result<VerifyReport> verify();  // of all tiers together; flushes first
  Result<void> clear();           // of all tiers; flushes first

 private:
  struct Waiting {
    kv::ChunkBuilder builder;
    kv::ChunkPtr chunk;  // the same cells, readable before they are sealed
  };
  struct Loaded {  // a chunk that a tier delivered: faster tiers may get it, slower ones note its
                   // use
    kv::ChunkId id;
    size_t tier = 0;
    bool whole = false;
    std::chrono::steady_clock::time_point when;
  };
  struct Walk;

  std::vector<ChunkSummary> candidates(const Digest& parent_key, std::span<const Token> tokens);
  kv::ChunkPtr find_waiting(const kv::ChunkId& id) const;
  void note_load(const kv::ChunkId& id, size_t tier, bool whole);
  void work();
  void store_next(std::unique_lock<std::mutex>& lock);
  void spread_next(std::unique_lock<std::mutex>& lock);
  void spread(const Loaded& loaded);

  std::vector<std::unique_ptr<Tier>> tiers_;
  const uint64_t queue_bytes_max_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::list<Waiting> waiting_;  // the first one is being written
  std::deque<Loaded> loaded_;
  uint64_t queue_bytes_ = 0;
  uint64_t n_queue_dropped_ = 0;
  uint32_t n_flushing_ = 0;
  bool working_ = false;
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace headstart::store
