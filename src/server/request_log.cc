#include "server/request_log.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace headstart::server {
namespace {

double& part_of(RequestRecord& record, TtftPart part) {
  return record.part_ms[static_cast<size_t>(part)];
}

RequestState state_of(const Result<exec::Completion>& result) {
  if (result.ok()) return RequestState::kDone;
  return result.error().code == Code::kCancelled ? RequestState::kCancelled : RequestState::kFailed;
}

uint32_t share_of(uint32_t n, double done) {
  return static_cast<uint32_t>(std::lround(std::clamp(done, 0.0, 1.0) * n));
}

bool continues(const exec::PromptCells& a, const exec::PromptCells& b) {
  return a.source == b.source && a.layers.layer_first == b.layers.layer_first &&
         a.layers.layer_end == b.layers.layer_end && a.pos_first + a.n_token == b.pos_first;
}

}  // namespace

std::string_view to_string(RequestState state) {
  switch (state) {
    case RequestState::kWaiting: return "waiting";
    case RequestState::kRunning: return "running";
    case RequestState::kDone: return "done";
    case RequestState::kCancelled: return "cancelled";
    case RequestState::kFailed: return "failed";
  }
  return "";
}

uint64_t RequestLog::accepted(std::string id, std::string endpoint, uint32_t n_prompt,
                              uint32_t n_predict) {
  const double now_s = clock_.now_s();
  std::lock_guard lock(mutex_);
  const uint64_t number = ++n_accepted_;
  Entry& entry = entries_[number];
  entry.accepted_s = entry.since_s = now_s;
  RequestRecord& record = entry.record;
  record.number = number;
  record.id = std::move(id);
  record.endpoint = std::move(endpoint);
  record.unix_s = clock_.unix_s();
  record.n_prompt = n_prompt;
  record.n_predict = n_predict;
  return number;
}

// Adds the time since the last look to what the request has been doing.
void RequestLog::count_time(Entry& entry, double now_s) const {
  const double passed_ms = (now_s - std::exchange(entry.since_s, now_s)) * 1e3;
  entry.record.age_ms = (now_s - entry.accepted_s) * 1e3;
  if (entry.answering) {
    entry.record.decode_ms += passed_ms;
  } else {
    part_of(entry.record, entry.part) += passed_ms;
  }
}

void RequestLog::started(uint64_t number) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end() || found->second.over) return;
  Entry& entry = found->second;
  count_time(entry, clock_.now_s());
  entry.part = TtftPart::kWait;  // for a slot
  entry.record.state = RequestState::kRunning;
}

void RequestLog::progress(uint64_t number, std::string_view phase, double done) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end() || found->second.over) return;
  Entry& entry = found->second;
  RequestRecord& record = entry.record;
  count_time(entry, clock_.now_s());
  if (phase == "decode") {
    if (!std::exchange(entry.answering, true)) record.ttft_ms = record.age_ms;
    const uint32_t n = share_of(record.n_predict, done);
    totals_.n_generated += n - std::min(n, record.n_generated);
    record.n_generated = n;
  } else if (phase == "prefill") {
    const uint32_t n = share_of(record.n_prompt, done);
    // The first report is of what was reused.
    if (entry.part == TtftPart::kCompute) {
      totals_.n_prefilled += n - std::min(n, record.n_prefilled);
    } else {
      record.n_cached = n;
    }
    entry.part = TtftPart::kCompute;
    record.n_prefilled = n;
  } else {
    entry.part = phase == "lookup" ? TtftPart::kLookup
                 : phase == "load" ? TtftPart::kLoad
                                   : TtftPart::kWait;
  }
}

void RequestLog::ended(uint64_t number, const Result<exec::Completion>& result) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end() || found->second.over) return;
  Entry& entry = found->second;
  RequestRecord& record = entry.record;
  count_time(entry, clock_.now_s());
  entry.over = true;
  record.state = state_of(result);
  if (result.ok()) {
    const exec::Completion& c = *result;
    record.n_prefilled = c.n_prompt;
    record.n_cached = c.n_cached;
    record.n_cached_rounded = c.n_cached_rounded;
    record.n_generated = static_cast<uint32_t>(c.tokens.size());
    part_of(record, TtftPart::kWait) = c.wait_ms;
    part_of(record, TtftPart::kLookup) = c.lookup_ms;
    part_of(record, TtftPart::kLoad) = c.load_ms;
    part_of(record, TtftPart::kCompute) = c.compute_ms;
    record.ttft_ms = part_of(record, TtftPart::kQueue) + c.ttft_ms;
    record.decode_ms = c.decode_ms;
    record.prefill_tok_s = c.prefill_tok_s;
    record.decode_tok_s = c.decode_tok_s;
    note_cells(record, c);
  }
  forget_old();
}

void RequestLog::note_cells(RequestRecord& record, const exec::Completion& completion) const {
  record.cells = completion.cells;
  record.cells_cut = bound_cells(record.cells, kCellsMax);
}

// The oldest that have ended go first; then the oldest pictures.
void RequestLog::forget_old() {
  size_t n_over = 0, n_picture = 0;
  for (auto it = entries_.end(); it != entries_.begin();) {
    --it;
    Entry& entry = it->second;
    if (!entry.over) continue;
    if (!entry.record.cells.empty() && ++n_picture > kPicturesMax) {
      entry.record.cells = {};
      entry.record.cells_cut = false;
    }
    if (++n_over > kRecentMax) it = entries_.erase(it);
  }
}

std::vector<RequestRecord> RequestLog::snapshot() const {
  std::vector<RequestRecord> out;
  std::lock_guard lock(mutex_);
  const double now_s = clock_.now_s();
  out.reserve(entries_.size());
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    Entry entry = it->second;
    if (!entry.over) count_time(entry, now_s);
    out.push_back(std::move(entry.record));
  }
  return out;
}

RequestTotals RequestLog::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

bool bound_cells(std::vector<exec::PromptCells>& cells, size_t n_max) {
  if (cells.size() <= n_max) return false;
  std::vector<exec::PromptCells> joined;
  for (exec::PromptCells& next : cells) {
    // Behind a window a chunk has a cell for each run of layers, so look back over a few.
    const size_t n_look = std::min<size_t>(joined.size(), 64);
    const auto same =
        std::find_if(joined.rbegin(), joined.rbegin() + static_cast<ptrdiff_t>(n_look),
                     [&](const auto& cell) { return continues(cell, next); });
    if (same == joined.rbegin() + static_cast<ptrdiff_t>(n_look)) {
      joined.push_back(std::move(next));
    } else {
      same->n_token += next.n_token;
    }
  }
  cells = std::move(joined);
  const bool cut = cells.size() > n_max;
  if (cut) cells.resize(n_max);
  return cut;
}

}  // namespace headstart::server
