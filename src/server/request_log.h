// server/request_log.h: what runs and what ran lately, for people who watch: the dashboard.
//
// Holds times, counts and where K,V came from; never a text, a token or anything else that a client
// wrote. Memory is bounded: what waits or runs is bounded by the queue, of what has ended the
// newest kRecentMax are kept.
//
//   units    times in milliseconds, since_s in seconds on the clock, counts in tokens
//   threads  every method may be called from any thread at once
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "exec/engine.h"

namespace headstart::server {

enum class RequestState { kWaiting, kRunning, kDone, kCancelled, kFailed };
std::string_view to_string(RequestState state);

// The parts of the time to the first token, in the order in which they usually come.
enum class TtftPart { kQueue, kWait, kLookup, kLoad, kCompute };
inline constexpr size_t kTtftParts = 5;

struct RequestRecord {
  uint64_t number = 0;  // counts up from 1
  std::string id;       // as its client sees it
  std::string endpoint;
  RequestState state = RequestState::kWaiting;
  double unix_s = 0;  // when it was accepted
  double age_ms = 0;  // since then, up to its end
  uint32_t n_prompt = 0;
  uint32_t n_predict = 0;         // most tokens that it may generate
  uint32_t n_prefilled = 0;       // prompt tokens that are in the live cache
  uint32_t n_cached = 0;          // of these, not computed
  uint32_t n_cached_rounded = 0;  // once it has ended
  uint32_t n_generated = 0;
  // By TtftPart. While it runs, time is counted to what it does; what the engine measured replaces
  // that at the end.
  double part_ms[kTtftParts] = {};
  double ttft_ms = 0;                          // from acceptance; 0 before the first token
  double decode_ms = 0;                        // since the first token
  double prefill_tok_s = 0, decode_tok_s = 0;  // once it has ended
  std::vector<exec::PromptCells> cells;        // of one that has ended well; at most kCellsMax
  bool cells_cut = false;                      // there were more
};

struct RequestTotals {
  uint64_t n_prefilled = 0, n_generated = 0;  // computed tokens of all requests, as they come
};

class RequestLog {
 public:
  static constexpr size_t kRecentMax = 64;
  static constexpr size_t kPicturesMax = 8;  // newest requests whose cells are kept
  static constexpr size_t kCellsMax = 512;   // neighbours are joined first where there are more

  explicit RequestLog(const Clock& clock) : clock_(clock) {}

  // The life of a request: accepted, started, any number of progress(), ended. Numbers that are
  // unknown, or have ended, are ignored.
  uint64_t accepted(std::string id, std::string endpoint, uint32_t n_prompt, uint32_t n_predict);
  void started(uint64_t number);
  // As exec::ProgressFn.
  void progress(uint64_t number, std::string_view phase, double done);
  void ended(uint64_t number, const Result<exec::Completion>& result);

  std::vector<RequestRecord> snapshot() const;  // newest first
  RequestTotals totals() const;

 private:
  struct Entry {
    RequestRecord record;
    TtftPart part = TtftPart::kQueue;  // that time is counted to
    double accepted_s = 0;
    double since_s = 0;  // time before is counted
    bool answering = false;
    bool over = false;
  };
  void count_time(Entry& entry, double now_s) const;
  void note_cells(RequestRecord& record, const exec::Completion& completion) const;
  void forget_old();

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> entries_;  // by number
  uint64_t n_accepted_ = 0;
  RequestTotals totals_;
};

// Joins neighbours of one source and the same layers until there are at most `n_max` cells, then
// drops the last. True where it dropped.
bool bound_cells(std::vector<exec::PromptCells>& cells, size_t n_max);

}  // namespace headstart::server
