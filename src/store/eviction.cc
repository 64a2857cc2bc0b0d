#include "store/eviction.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace headstart::store {
namespace {

// What is believed of each class before anything was measured: budgets hit in a turnover, and how
// many turnovers of evidence that belief is worth.
constexpr double kBeliefRate[] = {0.25, 1.0, 1.0};
constexpr double kBeliefTurnovers = 0.001;

double sum_log2(double a, double b) {
  const double high = std::max(a, b), low = std::min(a, b);
  return high + std::log2(1 + std::exp2(low - high));
}

double density_log2(const EvictionEntry& chunk) {
  // A nanosecond rather than nothing, so that chunks without a measured time still have an order.
  const double seconds = std::isfinite(chunk.compute_s) ? std::max(chunk.compute_s, 1e-9) : 1e-9;
  return std::log2(seconds / static_cast<double>(std::max<uint64_t>(chunk.size_bytes, 1)));
}

}  // namespace

Eviction::Eviction(uint64_t budget_bytes, EvictionOptions options)
    : budget_bytes_(static_cast<double>(std::max<uint64_t>(budget_bytes, 1))), options_(options) {}

void Eviction::add(const EvictionEntry& chunk, std::span<const kv::ChunkId> replaced) {
  HS_CHECK(!contains(chunk.id), "the chunk is already here");
  double uses_log2 = age_log2();
  const Class kind = inherit(chunk, replaced, uses_log2);

  Entry& entry = entries_[chunk.id];
  entry.chunk = chunk;
  entry.serial = n_added_++;
  entry.kind = kind;
  entry.uses_log2 = uses_log2;
  entry.worth = uses_log2 + density_log2(chunk);
  size_bytes_ += chunk.size_bytes;
  class_bytes_[kind] += static_cast<double>(chunk.size_bytes);
  Node& node = nodes_[chunk.id.prefix_key];
  node.entries.push_back(&entry);
  Node& parent = nodes_[chunk.parent_key];
  parent.children.insert(&entry);
  place_entries(parent);
  place_entries(node);
  if (node.entries.size() == 1) place_children(node);
  advance(chunk.size_bytes);
}

Eviction::Class Eviction::inherit(const EvictionEntry& chunk, std::span<const kv::ChunkId> replaced,
                                  double& uses_log2) {
  Class kind = kFresh;
  for (const kv::ChunkId& id : replaced) {
    auto it = entries_.find(id);
    if (it == entries_.end()) continue;
    uses_log2 = sum_log2(uses_log2, it->second.uses_log2);
    kind = std::max(kind, it->second.kind);
  }
  if (auto ghost = ghost_of_.find(chunk.id); ghost != ghost_of_.end()) {
    uses_log2 = sum_log2(uses_log2, ghost->second->uses_log2);
    kind = kUsed;
    // Had it been kept, this were a hit: otherwise a tier that gives chunks up too early would
    // never learn that it does.
    hits_[kUsed] += static_cast<double>(chunk.size_bytes) / budget_bytes_;
    ghost_bytes_ -= ghost->second->size_bytes;
    ghosts_.erase(ghost->second);
    ghost_of_.erase(ghost);
  }
  if (auto parent = nodes_.find(chunk.parent_key); kind == kFresh && parent != nodes_.end()) {
    // The last of a run, not a fork such as a system prompt that many conversations start with.
    bool used = std::any_of(parent->second.entries.begin(), parent->second.entries.end(),
                            [](const Entry* e) { return e->kind != kFresh; });
    if (used && parent->second.children.empty()) kind = kExtension;
  }
  return kind;
}

void Eviction::use(const kv::ChunkId& id) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  hits_[entry.kind] += static_cast<double>(entry.chunk.size_bytes) / budget_bytes_;
  set_uses(entry, sum_log2(entry.uses_log2, age_log2()), kUsed);
}

void Eviction::erase(const kv::ChunkId& id) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  unlink(it->second);
  entries_.erase(it);
}

std::optional<kv::ChunkId> Eviction::evict() {
  const Entry* least = orphans_.empty() ? least_leaf() : *orphans_.begin();
  if (least == nullptr) {
    HS_CHECK(entries_.empty(), "every parent has a leaf below it");
    return std::nullopt;
  }
  const kv::ChunkId id = least->chunk.id;
  remember(*least);
  erase(id);
  return id;
}

const Eviction::Entry* Eviction::least_leaf() const {
  const Entry* least = nullptr;
  double least_worth = 0;
  for (Class kind : {kFresh, kExtension, kUsed}) {
    if (leaves_[kind].empty()) continue;
    const Entry* entry = *leaves_[kind].begin();
    const double worth = entry->worth + std::log2(likelihood(kind));
    if (least == nullptr || worth < least_worth) {
      least = entry;
      least_worth = worth;
    }
  }
  return least;
}

// Time passes as chunks arrive: old evidence fades, and every class pays for the room that it took.
void Eviction::advance(uint64_t size_bytes) {
  const double turnover = static_cast<double>(size_bytes) / budget_bytes_;
  const double fade = std::exp2(-turnover / options_.memory);
  turnovers_ += turnover;
  for (int kind = 0; kind < kClasses; ++kind) {
    hits_[kind] *= fade;
    occupied_[kind] = occupied_[kind] * fade + class_bytes_[kind] / budget_bytes_ * turnover;
  }
}

// Uses to expect of a byte in a turnover. Whatever a short measurement says, a chunk that was used
// or that continues a used run is no less likely to be used than any other.
double Eviction::likelihood(Class kind) const {
  const double measured =
      (hits_[kind] + kBeliefRate[kind] * kBeliefTurnovers) / (occupied_[kind] + kBeliefTurnovers);
  return kind == kFresh ? measured : std::max(measured, likelihood(kFresh));
}

void Eviction::set_uses(Entry& entry, double uses_log2, Class kind) {
  const bool orphan = entry.orphan, leaf = entry.leaf;
  place(entry, false, false);  // its worth is its place
  class_bytes_[entry.kind] -= static_cast<double>(entry.chunk.size_bytes);
  class_bytes_[kind] += static_cast<double>(entry.chunk.size_bytes);
  entry.kind = kind;
  entry.uses_log2 = uses_log2;
  entry.worth = uses_log2 + density_log2(entry.chunk);
  place(entry, orphan, leaf);
}

void Eviction::place(Entry& entry, bool orphan, bool leaf) {
  leaf = leaf && !orphan;
  if (entry.orphan != orphan) {
    if (orphan) orphans_.insert(&entry);
    if (!orphan) orphans_.erase(&entry);
    entry.orphan = orphan;
  }
  if (entry.leaf != leaf) {
    if (leaf) leaves_[entry.kind].insert(&entry);
    if (!leaf) leaves_[entry.kind].erase(&entry);
    entry.leaf = leaf;
  }
}

void Eviction::place_entries(const Node& node) {
  // A chunk that another identity holds too may go: its children stay reachable through the other.
  const bool leaf = node.children.empty() || node.entries.size() > 1;
  for (Entry* entry : node.entries) {
    const bool orphan = !entry->chunk.first && nodes_[entry->chunk.parent_key].entries.empty();
    place(*entry, orphan, leaf);
  }
}

void Eviction::place_children(const Node& node) {
  for (Entry* child : node.children) place_entries(nodes_[child->chunk.id.prefix_key]);
}

void Eviction::unlink(Entry& entry) {
  place(entry, /*orphan=*/false, /*leaf=*/false);
  size_bytes_ -= entry.chunk.size_bytes;
  class_bytes_[entry.kind] -= static_cast<double>(entry.chunk.size_bytes);
  Node& node = nodes_[entry.chunk.id.prefix_key];
  std::erase(node.entries, &entry);
  place_entries(node);
  if (node.entries.empty()) place_children(node);
  Node& parent = nodes_[entry.chunk.parent_key];
  parent.children.erase(&entry);
  place_entries(parent);
  for (const Digest& key : {entry.chunk.id.prefix_key, entry.chunk.parent_key}) {
    auto it = nodes_.find(key);
    if (it != nodes_.end() && it->second.children.empty() && it->second.entries.empty()) {
      nodes_.erase(it);
    }
  }
}

void Eviction::remember(const Entry& entry) {
  ghosts_.push_back({entry.chunk.id, entry.uses_log2, entry.chunk.size_bytes});
  ghost_of_[entry.chunk.id] = std::prev(ghosts_.end());
  ghost_bytes_ += entry.chunk.size_bytes;
  trim_ghosts();
}

void Eviction::trim_ghosts() {
  const double bytes_max = options_.ghost_budgets * budget_bytes_;
  while (!ghosts_.empty() &&
         (ghosts_.size() > options_.n_ghost_max || static_cast<double>(ghost_bytes_) > bytes_max)) {
    ghost_bytes_ -= ghosts_.front().size_bytes;
    ghost_of_.erase(ghosts_.front().id);
    ghosts_.pop_front();
  }
}

}  // namespace headstart::store
