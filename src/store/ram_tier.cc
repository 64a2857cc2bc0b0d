#include "store/ram_tier.h"

#include <string>

#include "store/deliver.h"

namespace headstart::store {
namespace {

Error not_here() { return Error{Code::kNotFound, "the chunk is not in memory"}; }

}  // namespace

RamTier::RamTier(uint64_t budget_bytes) : budget_bytes_(budget_bytes), index_(budget_bytes) {}

kv::ChunkPtr RamTier::find(const kv::ChunkId& id) const {
  auto it = chunks_.find(id);
  return it == chunks_.end() ? nullptr : it->second;
}

std::vector<ChunkSummary> RamTier::children(const Digest& parent_key,
                                            std::span<const Token> tokens) {
  std::lock_guard lock(mutex_);
  return index_.children(parent_key, tokens);
}

Result<void> RamTier::get(const kv::ChunkId& id, CellRange want, CellSink& sink,
                          Deadline deadline) {
  kv::ChunkPtr chunk;
  {
    std::lock_guard lock(mutex_);
    chunk = find(id);
    if (chunk == nullptr) {
      ++counts_.n_miss;
      return not_here();
    }
  }
  if (deadline != kNoDeadline && std::chrono::steady_clock::now() >= deadline) {
    return Error{Code::kUnavailable, "the deadline passed before the chunk was read"};
  }
  HS_RETURN_IF_ERROR(deliver(*chunk, want, sink));
  std::lock_guard lock(mutex_);
  index_.use(id);
  ++counts_.n_hit;
  return {};
}

Result<kv::ChunkPtr> RamTier::read(const kv::ChunkId& id) {
  std::lock_guard lock(mutex_);
  if (kv::ChunkPtr chunk = find(id)) return chunk;
  return not_here();
}

void RamTier::note_use(const kv::ChunkId& id) {
  std::lock_guard lock(mutex_);
  index_.use(id);
}

Result<void> RamTier::put(kv::ChunkPtr chunk) {
  const kv::ChunkHeader& header = chunk->header();
  ChunkSummary summary = summary_of(header.meta, header.file_bytes);
  std::lock_guard lock(mutex_);
  if (summary.size_bytes > budget_bytes_) {
    ++counts_.n_put_failed;
    return Error{Code::kExhausted, "a chunk of " + std::to_string(summary.size_bytes) +
                                       " bytes is larger than the memory budget"};
  }
  const auto verdict = index_.judge(summary);
  if (!verdict.keep) {
    index_.use(summary.id);  // computed again, so it was wanted
    return {};
  }
  const auto room = index_.reserve(summary, verdict.replaced);
  for (const kv::ChunkId& id : room.evicted) chunks_.erase(id);
  counts_.n_evicted += room.evicted.size() + !room.keep;
  if (!room.keep) return {};
  for (const kv::ChunkId& id : verdict.replaced) chunks_.erase(id);
  chunks_[summary.id] = std::move(chunk);
  index_.commit(std::move(summary), verdict.replaced);
  ++counts_.n_put;
  return {};
}

Result<void> RamTier::erase(const kv::ChunkId& id) {
  std::lock_guard lock(mutex_);
  index_.erase(id);
  chunks_.erase(id);
  return {};
}

Result<void> RamTier::clear() {
  std::lock_guard lock(mutex_);
  index_.clear();
  chunks_.clear();
  return {};
}

Result<VerifyReport> RamTier::verify() {
  std::vector<kv::ChunkPtr> chunks;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, chunk] : chunks_) chunks.push_back(chunk);
  }
  VerifyReport report;
  for (const kv::ChunkPtr& chunk : chunks) {
    if (verify_chunk(*chunk).ok()) {
      ++report.n_ok;
      continue;
    }
    ++report.n_corrupt;
    HS_RETURN_IF_ERROR(erase(chunk->header().meta.id()));
  }
  std::lock_guard lock(mutex_);
  counts_.n_corrupt += report.n_corrupt;
  return report;
}

TierStats RamTier::stats() const {
  std::lock_guard lock(mutex_);
  TierStats stats = counts_;
  stats.n_chunk = index_.n_chunk();
  stats.size_bytes = index_.size_bytes();
  stats.budget_bytes = budget_bytes_;
  return stats;
}

}  // namespace headstart::store
