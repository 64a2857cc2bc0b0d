// bench/memory_group.h: work in a process that may hold only so much memory.
//
// What a control group's processes read from files counts towards its limit, so that a file larger
// than the limit is read again and again, as on a machine with that little memory.
//
//   units    bytes
//   threads  one owner; fork only while there is one thread
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"

namespace headstart::bench {

class MemoryGroup {
 public:
  // A group of its own, version 1 or 2, whichever has the memory controller. Errors: kUnsupported
  // (no such controller, or not root).
  static Result<MemoryGroup> open(uint64_t limit_bytes);
  MemoryGroup(MemoryGroup&& other) noexcept;
  ~MemoryGroup();  // removes it; its processes have ended

  // Moves the calling process into it.
  Result<void> enter() const;

 private:
  explicit MemoryGroup(std::filesystem::path dir) : dir_(std::move(dir)) {}
  std::filesystem::path dir_;
};

// What `work` returns, computed by a child process, in the group where one is given. At most 64
// KiB. Errors: those of `work` (their message), kExhausted (the system killed it).
Result<std::string> in_child(const MemoryGroup* group,
                             const std::function<Result<std::string>()>& work);

// Drops what is in memory of a file that no process maps. Errors: kIo.
Result<void> drop_from_memory(const std::filesystem::path& file);

}  // namespace headstart::bench
