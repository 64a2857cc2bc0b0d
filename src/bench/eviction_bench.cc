#include "bench/eviction_bench.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <list>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/disk.h"
#include "store/eviction.h"

namespace headstart::bench {
namespace {

kv::ChunkId chunk_of(BlockId block) {
  kv::ChunkId id{};
  std::memcpy(id.prefix_key.data(), &block, sizeof(block));
  return id;
}

Result<std::vector<BlockId>> parse_request(std::string_view line) {
  const Error wrong{Code::kCorrupt, "no list of numbers under \"hash_ids\""};
  constexpr std::string_view kKey = "\"hash_ids\"";
  const size_t key = line.find(kKey);
  if (key == std::string_view::npos) return wrong;
  line.remove_prefix(key + kKey.size());
  auto skip = [&line](std::string_view set) {
    line.remove_prefix(std::min(line.find_first_not_of(set), line.size()));
  };
  skip(" :");
  if (line.empty() || line.front() != '[') return wrong;
  line.remove_prefix(1);
  std::vector<BlockId> blocks;
  for (skip(" ,"); !line.empty() && line.front() != ']'; skip(" ,")) {
    BlockId block;
    auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), block);
    if (error != std::errc()) return wrong;
    line.remove_prefix(static_cast<size_t>(end - line.data()));
    blocks.push_back(block);
  }
  if (line.empty()) return wrong;
  return blocks;
}

// How often a cache with contains(block) and touch(previous, block) has the next block of a prefix.
template <class Cache>
uint64_t replay(const Trace& trace, Cache&& cache) {
  uint64_t hits = 0;
  for (const auto& request : trace) {
    bool whole = true;
    const BlockId* previous = nullptr;
    for (const BlockId& block : request) {
      whole = whole && cache.contains(block);
      hits += whole;
      cache.touch(previous, block);
      previous = &block;
    }
  }
  return hits;
}

class HeadstartCache {
 public:
  explicit HeadstartCache(uint64_t capacity) : capacity_(capacity), policy_(capacity) {}
  bool contains(BlockId block) const { return policy_.contains(chunk_of(block)); }
  void touch(const BlockId* previous, BlockId block) {
    const kv::ChunkId id = chunk_of(block);
    if (policy_.contains(id)) return policy_.use(id);
    Digest root;
    root.fill(0xff);
    policy_.add({.id = id,
                 .parent_key = previous != nullptr ? chunk_of(*previous).prefix_key : root,
                 .size_bytes = 1,
                 .compute_s = 1,
                 .first = previous == nullptr});
    while (policy_.size_bytes() > capacity_) policy_.evict();
  }

 private:
  uint64_t capacity_;
  store::Eviction policy_;
};

class LruCache {
 public:
  explicit LruCache(uint64_t capacity) : capacity_(capacity) {}
  bool contains(BlockId block) const { return place_.contains(block); }
  void touch(const BlockId*, BlockId block) {
    if (auto it = place_.find(block); it != place_.end()) {
      order_.splice(order_.end(), order_, it->second);
      return;
    }
    if (order_.size() >= capacity_) {
      place_.erase(order_.front());
      order_.pop_front();
    }
    place_[block] = order_.insert(order_.end(), block);
  }

 private:
  uint64_t capacity_;
  std::list<BlockId> order_;  // least recently used first
  std::unordered_map<BlockId, std::list<BlockId>::iterator> place_;
};

// Keeps the blocks that will be asked for soonest.
class BeladyCache {
 public:
  BeladyCache(const Trace& trace, uint64_t capacity) : capacity_(capacity) {
    size_t n = 0;
    for (const auto& request : trace) n += request.size();
    next_.resize(n);
    std::unordered_map<BlockId, size_t> later;
    for (auto request = trace.rbegin(); request != trace.rend(); ++request) {
      for (auto block = request->rbegin(); block != request->rend(); ++block) {
        auto [it, first] = later.try_emplace(*block, --n);
        next_[n] = first ? kNever : it->second;
        it->second = n;
      }
    }
  }
  bool contains(BlockId block) const { return next_of_.contains(block); }
  void touch(const BlockId*, BlockId block) {
    const size_t next = next_[now_++];
    if (auto it = next_of_.find(block); it != next_of_.end()) {
      order_.erase({it->second, block});
      next_of_.erase(it);
    }
    if (next == kNever) return;
    next_of_[block] = next;
    order_.insert({next, block});
    if (order_.size() <= capacity_) return;
    auto last = std::prev(order_.end());
    next_of_.erase(last->second);
    order_.erase(last);
  }

 private:
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();
  uint64_t capacity_;
  size_t now_ = 0;
  std::vector<size_t> next_;  // for each block asked for: when it is asked for again
  std::unordered_map<BlockId, size_t> next_of_;
  std::set<std::pair<size_t, BlockId>> order_;
};

Result<std::string> read_text(const std::filesystem::path& path) {
  PosixDisk disk;
  HS_ASSIGN_OR_RETURN(auto file, disk.open(path));
  if (file->size_bytes() > kTraceBytesMax) {
    return Error{Code::kCorrupt, path.string() + " is larger than 256 MiB: not a trace"};
  }
  std::string text(file->size_bytes(), '\0');
  HS_RETURN_IF_ERROR(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace

Result<Trace> parse_trace(std::string_view json_lines) {
  Trace trace;
  for (size_t n_line = 1; !json_lines.empty(); ++n_line) {
    const size_t end = std::min(json_lines.find('\n'), json_lines.size());
    const std::string_view line = json_lines.substr(0, end);
    json_lines.remove_prefix(std::min(end + 1, json_lines.size()));
    if (line.find_first_not_of(" \r\t") == std::string_view::npos) continue;
    auto request = parse_request(line);
    if (!request.ok()) {
      return Error{Code::kCorrupt,
                   "line " + std::to_string(n_line) + ": " + request.error().message};
    }
    trace.push_back(*std::move(request));
  }
  return trace;
}

uint64_t hits_headstart(const Trace& trace, uint64_t capacity) {
  return replay(trace, HeadstartCache(capacity));
}
uint64_t hits_lru(const Trace& trace, uint64_t capacity) {
  return replay(trace, LruCache(capacity));
}
uint64_t hits_belady(const Trace& trace, uint64_t capacity) {
  return replay(trace, BeladyCache(trace, capacity));
}

Result<std::vector<EvictionRow>> bench_eviction(const std::filesystem::path& path) {
  HS_ASSIGN_OR_RETURN(const std::string text, read_text(path));
  HS_ASSIGN_OR_RETURN(const Trace trace, parse_trace(text));
  uint64_t n = 0;
  std::unordered_set<BlockId> footprint;
  for (const auto& request : trace) {
    n += request.size();
    footprint.insert(request.begin(), request.end());
  }
  if (n == 0) return Error{Code::kCorrupt, path.string() + " holds no requests"};

  std::vector<EvictionRow> rows;
  for (uint64_t percent : {1, 5, 20}) {
    const uint64_t capacity = std::max<uint64_t>(footprint.size() * percent / 100, 1);
    const double blocks = static_cast<double>(n);
    const double value = static_cast<double>(hits_headstart(trace, capacity)) / blocks;
    auto add = [&](const char* policy, uint64_t hits) {
      const double reference = static_cast<double>(hits) / blocks;
      rows.push_back({std::to_string(percent) + " % of the footprint, against " + policy, value,
                      reference, reference > 0 ? value / reference : 0, "hit rate", n});
    };
    add("lru", hits_lru(trace, capacity));
    add("belady", hits_belady(trace, capacity));
  }
  return rows;
}

}  // namespace headstart::bench
