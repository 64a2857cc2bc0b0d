#include "store/store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>

#include "store/deliver.h"

namespace headstart::store {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Copying to faster tiers waits until a prompt's chunks are loaded and its computing has begun.
constexpr auto kSpreadDelay = std::chrono::milliseconds(100);
constexpr size_t kLoadedMax = 4096;  // beyond, a use is not passed on

// Lets a chunk pass only if it is the one that was matched: same model, same shape, same tokens,
// and at least as strict.
class MatchedSink final : public CellSink {
 public:
  MatchedSink(const MatchedChunk& matched, CellSink& sink) : matched_(matched), sink_(sink) {}

  Result<void> begin(const kv::ChunkHeader& header) override {
    const ChunkSummary& want = matched_.chunk;
    const kv::ChunkMeta& meta = header.meta;
    if (meta.fingerprint != want.fingerprint || meta.shape != want.shape ||
        meta.tokens != *want.tokens || meta.n_strict < matched_.n_strict) {
      return Error{Code::kCorrupt, "the chunk is not the one that was matched"};
    }
    auto begun = sink_.begin(header);
    refused = !begun.ok();
    return begun;
  }
  void cell(uint32_t layer, kv::Part part, std::span<const kv::Half> values) override {
    sink_.cell(layer, part, values);
  }

  bool refused = false;  // by the caller's sink: no other tier will do better

 private:
  const MatchedChunk& matched_;
  CellSink& sink_;
};

// Drops all but the strictest of each chunk: several tiers may hold it.
void keep_strictest(std::vector<ChunkSummary>& chunks) {
  std::stable_sort(chunks.begin(), chunks.end(), [](const auto& a, const auto& b) {
    return a.id != b.id ? a.id < b.id : a.n_strict > b.n_strict;
  });
  auto same = [](const auto& a, const auto& b) { return a.id == b.id; };
  chunks.erase(std::unique(chunks.begin(), chunks.end(), same), chunks.end());
}

}  // namespace

// --- Matching ----------------------------------------------------------------------------------

// Follows the children of every key that the query reaches. Chunks were cut by what follows them,
// so more than one child can fit whole; each is followed.
struct Store::Walk {
  struct Step {
    MatchedChunk use;
    int previous = -1;
    uint32_t n_token = 0;   // up to and with this chunk
    uint32_t n_strict = 0;  // of these, the leading ones with the bits of a cold run
  };

  Store& store;
  const MatchQuery& query;
  std::vector<Step> steps;

  Match run() {
    int best = -1;
    follow(-1, kv::prefix_root(query.fingerprint, query.salt));
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].use.n_use == steps[i].use.chunk.tokens->size()) {
        follow(static_cast<int>(i), steps[i].use.chunk.id.prefix_key);
      }
      if (best < 0 || reach(steps[i]) > reach(steps[best])) best = static_cast<int>(i);
    }
    Match match;
    if (best < 0) return match;
    match.n_token = steps[best].n_token;
    match.n_strict = steps[best].n_strict;
    for (int i = best; i >= 0; i = steps[i].previous) match.chunks.push_back(steps[i].use);
    std::reverse(match.chunks.begin(), match.chunks.end());
    match.divergence = divergence_of(match.chunks.back());
    return match;
  }

  // Inside the last chunk of a match.
  std::optional<Divergence> divergence_of(const MatchedChunk& last) const {
    const std::vector<Token>& stored = *last.chunk.tokens;
    const auto n = n_shared(stored, query.tokens.subspan(last.pos_first));
    if (n == stored.size() || last.pos_first + n == query.tokens.size()) return std::nullopt;
    return Divergence{last.pos_first + n, {stored.begin() + n, stored.end()}};
  }

  static std::pair<uint32_t, uint32_t> reach(const Step& step) {
    return {step.n_token, step.n_strict};
  }

  bool own(const MatchedChunk& use) const { return use.chunk.id.numeric == query.numeric; }

  // How much of the chunk the query can use at `pos`.
  MatchedChunk fit(ChunkSummary chunk, uint32_t pos) const {
    MatchedChunk use{.chunk = std::move(chunk), .pos_first = pos};
    const bool ours = use.chunk.fingerprint == query.fingerprint &&
                      use.chunk.shape == query.shape &&
                      (use.chunk.flags & kv::kFlagApproximate) == 0;
    if (!ours) return use;
    use.n_use = n_shared(*use.chunk.tokens, query.tokens.subspan(pos));
    use.n_strict = own(use) ? std::min(use.n_use, use.chunk.n_strict) : 0;
    if (query.mode == ReuseMode::kStrict) use.n_use = use.n_strict;
    return use;
  }

  bool better(const MatchedChunk& a, const MatchedChunk& b) const {
    auto rank = [this](const MatchedChunk& use) {
      return std::tuple(use.n_use, own(use), use.n_strict);
    };
    return rank(a) > rank(b);
  }

  // Adds a step for the best use of each distinct continuation, and one for the best part.
  void follow(int previous, const Digest& parent_key) {
    const uint32_t pos = previous < 0 ? 0 : steps[previous].n_token;
    if (pos >= query.tokens.size()) return;
    std::vector<MatchedChunk> found;
    for (ChunkSummary& chunk : store.candidates(parent_key, query.tokens.subspan(pos))) {
      MatchedChunk use = fit(std::move(chunk), pos);
      if (use.n_use == 0) continue;
      const bool whole = use.n_use == use.chunk.tokens->size();
      auto rival = std::find_if(found.begin(), found.end(), [&](const MatchedChunk& other) {
        const bool other_whole = other.n_use == other.chunk.tokens->size();
        return whole ? other_whole && other.chunk.id.prefix_key == use.chunk.id.prefix_key
                     : !other_whole;
      });
      if (rival == found.end()) {
        found.push_back(std::move(use));
      } else if (better(use, *rival)) {
        *rival = std::move(use);
      }
    }
    for (MatchedChunk& use : found) {
      Step step{.use = std::move(use), .previous = previous, .n_token = pos, .n_strict = pos};
      if (previous >= 0) step.n_strict = steps[previous].n_strict;
      if (step.n_strict == pos) step.n_strict += step.use.n_strict;
      step.n_token += step.use.n_use;
      steps.push_back(std::move(step));
    }
  }
};

Match Store::match(const MatchQuery& query) {
  if (query.mode == ReuseMode::kOff) return {};
  return Walk{*this, query, {}}.run();
}

// What waits is asked before the tiers: it reaches a tier before it stops waiting.
std::vector<ChunkSummary> Store::candidates(const Digest& parent_key,
                                            std::span<const Token> tokens) {
  std::vector<ChunkSummary> out;
  {
    std::lock_guard lock(mutex_);
    for (const Waiting& waiting : waiting_) {
      const kv::ChunkHeader& header = waiting.chunk->header();
      if (header.meta.parent_key != parent_key) continue;
      if (n_shared(header.meta.tokens, tokens) == 0) continue;
      out.push_back(summary_of(header.meta, header.file_bytes));
    }
  }
  for (const auto& tier : tiers_) {
    auto children = tier->children(parent_key, tokens);
    out.insert(out.end(), std::make_move_iterator(children.begin()),
               std::make_move_iterator(children.end()));
  }
  keep_strictest(out);
  return out;
}

// --- Loading -----------------------------------------------------------------------------------

kv::ChunkPtr Store::find_waiting(const kv::ChunkId& id) const {
  std::lock_guard lock(mutex_);
  kv::ChunkPtr found;
  for (const Waiting& waiting : waiting_) {
    const kv::ChunkMeta& meta = waiting.chunk->header().meta;
    if (meta.prefix_key != id.prefix_key || meta.numeric != id.numeric) continue;
    if (found == nullptr || meta.n_strict > found->header().meta.n_strict) found = waiting.chunk;
  }
  return found;
}

Result<std::string_view> Store::load(const MatchedChunk& matched, CellRange want, CellSink& sink,
                                     Deadline deadline) {
  MatchedSink checked(matched, sink);
  const kv::ChunkId& id = matched.chunk.id;
  Result<void> result = Error{Code::kNotFound, "the chunk is in no tier"};
  if (kv::ChunkPtr chunk = find_waiting(id)) {
    result = deliver(*chunk, want, checked);
    if (result.ok()) return kQueueName;
    if (checked.refused) return result.error();
  }
  for (size_t tier = 0; tier < tiers_.size(); ++tier) {
    result = tiers_[tier]->get(id, want, checked, deadline);
    if (result.ok()) {
      note_load(id, tier, want.layer_first == 0 && want.layer_end == matched.chunk.shape.n_layer);
      return tiers_[tier]->name();
    }
    if (checked.refused || result.error().code == Code::kInvalidArgument) break;
  }
  return result.error();
}

void Store::note_load(const kv::ChunkId& id, size_t tier, bool whole) {
  if (tiers_.size() < 2) return;
  std::lock_guard lock(mutex_);
  if (loaded_.size() >= kLoadedMax) return;
  loaded_.push_back({id, tier, whole, SteadyClock::now()});
  wake_.notify_one();
}

// --- Storing -----------------------------------------------------------------------------------

Store::Store(std::vector<std::unique_ptr<Tier>> tiers, uint64_t queue_bytes_max)
    : tiers_(std::move(tiers)), queue_bytes_max_(queue_bytes_max) {
  worker_ = std::thread([this] { work(); });
}

Store::~Store() {
  flush();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  worker_.join();
}

bool Store::put(kv::ChunkBuilder chunk) {
  kv::ChunkPtr readable = chunk.peek();
  const uint64_t size_bytes = chunk.size_bytes();
  std::lock_guard lock(mutex_);
  if (size_bytes > queue_bytes_max_ - std::min(queue_bytes_max_, queue_bytes_)) {
    ++n_queue_dropped_;
    return false;
  }
  queue_bytes_ += size_bytes;
  waiting_.push_back({std::move(chunk), std::move(readable)});
  wake_.notify_one();
  return true;
}

void Store::flush() {
  std::unique_lock lock(mutex_);
  ++n_flushing_;
  wake_.notify_one();
  idle_.wait(lock, [this] { return waiting_.empty() && loaded_.empty() && !working_; });
  --n_flushing_;
}

void Store::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!waiting_.empty()) {
      store_next(lock);
    } else if (!loaded_.empty()) {
      const auto due = loaded_.back().when + kSpreadDelay;
      if (n_flushing_ == 0 && !stop_ && SteadyClock::now() < due) {
        wake_.wait_until(lock, due);
      } else {
        spread_next(lock);
      }
    } else {
      idle_.notify_all();
      if (stop_) return;
      wake_.wait(lock);
    }
  }
}

void Store::store_next(std::unique_lock<std::mutex>& lock) {
  working_ = true;
  Waiting& next = waiting_.front();  // stays, and stays readable, until the tiers have it
  lock.unlock();
  try {
    const kv::ChunkPtr sealed = std::move(next.builder).seal();
    for (const auto& tier : tiers_) {
      auto stored = tier->put(sealed);  // the tier counts and logs what fails
      if (!stored.ok()) spdlog::debug("{}: {}", tier->name(), stored.error().message);
    }
  } catch (const std::exception& error) {
    spdlog::error("a chunk could not be stored: {}", error.what());
  }
  lock.lock();
  queue_bytes_ -= next.chunk->header().file_bytes;
  waiting_.pop_front();
  working_ = false;
}

void Store::spread_next(std::unique_lock<std::mutex>& lock) {
  working_ = true;
  const Loaded loaded = loaded_.front();
  loaded_.pop_front();
  lock.unlock();
  try {
    spread(loaded);
  } catch (const std::exception& error) {
    spdlog::error("a chunk could not be copied to a faster tier: {}", error.what());
  }
  lock.lock();
  working_ = false;
}

void Store::spread(const Loaded& loaded) {
  for (size_t slower = loaded.tier + 1; slower < tiers_.size(); ++slower) {
    tiers_[slower]->note_use(loaded.id);
  }
  if (!loaded.whole || loaded.tier == 0) return;
  auto chunk = tiers_[loaded.tier]->read(loaded.id);
  if (!chunk.ok()) return;  // gone or damaged meanwhile: the tier has counted it
  for (size_t faster = 0; faster < loaded.tier; ++faster) {
    auto stored = tiers_[faster]->put(*chunk);
    if (!stored.ok()) spdlog::debug("{}: {}", tiers_[faster]->name(), stored.error().message);
  }
}

// --- Single chunks -----------------------------------------------------------------------------

Result<kv::ChunkPtr> Store::read(const kv::ChunkId& id) {
  Result<kv::ChunkPtr> chunk = Error{Code::kNotFound, "the chunk is in no tier"};
  for (const auto& tier : tiers_) {
    chunk = tier->read(id);
    if (chunk.ok()) break;
  }
  return chunk;
}

Result<void> Store::take_in(kv::ChunkPtr chunk) {
  Result<void> result = Error{Code::kNotFound, "there is no tier"};
  bool taken = false;
  for (const auto& tier : tiers_) {
    result = tier->put(chunk);
    taken = taken || result.ok();
  }
  return taken ? Result<void>() : result;
}

void Store::erase(const kv::ChunkId& id) {
  for (const auto& tier : tiers_) {
    if (auto erased = tier->erase(id); !erased.ok()) {
      spdlog::warn("{}: {}", tier->name(), erased.error().message);
    }
  }
}

// --- All tiers together ------------------------------------------------------------------------

StoreStats Store::stats() const {
  StoreStats stats;
  for (const auto& tier : tiers_) stats.tiers.emplace_back(tier->name(), tier->stats());
  std::lock_guard lock(mutex_);
  stats.n_queue_dropped = n_queue_dropped_;
  stats.queue_bytes = queue_bytes_;
  return stats;
}

Result<VerifyReport> Store::verify() {
  flush();
  VerifyReport report;
  for (const auto& tier : tiers_) {
    HS_ASSIGN_OR_RETURN(const VerifyReport one, tier->verify());
    report.n_ok += one.n_ok;
    report.n_corrupt += one.n_corrupt;
  }
  return report;
}

Result<void> Store::clear() {
  flush();
  Result<void> result;
  for (const auto& tier : tiers_) {
    if (auto cleared = tier->clear(); !cleared.ok()) result = cleared;
  }
  return result;
}

}  // namespace headstart::store
