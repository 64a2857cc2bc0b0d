// exec/compute_pool.h: threads that share the items of one job after the other.
//
// A job is a number of independent items; the calling thread works too and returns when all are
// done. It waits for threads that have joined the job, never for one that has yet to wake: where
// other programs have the cores, a thread that gets none costs nothing.
// Waiting threads spin for a moment, because a layer's jobs follow each other closely, then sleep.
//
//   threads  run() by one thread at a time
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace headstart::exec {

class ComputePool {
 public:
  // Throws std::system_error where the system starts no more threads.
  explicit ComputePool(uint32_t n_thread);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  uint32_t n_thread() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  // f(item, thread) for every item below n_item, in ascending order of start; thread is below
  // n_thread(). f must not throw.
  template <class F>
  void run(uint32_t n_item, const F& f) {
    run_erased(
        n_item,
        [](const void* self, uint32_t item, uint32_t thread) noexcept {
          (*static_cast<const F*>(self))(item, thread);
        },
        &f);
  }

 private:
  static constexpr uint32_t kClosed = 1u << 31;
  using Call = void (*)(const void* function, uint32_t item, uint32_t thread);
  void run_erased(uint32_t n_item, Call call, const void* function);
  void stop();
  void work(uint32_t thread);
  void take_items(uint32_t thread);
  bool join_job();
  void leave_job();

  // The job. Written while no worker has joined, read by those that have.
  Call call_ = nullptr;
  const void* function_ = nullptr;
  uint32_t n_item_ = 0;
  std::atomic<uint32_t> next_item_ = 0;
  std::atomic<uint32_t> joined_ = kClosed;  // workers inside the job, and whether more may join
  std::atomic<uint32_t> generation_ = 0;    // rises with each job: what sleeping workers watch
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace headstart::exec
