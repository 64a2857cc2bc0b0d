// store/ram_tier.h: sealed chunks in memory, within a byte budget.
//
// A get() hands over the cells where they lie. They were verified when they entered the process;
// verify() checks them again.
//
//   threads  any; one lock, not held while cells are handed over
#pragma once

#include <mutex>
#include <unordered_map>

#include "store/chunk_index.h"
#include "store/tier.h"

namespace headstart::store {

class RamTier final : public Tier {
 public:
  explicit RamTier(uint64_t budget_bytes);

  std::string_view name() const override { return "ram"; }
  std::vector<ChunkSummary> children(const Digest& parent_key,
                                     std::span<const Token> tokens) override;
  Result<void> get(const kv::ChunkId& id, CellRange want, CellSink& sink,
                   Deadline deadline) override;
  Result<kv::ChunkPtr> read(const kv::ChunkId& id) override;
  void note_use(const kv::ChunkId& id) override;
  Result<void> put(kv::ChunkPtr chunk) override;
  Result<void> erase(const kv::ChunkId& id) override;
  Result<void> clear() override;
  Result<VerifyReport> verify() override;
  TierStats stats() const override;

 private:
  kv::ChunkPtr find(const kv::ChunkId& id) const;

  const uint64_t budget_bytes_;
  mutable std::mutex mutex_;
  ChunkIndex index_;
  std::unordered_map<kv::ChunkId, kv::ChunkPtr, kv::ChunkIdHash> chunks_;
  TierStats counts_;  // n_chunk and size_bytes come from index_
};

}  // namespace headstart::store
