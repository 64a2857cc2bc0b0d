// base/memory.h: how much memory this process may still take.
#pragma once

#include <cstdint>

namespace headstart {

// Bytes that the system, and the process's cgroup where it has one, can give without swapping.
// UINT64_MAX where neither says.
uint64_t available_memory_bytes();
uint64_t total_memory_bytes();

}  // namespace headstart
