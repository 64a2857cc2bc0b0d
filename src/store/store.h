// store/store.h: the tiers as one: longest match, loading with fall-back, background storing.
//
//   threads  match(), load(), put() and stats() may be called from any thread at once; one
//            background thread seals and stores
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
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
  std::span<const kv::Token> tokens;  // at most this many are matched
  ReuseMode mode = ReuseMode::kExact;
};

struct MatchedChunk {
  ChunkSummary chunk;
  uint32_t pos_first = 0;  // where its first token stands in the query
  uint32_t n_use = 0;      // its first n_use tokens equal the query's
  uint32_t n_strict = 0;   // of these, the first n_strict have the bits of a cold run
};

struct Match {
  std::vector<MatchedChunk> chunks;  // in order of position, without gaps
  uint32_t n_token = 0;              // sum of n_use
  uint32_t n_strict = 0;             // length of the leading part with the bits of a cold run
};

struct StoreStats {
  std::vector<std::pair<std::string, TierStats>> tiers;
  uint64_t n_queue_dropped = 0;  // chunks not stored because the queue was full
  uint64_t queue_bytes = 0;
};

class Store {
 public:
  // Tiers in order of speed. `queue_bytes_max` bounds the chunks that wait to be stored.
  Store(std::vector<std::unique_ptr<Tier>> tiers, uint64_t queue_bytes_max);
  ~Store();  // flushes

  // The longest run of stored chunks that the query starts with. In strict mode only chunks of
  // the query's numeric identity count, and only up to their n_strict tokens. Where several
  // children fit, the longest wins, then own identity, then more strict tokens.
  Match match(const MatchQuery& query);
  // Loads from the first tier that delivers; a chunk that a faster tier lacks is copied to it in the
  // background (only when all layers were asked for). Errors: as Tier::get of the last tier.
  Result<void> load(const MatchedChunk& matched, CellRange want, CellSink& sink, Deadline deadline);
  // Queues the chunk; sealing and writing happen on the background thread. False if the queue is
  // full: then the chunk is dropped and counted.
  bool put(kv::ChunkBuilder chunk);
  void flush();  // returns when the queue is empty
  StoreStats stats() const;
  Result<VerifyReport> verify();
  Result<void> clear();

 private:
  void write_loop();
  struct Job;
  std::vector<std::unique_ptr<Tier>> tiers_;
  const uint64_t queue_bytes_max_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Job> queue_;
  uint64_t queue_bytes_ = 0;
  uint64_t n_queue_dropped_ = 0;
  bool writing_ = false;
  bool stop_ = false;
  std::thread writer_;
};

}  // namespace headstart::store
