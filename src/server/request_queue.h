// server/request_queue.h: requests in order of arrival, a few running, the next ones waiting.
//
// A connection submits a request and holds its Ticket; a worker runs it and hands text over through
// the ticket. Dropping the ticket cancels that request, waiting or running, and no other, so a
// client that leaves needs no bookkeeping: its connection's stack unwinds.
//
// Workers never wait for a client. What a slow client has not read is kept up to a bound, then the
// request is cancelled: with one engine for all, blocking there would let one client stop everyone.
//
//   threads  submit(), stop() and the counts from any thread at once; a Ticket has one owner
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/engine.h"
#include "server/prompt_progress.h"
#include "server/request_log.h"

namespace headstart::server {

struct QueueLimits {
  uint32_t n_running_max = 1;             // requests computed at once: one worker thread for each
  uint32_t n_waiting_max = 32;            // beyond these, submit() refuses
  size_t unread_bytes_max = 1024 * 1024;  // text that one client may leave unread
};

// What the log calls a request.
struct RequestName {
  std::string id, endpoint;
};

class RequestQueue {
 private:
  struct Job;

 public:
  // Computes one request; called on a worker thread. `queue_ms` is the time it waited.
  using Run =
      std::function<Result<exec::Completion>(const exec::CompletionRequest&, double queue_ms)>;

  class Ticket {
   public:
    ~Ticket();  // cancels the request unless it has finished
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // Text that arrived since the last call, possibly none; waits at most `timeout` for text or
    // for the end.
    std::string wait(std::chrono::milliseconds timeout);
    // Probabilities that arrived since the last call: all of those that belong to text that wait()
    // has returned, and maybe of text that it will return next.
    std::vector<model::TokenProbs> take_probs();
    // The newest progress of the prompt since the last call, if there is any.
    std::optional<PromptProgress> take_progress();
    // Finished and all its text taken: result() may be called.
    bool finished() const;
    const Result<exec::Completion>& result() const;
    double queue_ms() const;

   private:
    friend class RequestQueue;
    Ticket(RequestQueue& queue, std::shared_ptr<Job> job);
    RequestQueue& queue_;  // outlives its tickets
    std::shared_ptr<Job> job_;
  };

  // `log`, where there is one, hears of every request that is accepted; it must outlive the queue.
  RequestQueue(const QueueLimits& limits, Run run, RequestLog* log = nullptr);
  ~RequestQueue();  // stop() and join()

  // Sets the request's cancel, progress, on_text and on_probs. Errors: kExhausted (full),
  // kUnavailable (closed or stopped).
  Result<std::unique_ptr<Ticket>> submit(exec::CompletionRequest request, RequestName name = {});
  // From now on submit() refuses; what is here goes on.
  void close();
  // Cancels everything, waiting and running; each ticket then finishes with kCancelled.
  void stop();
  void join();  // after stop(): returns when no request runs any more
  uint32_t n_waiting() const;
  uint32_t n_running() const;

 private:
  void work();
  Result<exec::Completion> run_job(Job& job);
  void forget(const std::shared_ptr<Job>& job);
  void log_accepted(const std::shared_ptr<Job>& job, RequestName name);
  void log_ended(const Job& job, const Result<exec::Completion>& result);

  const QueueLimits limits_;
  const Run run_;
  RequestLog* const log_;  // may be null
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> waiting_;
  std::vector<std::shared_ptr<Job>> running_;
  bool closed_ = false, stopped_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace headstart::server
