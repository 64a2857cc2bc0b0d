#include "server/request_queue.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <span>
#include <utility>

namespace headstart::server {
namespace {

using Steady = std::chrono::steady_clock;

double ms_between(Steady::time_point from, Steady::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

// One request from acceptance to its end, shared by its ticket and its worker.
struct RequestQueue::Job {
  exec::CompletionRequest request;
  std::stop_source cancel;
  const Steady::time_point accepted_at = Steady::now();
  size_t unread_bytes_max = 0;
  uint64_t log_number = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::string unread;
  std::vector<model::TokenProbs> unread_probs;
  double queue_ms = 0;
  Steady::time_point started_at;
  std::optional<PromptProgress> progress;  // of the whole prompt so far
  bool unread_progress = false;
  std::optional<Result<exec::Completion>> result;

  // False where the request is to end: cancelled, or its client does not read.
  bool push(std::string_view piece) {
    if (cancel.stop_requested()) return false;
    std::lock_guard lock(mutex);
    constexpr size_t kProbsBytes = 64;  // counts a slow client's out, whatever they take exactly
    const size_t n_byte = unread.size() + unread_probs.size() * kProbsBytes;
    if (n_byte + piece.size() > unread_bytes_max) return false;
    unread += piece;
    changed.notify_one();
    return true;
  }

  void push_probs(std::span<const model::TokenProbs> probs) {
    std::lock_guard lock(mutex);
    unread_probs.insert(unread_probs.end(), probs.begin(), probs.end());
  }

  // The first call tells what is reused.
  void push_progress(double done) {
    std::lock_guard lock(mutex);
    const auto n_total = static_cast<uint32_t>(request.tokens.size());
    const auto n_done = static_cast<uint32_t>(std::lround(done * n_total));
    if (!progress) progress = {n_total, n_done, 0, 0};
    progress->n_done = n_done;
    progress->time_ms = ms_between(started_at, Steady::now());
    unread_progress = true;
  }

  void finish(Result<exec::Completion> value) {
    std::lock_guard lock(mutex);
    result = std::move(value);
    changed.notify_one();
  }
};

RequestQueue::Ticket::Ticket(RequestQueue& queue, std::shared_ptr<Job> job)
    : queue_(queue), job_(std::move(job)) {}

RequestQueue::Ticket::~Ticket() {
  job_->cancel.request_stop();
  queue_.forget(job_);
}

std::string RequestQueue::Ticket::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(job_->mutex);
  job_->changed.wait_for(lock, timeout,
                         [&] { return !job_->unread.empty() || job_->result.has_value(); });
  return std::exchange(job_->unread, {});
}

std::vector<model::TokenProbs> RequestQueue::Ticket::take_probs() {
  std::lock_guard lock(job_->mutex);
  return std::exchange(job_->unread_probs, {});
}

std::optional<PromptProgress> RequestQueue::Ticket::take_progress() {
  std::lock_guard lock(job_->mutex);
  return std::exchange(job_->unread_progress, false) ? job_->progress : std::nullopt;
}

bool RequestQueue::Ticket::finished() const {
  std::lock_guard lock(job_->mutex);
  return job_->result.has_value() && job_->unread.empty();
}

const Result<exec::Completion>& RequestQueue::Ticket::result() const {
  HS_CHECK(finished(), "result() of a request that has not finished");
  return *job_->result;
}

double RequestQueue::Ticket::queue_ms() const {
  std::lock_guard lock(job_->mutex);
  return job_->queue_ms;
}

RequestQueue::RequestQueue(const QueueLimits& limits, Run run, RequestLog* log)
    : limits_(limits), run_(std::move(run)), log_(log) {
  HS_CHECK(limits_.n_running_max > 0, "a queue without workers answers nobody");
  for (uint32_t i = 0; i < limits_.n_running_max; ++i) {
    workers_.emplace_back([this] { work(); });
  }
}

RequestQueue::~RequestQueue() {
  stop();
  join();
}

void RequestQueue::join() {
  for (std::thread& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
}

Result<std::unique_ptr<RequestQueue::Ticket>> RequestQueue::submit(exec::CompletionRequest request,
                                                                   RequestName name) {
  auto job = std::make_shared<Job>();
  job->request = std::move(request);
  job->request.cancel = job->cancel.get_token();
  job->request.on_text = [j = job.get()](std::string_view piece) { return j->push(piece); };
  job->request.progress = [j = job.get()](std::string_view phase, double done) {
    if (phase == "prefill") j->push_progress(done);
  };
  if (job->request.n_top_logprobs) {
    job->request.on_probs = [j = job.get()](std::span<const model::TokenProbs> probs) {
      j->push_probs(probs);
    };
  }
  job->unread_bytes_max = limits_.unread_bytes_max;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stopped_) return Error{Code::kUnavailable, "the server is stopping"};
    // Counted together, so that a free worker that has not yet woken up still counts as free.
    const size_t n_all_max = size_t{limits_.n_running_max} + limits_.n_waiting_max;
    if (waiting_.size() + running_.size() >= n_all_max) {
      return Error{Code::kExhausted, "all places in the queue are taken; try again later"};
    }
    log_accepted(job, std::move(name));  // before a worker can start it
    waiting_.push_back(job);
  }
  wake_.notify_one();
  return std::unique_ptr<Ticket>(new Ticket(*this, std::move(job)));
}

void RequestQueue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

void RequestQueue::stop() {
  std::deque<std::shared_ptr<Job>> dropped;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(waiting_);
    for (const auto& job : running_) job->cancel.request_stop();
  }
  wake_.notify_all();
  for (const auto& job : dropped) {
    const Error stopped{Code::kCancelled, "the server is stopping"};
    log_ended(*job, stopped);
    job->finish(stopped);
  }
}

uint32_t RequestQueue::n_waiting() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(waiting_.size());
}

uint32_t RequestQueue::n_running() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(running_.size());
}

void RequestQueue::work() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;  // stop() has taken the waiting ones
      job = std::move(waiting_.front());
      waiting_.pop_front();
      running_.push_back(job);
    }
    auto result = run_job(*job);
    {
      // Before the client learns of the end: its next request must find the place free.
      std::lock_guard lock(mutex_);
      std::erase(running_, job);
    }
    log_ended(*job, result);
    job->finish(std::move(result));
  }
}

Result<exec::Completion> RequestQueue::run_job(Job& job) {
  const auto now = Steady::now();
  const double queue_ms = ms_between(job.accepted_at, now);
  {
    std::lock_guard lock(job.mutex);
    job.started_at = now;
    job.queue_ms = queue_ms;
  }
  if (log_ != nullptr) log_->started(job.log_number);
  try {
    return run_(job.request, queue_ms);
  } catch (const std::bad_alloc&) {
    return Error{Code::kExhausted, "out of memory; use a smaller context (-c)"};
  } catch (const std::exception&) {  // a library's; its text may quote the prompt
    return Error{Code::kIo, "the engine failed"};
  }
}

void RequestQueue::forget(const std::shared_ptr<Job>& job) {
  {
    std::lock_guard lock(mutex_);
    if (std::erase(waiting_, job) == 0) return;
  }
  log_ended(*job, Error{Code::kCancelled, "its client left"});
}

void RequestQueue::log_accepted(const std::shared_ptr<Job>& job, RequestName name) {
  if (log_ == nullptr) return;
  exec::CompletionRequest& r = job->request;
  job->log_number = log_->accepted(std::move(name.id), std::move(name.endpoint),
                                   static_cast<uint32_t>(r.tokens.size()), r.n_predict);
  r.progress = [log = log_, number = job->log_number, also = std::move(r.progress)](
                   std::string_view phase, double done) {
    log->progress(number, phase, done);
    if (also) also(phase, done);
  };
}

void RequestQueue::log_ended(const Job& job, const Result<exec::Completion>& result) {
  if (log_ != nullptr) log_->ended(job.log_number, result);
}

}  // namespace headstart::server
