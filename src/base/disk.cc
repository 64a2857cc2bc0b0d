#include "base/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

namespace headstart {
namespace fs = std::filesystem;
namespace {

Error failed(const char* what, const fs::path& path, int err) {
  Code code = err == ENOENT                                    ? Code::kNotFound
              : err == ENOSPC || err == EDQUOT || err == EFBIG ? Code::kExhausted
                                                               : Code::kIo;
  return Error{code,
               std::string("cannot ") + what + " " + path.string() + ": " + std::strerror(err)};
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

class PosixReadFile final : public ReadFile {
 public:
  PosixReadFile(int fd, uint64_t size_bytes, fs::path path)
      : fd_(fd), size_bytes_(size_bytes), path_(std::move(path)) {}
  uint64_t size_bytes() const override { return size_bytes_; }
  Result<void> read_at(uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      ssize_t n = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return failed("read", path_, errno);
      if (n == 0) return Error{Code::kCorrupt, path_.string() + " ends early"};
      offset += static_cast<uint64_t>(n);
      out = out.subspan(static_cast<size_t>(n));
    }
    return {};
  }

 private:
  Fd fd_;
  uint64_t size_bytes_;
  fs::path path_;
};

Result<void> sync_dir(const fs::path& dir) {
  Fd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return failed("sync", dir, errno);
  return {};
}

double mtime_of(const struct stat& st) {
  return static_cast<double>(st.st_mtim.tv_sec) + 1e-9 * static_cast<double>(st.st_mtim.tv_nsec);
}

}  // namespace

Result<void> PosixDisk::make_private_dir(const fs::path& dir) {
  std::error_code ec;
  if (fs::is_directory(dir, ec)) return {};
  if (dir.has_parent_path()) fs::create_directories(dir.parent_path(), ec);
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return failed("create", dir, errno);
  return {};
}

Result<std::vector<FileInfo>> PosixDisk::list(const fs::path& dir) {
  std::error_code ec;
  std::vector<FileInfo> out;
  fs::directory_iterator it(dir, ec);
  if (ec) return failed("list", dir, ec.value());
  for (; it != fs::directory_iterator(); it.increment(ec)) {
    if (ec) return failed("list", dir, ec.value());
    struct stat st;
    // Another process may remove an entry between the two calls: that is no failure.
    if (::lstat(it->path().c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
    out.push_back(
        {it->path().filename().string(), static_cast<uint64_t>(st.st_size), mtime_of(st)});
  }
  return out;
}

Result<std::unique_ptr<ReadFile>> PosixDisk::open(const fs::path& file) {
  int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return failed("open", file, errno);
  struct stat st;
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    return Error{Code::kIo, file.string() + " is not a plain file"};
  }
  return std::unique_ptr<ReadFile>(new PosixReadFile(fd, static_cast<uint64_t>(st.st_size), file));
}

Result<void> PosixDisk::write_durable(const fs::path& file, std::span<const std::byte> bytes) {
  Fd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return failed("create", file, errno);
  while (!bytes.empty()) {
    ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("write", file, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  if (::fsync(fd.get()) != 0) return failed("sync", file, errno);
  return {};
}

Result<void> PosixDisk::rename_durable(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return failed("rename", from, errno);
  return sync_dir(to.parent_path());
}

Result<void> PosixDisk::remove(const fs::path& file) {
  if (::unlink(file.c_str()) != 0) return failed("remove", file, errno);
  return {};
}

Result<void> PosixDisk::set_mtime(const fs::path& file, double unix_s) {
  double whole = std::floor(unix_s);
  timespec t{static_cast<time_t>(whole), static_cast<long>((unix_s - whole) * 1e9)};
  timespec times[2] = {{0, UTIME_OMIT}, t};
  if (::utimensat(AT_FDCWD, file.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0)
    return failed("touch", file, errno);
  return {};
}

Result<uint64_t> PosixDisk::dir_version(const fs::path& dir) {
  struct stat st;
  if (::stat(dir.c_str(), &st) != 0) return failed("stat", dir, errno);
  return static_cast<uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000ull +
         static_cast<uint64_t>(st.st_mtim.tv_nsec);
}

}  // namespace headstart
