// base/clock.h: the time, behind an interface whose fake a test winds by hand.
//
//   units    seconds as double; now_s() is steady, unix_s() is wall time
//   threads  every method may be called from any thread at once
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>

namespace headstart {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now_s() const = 0;
  virtual double unix_s() const = 0;
};

class SystemClock final : public Clock {
 public:
  double now_s() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  double unix_s() const override {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

class FakeClock final : public Clock {
 public:
  explicit FakeClock(double start_s = 1e9) : now_s_(start_s) {}
  double now_s() const override { return now_s_.load(); }
  double unix_s() const override { return now_s_.load(); }
  void advance(double seconds) { now_s_.store(now_s_.load() + seconds); }

 private:
  std::atomic<double> now_s_;
};

// CPU time of all threads so far.
inline double process_cpu_s() {
  timespec t;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// A point on the steady clock after which the caller no longer waits.
using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kNoDeadline = Deadline::max();

}  // namespace headstart
