// store/chunk_index.h: what a tier holds, who follows whom, and who goes first. Shared by the RAM
// and the disk tier, so that both replace and evict alike.
//
// Children of a key are ordered by their tokens: the ones that share most with a prompt stand
// around the place where the prompt itself would stand.
//
//   units    sizes in bytes
//   threads  one owner, which locks
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "store/eviction.h"
#include "store/tier.h"

namespace headstart::store {

class ChunkIndex {
 public:
  explicit ChunkIndex(uint64_t budget_bytes);

  const ChunkSummary* find(const kv::ChunkId& id) const;
  std::vector<ChunkSummary> children(const Digest& parent_key, std::span<const Token> tokens) const;
  std::vector<kv::ChunkId> ids() const;
  size_t n_chunk() const { return chunks_.size(); }
  uint64_t size_bytes() const { return eviction_.size_bytes(); }
  void use(const kv::ChunkId& id) { eviction_.use(id); }

  // How a new chunk stands to those that are here.
  struct Verdict {
    bool keep = false;
    std::vector<kv::ChunkId> replaced;  // shorter tails, or the same chunk with fewer strict tokens
  };
  Verdict judge(const ChunkSummary& chunk) const;

  // Taking in a chunk has two steps, so that a tier can write it in between: reserve() counts it
  // and evicts until the budget holds, commit() makes it visible and drops those it replaces.
  struct Room {
    bool keep = true;  // false: the chunk itself was worth least
    std::vector<kv::ChunkId> evicted;
  };
  Room reserve(const ChunkSummary& chunk, std::span<const kv::ChunkId> replaced);
  void commit(ChunkSummary chunk, std::span<const kv::ChunkId> replaced);
  void cancel(const kv::ChunkId& id);  // after reserve(), instead of commit()

  // Takes in a chunk whatever its size; shrink() then evicts until the budget holds.
  void adopt(ChunkSummary chunk);
  std::vector<kv::ChunkId> shrink();
  void erase(const kv::ChunkId& id);
  void clear();

 private:
  // What the order of siblings depends on.
  struct Place {
    std::span<const Token> tokens;
    const Digest* numeric = nullptr;  // nothing: before every identity
    const ChunkSummary* chunk = nullptr;
    bool operator<(const Place& other) const;
  };
  using Siblings = std::set<Place>;
  static Place place_of(const ChunkSummary& chunk);
  void insert(ChunkSummary chunk);
  void remove(const kv::ChunkId& id);

  const uint64_t budget_bytes_;
  Eviction eviction_;
  std::unordered_map<kv::ChunkId, ChunkSummary, kv::ChunkIdHash> chunks_;
  std::unordered_map<Digest, Siblings, DigestHash> children_;
};

}  // namespace headstart::store
