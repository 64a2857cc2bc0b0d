#include "store/chunk_index.h"

#include <algorithm>

namespace headstart::store {
namespace {

bool is_tail(const ChunkSummary& chunk) { return (chunk.flags & kv::kFlagTail) != 0; }

EvictionEntry eviction_entry(const ChunkSummary& chunk) {
  return {chunk.id, chunk.parent_key, chunk.size_bytes, chunk.compute_s, chunk.pos_first == 0};
}

}  // namespace

bool ChunkIndex::Place::operator<(const Place& other) const {
  auto order = std::lexicographical_compare_three_way(tokens.begin(), tokens.end(),
                                                      other.tokens.begin(), other.tokens.end());
  if (order != 0) return order < 0;
  if (numeric == nullptr || other.numeric == nullptr) return !numeric && other.numeric;
  return *numeric < *other.numeric;
}

ChunkIndex::Place ChunkIndex::place_of(const ChunkSummary& chunk) {
  return {*chunk.tokens, &chunk.id.numeric, &chunk};
}

ChunkIndex::ChunkIndex(uint64_t budget_bytes)
    : budget_bytes_(budget_bytes), eviction_(budget_bytes) {}

const ChunkSummary* ChunkIndex::find(const kv::ChunkId& id) const {
  auto it = chunks_.find(id);
  return it == chunks_.end() ? nullptr : &it->second;
}

std::vector<ChunkSummary> ChunkIndex::children(const Digest& parent_key,
                                               std::span<const Token> tokens) const {
  std::vector<ChunkSummary> out;
  auto family = children_.find(parent_key);
  if (family == children_.end()) return out;
  const Siblings& siblings = family->second;
  // What is shared shrinks with the distance from the prompt's own place, to either side.
  auto after = siblings.lower_bound({.tokens = tokens});
  auto before = after;
  while (out.size() < kChildrenMax) {
    const uint32_t shared_after = after == siblings.end() ? 0 : n_shared(after->tokens, tokens);
    const uint32_t shared_before =
        before == siblings.begin() ? 0 : n_shared(std::prev(before)->tokens, tokens);
    if (shared_after == 0 && shared_before == 0) break;
    out.push_back(shared_after >= shared_before ? *(after++)->chunk : *(--before)->chunk);
  }
  return out;
}

std::vector<kv::ChunkId> ChunkIndex::ids() const {
  std::vector<kv::ChunkId> out;
  out.reserve(chunks_.size());
  for (const auto& [id, chunk] : chunks_) out.push_back(id);
  return out;
}

ChunkIndex::Verdict ChunkIndex::judge(const ChunkSummary& chunk) const {
  if (const ChunkSummary* same = find(chunk.id)) {
    const bool better = chunk.n_strict > same->n_strict ||
                        (chunk.n_strict == same->n_strict && is_tail(*same) && !is_tail(chunk));
    return better ? Verdict{true, {same->id}} : Verdict{};
  }
  Verdict verdict{.keep = true, .replaced = {}};
  auto family = children_.find(chunk.parent_key);
  if (family == children_.end()) return verdict;
  const Siblings& siblings = family->second;
  const std::span<const Token> tokens = *chunk.tokens;

  // A chunk that starts with all of a tail's tokens covers the tail, unless the tail is stricter.
  if (is_tail(chunk)) {
    for (auto it = siblings.lower_bound({.tokens = tokens}); it != siblings.end(); ++it) {
      if (n_shared(it->tokens, tokens) < tokens.size()) break;
      if (*it->numeric == chunk.id.numeric && it->chunk->n_strict >= chunk.n_strict) return {};
    }
  }
  for (size_t n = 1; n < tokens.size(); ++n) {
    auto it = siblings.find({.tokens = tokens.first(n), .numeric = &chunk.id.numeric});
    if (it == siblings.end() || !is_tail(*it->chunk)) continue;
    if (it->chunk->n_strict <= chunk.n_strict) verdict.replaced.push_back(it->chunk->id);
  }
  return verdict;
}

ChunkIndex::Room ChunkIndex::reserve(const ChunkSummary& chunk,
                                     std::span<const kv::ChunkId> replaced) {
  if (find(chunk.id) != nullptr) return {};  // the same tokens, so the same size
  eviction_.add(eviction_entry(chunk), replaced);
  Room room{.keep = true, .evicted = shrink()};
  room.keep = std::erase(room.evicted, chunk.id) == 0;
  return room;
}

void ChunkIndex::commit(ChunkSummary chunk, std::span<const kv::ChunkId> replaced) {
  for (const kv::ChunkId& id : replaced) {
    if (id != chunk.id) erase(id);
  }
  if (!eviction_.contains(chunk.id)) eviction_.add(eviction_entry(chunk));
  insert(std::move(chunk));
}

void ChunkIndex::cancel(const kv::ChunkId& id) {
  if (find(id) == nullptr) eviction_.erase(id);
}

void ChunkIndex::adopt(ChunkSummary chunk) { commit(std::move(chunk), {}); }

std::vector<kv::ChunkId> ChunkIndex::shrink() {
  std::vector<kv::ChunkId> evicted;
  while (eviction_.size_bytes() > budget_bytes_) {
    const auto id = eviction_.evict();
    if (!id) break;
    remove(*id);
    evicted.push_back(*id);
  }
  return evicted;
}

void ChunkIndex::erase(const kv::ChunkId& id) {
  eviction_.erase(id);
  remove(id);
}

void ChunkIndex::clear() {
  for (const kv::ChunkId& id : ids()) erase(id);
}

void ChunkIndex::insert(ChunkSummary chunk) {
  const kv::ChunkId id = chunk.id;
  remove(id);
  const ChunkSummary& kept = chunks_[id] = std::move(chunk);
  children_[kept.parent_key].insert(place_of(kept));
}

void ChunkIndex::remove(const kv::ChunkId& id) {
  auto it = chunks_.find(id);
  if (it == chunks_.end()) return;
  auto family = children_.find(it->second.parent_key);
  family->second.erase(place_of(it->second));
  if (family->second.empty()) children_.erase(family);
  chunks_.erase(it);
}

}  // namespace headstart::store
