#include "exec/compute_pool.h"

namespace headstart::exec {
namespace {

// Tens of microseconds: the time between two jobs of a layer.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once `value` is no longer `old`.
void wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ComputePool::ComputePool(uint32_t n_thread) {
  try {
    for (uint32_t i = 1; i < n_thread; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {
    stop();
    throw;
  }
}

ComputePool::~ComputePool() { stop(); }

void ComputePool::stop() {
  stop_.store(true);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ComputePool::take_items(uint32_t thread) {
  for (;;) {
    const uint32_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= n_item_) return;
    call_(function_, item, thread);
  }
}

// False where the job is over, or none has begun.
bool ComputePool::join_job() {
  uint32_t joined = joined_.load(std::memory_order_relaxed);
  while ((joined & kClosed) == 0) {
    if (joined_.compare_exchange_weak(joined, joined + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ComputePool::leave_job() {
  if (joined_.fetch_sub(1, std::memory_order_release) == (kClosed | 1)) joined_.notify_one();
}

void ComputePool::run_erased(uint32_t n_item, Call call, const void* function) {
  call_ = call;
  function_ = function;
  n_item_ = n_item;
  next_item_.store(0, std::memory_order_relaxed);
  if (workers_.empty() || n_item == 1) {
    take_items(0);
    return;
  }
  joined_.store(0, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_items(0);
  uint32_t joined = joined_.fetch_or(kClosed, std::memory_order_acquire) | kClosed;
  while (joined != kClosed) {
    wait_while(joined_, joined);
    joined = joined_.load(std::memory_order_acquire);
  }
}

void ComputePool::work(uint32_t thread) {
  uint32_t seen = 0;
  for (;;) {
    wait_while(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!join_job()) continue;
    take_items(thread);
    leave_job();
  }
}

}  // namespace headstart::exec
