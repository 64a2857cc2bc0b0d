// store/eviction.h: which chunk a full tier gives up first. Pure: no clock, no I/O.
//
// A chunk is worth the compute seconds that it will save, for each byte that it takes. Expected
// uses fall with age: every use counts half as much once the tier has taken in `half_life` times
// its budget in new chunks. Age is counted in such turnovers, not in seconds, so that a device
// that slept all night wakes with its cache in order, and one setting serves a small RAM tier and
// a large disk.
//
// How much likelier a chunk that was used before is to be used again differs from one workload and
// budget to the next by a factor of 2 to 100. It is measured: hits and occupied byte-turnovers of
// three classes of chunk (docs/decisions/0004-eviction.md, with what was rejected).
//
// Only leaves go: a chunk whose children are here stays, as they cannot be reached without it. A
// chunk whose parent is not here goes before all others.
//
//   units    sizes in bytes, age in turnovers of the budget
//   threads  one owner, which locks
//   cost     O(log n) for each call
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv/chunk_id.h"

namespace headstart::store {

struct EvictionOptions {
  double half_life = 0.5;    // turnovers until a use counts half
  double memory = 2.0;       // turnovers until a measured hit counts half
  double ghost_budgets = 4;  // evicted chunks are remembered for this many budgets of bytes
  size_t n_ghost_max = 100'000;
};

struct EvictionEntry {
  kv::ChunkId id;
  Digest parent_key{};
  uint64_t size_bytes = 0;
  double compute_s = 0;
  bool first = false;  // of its prompt: its parent is no chunk
};

class Eviction {
 public:
  explicit Eviction(uint64_t budget_bytes, EvictionOptions options = {});

  // Takes in a chunk that is not here. It inherits the uses of those it `replaced` (erased by the
  // caller afterwards), or, where it was here before, its own.
  void add(const EvictionEntry& entry, std::span<const kv::ChunkId> replaced = {});
  void use(const kv::ChunkId& id);    // unknown ids are ignored
  void erase(const kv::ChunkId& id);  // gone for another reason; unknown ids are ignored
  // Drops the chunk that is worth least and says which; it may be the one added last. Nothing
  // where the tier is empty.
  std::optional<kv::ChunkId> evict();

  bool contains(const kv::ChunkId& id) const { return entries_.contains(id); }
  size_t n_chunk() const { return entries_.size(); }
  uint64_t size_bytes() const { return size_bytes_; }
  size_t n_ghost() const { return ghosts_.size(); }

 private:
  // fresh: never used. extension: never used, but made straight after the last chunk of a used run,
  // as the next turn of a conversation is. used: hit at least once.
  enum Class : uint8_t { kFresh, kExtension, kUsed, kClasses };
  struct Entry {
    EvictionEntry chunk;
    Class kind = kFresh;
    double uses_log2 = 0;  // log2 of the decayed number of uses, as if seen at turnover 0
    double worth = 0;      // uses_log2 + log2(compute seconds per byte)
    uint64_t serial = 0;   // order of arrival: breaks ties
    bool orphan = false;   // its parent is not here: stands in orphans_
    bool leaf = false;     // otherwise, and without children: stands in leaves_[kind]
  };
  struct LeastWorth {
    bool operator()(const Entry* a, const Entry* b) const {
      return a->worth != b->worth ? a->worth < b->worth : a->serial < b->serial;
    }
  };
  struct Node {  // one prefix key: the same tokens, computed under one or more numeric identities
    std::vector<Entry*> entries;
    std::unordered_set<Entry*> children;
  };
  struct Ghost {
    kv::ChunkId id;
    double uses_log2;
    uint64_t size_bytes;
  };
  using GhostList = std::list<Ghost>;

  Class inherit(const EvictionEntry& entry, std::span<const kv::ChunkId> replaced,
                double& uses_log2);
  void advance(uint64_t size_bytes);
  const Entry* least_leaf() const;
  double likelihood(Class kind) const;
  void set_uses(Entry& entry, double uses_log2, Class kind);
  void place(Entry& entry, bool orphan, bool leaf);
  void place_entries(const Node& node);
  void place_children(const Node& node);
  void unlink(Entry& entry);
  void remember(const Entry& entry);
  void trim_ghosts();
  double age_log2() const { return turnovers_ / options_.half_life; }

  const double budget_bytes_;
  const EvictionOptions options_;
  double turnovers_ = 0;
  uint64_t n_added_ = 0;
  uint64_t size_bytes_ = 0;
  std::unordered_map<kv::ChunkId, Entry, kv::ChunkIdHash> entries_;
  std::unordered_map<Digest, Node, DigestHash> nodes_;
  std::array<std::set<Entry*, LeastWorth>, kClasses> leaves_;
  std::set<Entry*, LeastWorth> orphans_;
  std::array<double, kClasses> class_bytes_{};
  std::array<double, kClasses> hits_{};      // budgets of bytes hit, decayed
  std::array<double, kClasses> occupied_{};  // budgets of bytes × turnovers, decayed
  GhostList ghosts_;                         // oldest first
  std::unordered_map<kv::ChunkId, GhostList::iterator, kv::ChunkIdHash> ghost_of_;
  uint64_t ghost_bytes_ = 0;
};

}  // namespace headstart::store
