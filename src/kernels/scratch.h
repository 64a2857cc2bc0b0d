// kernels/scratch.h: memory that a thread's kernel calls grow as they need it and keep.
//
//   units    n_value in values of T
//   threads  belongs to one thread
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/check.h"

namespace headstart::kernels {

template <class T>
class Scratch {
 public:
  // At least n_value values, 64-byte aligned; what they held before is undefined.
  T* get(size_t n_value) {
    if (n_value > n_value_) {
      const size_t n_byte = (n_value * sizeof(T) + 63) / 64 * 64;
      values_.reset(static_cast<T*>(std::aligned_alloc(64, n_byte)));
      HS_CHECK(values_ != nullptr, "memory for a kernel's scratch");
      n_value_ = n_value;
    }
    return values_.get();
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> values_;
  size_t n_value_ = 0;
};

}  // namespace headstart::kernels
