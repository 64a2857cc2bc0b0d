#include "base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace headstart {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

uint64_t meminfo_bytes(const std::string& field) {
  std::ifstream in("/proc/meminfo");
  std::string name;
  uint64_t kib;
  while (in >> name >> kib) {
    if (name == field) return kib * 1024;
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnknown;
}

// A cgroup-v2 figure, or kUnknown ("max", no such file).
uint64_t cgroup_bytes(const char* file) {
  std::ifstream in(std::string("/sys/fs/cgroup/") + file);
  uint64_t bytes;
  return in >> bytes ? bytes : kUnknown;
}

}  // namespace

uint64_t available_memory_bytes() {
  const uint64_t limit = cgroup_bytes("memory.max"), used = cgroup_bytes("memory.current");
  const uint64_t in_cgroup = limit == kUnknown || used == kUnknown ? kUnknown
                             : limit > used                        ? limit - used
                                                                   : 0;
  return std::min(meminfo_bytes("MemAvailable:"), in_cgroup);
}

uint64_t total_memory_bytes() {
  return std::min(meminfo_bytes("MemTotal:"), cgroup_bytes("memory.max"));
}

}  // namespace headstart
