#include "base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

namespace headstart {
namespace fs = std::filesystem;
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

// What a version of control groups calls things.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* inactive_file;  // of memory.stat
  const char* active_file;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file", "total_active_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file", "active_file"};

// kUnknown: "max", or no such file.
uint64_t number_in(const fs::path& file) {
  std::ifstream in(file);
  uint64_t bytes;
  return in >> bytes ? bytes : kUnknown;
}

uint64_t file_bytes(const fs::path& group, const GroupFiles& files) {
  std::ifstream in(group / "memory.stat");
  std::string name;
  uint64_t bytes, sum = 0;
  while (in >> name >> bytes) {
    if (name == files.inactive_file || name == files.active_file) sum += bytes;
  }
  return sum;
}

void take_group(const fs::path& group, const GroupFiles& files, GroupMemory& least) {
  const uint64_t limit = number_in(group / files.limit), used = number_in(group / files.used);
  if (limit == kUnknown || used == kUnknown) return;
  const uint64_t held = used - std::min(used, file_bytes(group, files));
  least.limit_bytes = std::min(least.limit_bytes, limit);
  least.available_bytes = std::min(least.available_bytes, limit > held ? limit - held : 0);
}

GroupMemory own_group_memory() {
  std::ifstream in("/proc/self/cgroup");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  return group_memory(text, "/sys/fs/cgroup");
}

}  // namespace

GroupMemory group_memory(std::string_view text, const fs::path& mount) {
  GroupMemory least;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && controllers != "memory") continue;
    const GroupFiles& files = version2 ? kVersion2 : kVersion1;
    const fs::path root = version2 ? mount : mount / "memory";
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    // In a container the path may be that of outside, which is not there; the root always is.
    for (; !group.empty(); group = group.parent_path()) take_group(root / group, files, least);
    take_group(root, files, least);
  }
  return least;
}

uint64_t available_memory_bytes() {
  return std::min(meminfo_bytes("MemAvailable:"), own_group_memory().available_bytes);
}

uint64_t total_memory_bytes() {
  return std::min(meminfo_bytes("MemTotal:"), own_group_memory().limit_bytes);
}

ResidentMemory resident_memory() {
  std::ifstream in("/proc/self/statm");  // in pages
  uint64_t n_mapped = 0, n_resident = 0, n_shared = 0;
  if (!(in >> n_mapped >> n_resident >> n_shared)) return {};
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  n_shared = std::min(n_shared, n_resident);
  return {(n_resident - n_shared) * page_bytes, n_shared * page_bytes};
}

}  // namespace headstart
