#include "bench/memory_group.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <utility>

namespace headstart::bench {
namespace fs = std::filesystem;
namespace {

constexpr size_t kAnswerBytesMax = 64 << 10;

// The kernel's files take a whole value in one write.
bool put(const fs::path& file, const std::string& value) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = ::write(fd, value.data(), value.size()) == static_cast<ssize_t>(value.size());
  ::close(fd);
  return ok;
}

struct Version {
  const char* mount;
  const char* limit;
  const char* swap;  // how much of it may be swapped, or how readily
};
constexpr Version kVersions[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"},
    {"/sys/fs/cgroup", "memory.max", "memory.swap.max"}};

// The child's side of the pipe: a letter that says whether it is an error, and the text.
void answer(int fd, const Result<std::string>& result) {
  const std::string text = result.ok() ? "+" + *result : "-" + result.error().message;
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

std::string read_all(int fd) {
  std::string text;
  char block[4096];
  for (;;) {
    const ssize_t n = ::read(fd, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || text.size() > kAnswerBytesMax) return text;
    text.append(block, static_cast<size_t>(n));
  }
}

}  // namespace

Result<MemoryGroup> MemoryGroup::open(uint64_t limit_bytes) {
  const std::string name = "headstart-bench-" + std::to_string(::getpid());
  for (const Version& version : kVersions) {
    put(fs::path(version.mount) / "cgroup.subtree_control", "+memory");  // version 2 alone has it
    const fs::path dir = fs::path(version.mount) / name;
    std::error_code error;
    if (!fs::create_directory(dir, error)) continue;
    MemoryGroup group(dir);
    put(dir / version.swap, "0");
    if (put(dir / version.limit, std::to_string(limit_bytes))) return group;
  }
  return Error{Code::kUnsupported,
               "this user may not make a control group with a limit of memory; try as root"};
}

MemoryGroup::MemoryGroup(MemoryGroup&& other) noexcept : dir_(std::exchange(other.dir_, {})) {}

MemoryGroup::~MemoryGroup() {
  if (!dir_.empty()) ::rmdir(dir_.c_str());
}

Result<void> MemoryGroup::enter() const {
  if (put(dir_ / "cgroup.procs", std::to_string(::getpid()))) return {};
  return Error{Code::kIo, "cannot enter " + dir_.string() + ": " + std::strerror(errno)};
}

Result<std::string> in_child(const MemoryGroup* group,
                             const std::function<Result<std::string>()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error{Code::kExhausted, "no pipe for a child process"};
  const pid_t child = ::fork();
  if (child < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return Error{Code::kExhausted, "the system starts no more processes"};
  }
  if (child == 0) {
    ::close(ends[0]);
    const Result<void> entered = group != nullptr ? group->enter() : Result<void>();
    answer(ends[1], entered.ok() ? work() : Result<std::string>(entered.error()));
    ::_exit(0);
  }
  ::close(ends[1]);
  const std::string text = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (text.empty() || !WIFEXITED(status)) {
    return Error{Code::kExhausted, "the system killed the measured process: too little memory?"};
  }
  if (text[0] == '-') return Error{Code::kIo, text.substr(1)};
  return text.substr(1);
}

Result<void> drop_from_memory(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  // Only what has been written to the disk can be dropped.
  const bool ok =
      fd >= 0 && ::fsync(fd) == 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
  if (fd >= 0) ::close(fd);
  if (!ok) return Error{Code::kIo, "cannot drop " + file.string() + " from memory"};
  return {};
}

}  // namespace headstart::bench
