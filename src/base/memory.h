// base/memory.h: how much memory this process may still take.
//
// A control group that bounds the process counts, version 1 or 2, and so do those around it. What
// a group holds of files is given back when memory is wanted, so it counts as available: else a
// model larger than the group would leave nothing for its K,V.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace headstart {

// Bytes that the system, and the process's groups where it has any, can give without swapping.
// UINT64_MAX where neither says.
uint64_t available_memory_bytes();
uint64_t total_memory_bytes();

// What this process holds in memory.
struct ResidentMemory {
  uint64_t private_bytes = 0;
  uint64_t file_bytes = 0;  // of mapped files: the system takes these back when it wants memory
};
ResidentMemory resident_memory();  // zeros where the system does not say

struct GroupMemory {
  uint64_t limit_bytes = UINT64_MAX;
  uint64_t available_bytes = UINT64_MAX;
};
// The least over the groups that /proc/self/cgroup (its text) names and those around them. Pure
// but for the files below `mount`, usually /sys/fs/cgroup.
GroupMemory group_memory(std::string_view proc_self_cgroup, const std::filesystem::path& mount);

}  // namespace headstart
