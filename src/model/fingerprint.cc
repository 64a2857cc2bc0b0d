#include "model/fingerprint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/disk.h"
#include "base/log.h"

namespace headstart::model {
namespace fs = std::filesystem;
namespace {

// Everything that changes when the file's content does.
std::string stamp_of(const struct stat& st) {
  return std::to_string(st.st_dev) + ":" + std::to_string(st.st_ino) + ":" +
         std::to_string(st.st_size) + ":" + std::to_string(st.st_mtim.tv_sec) + "." +
         std::to_string(st.st_mtim.tv_nsec) + ":" + std::to_string(st.st_ctim.tv_sec) + "." +
         std::to_string(st.st_ctim.tv_nsec);
}

Result<Digest> hash_file(const fs::path& path, double size_bytes,
                         const std::function<void(double)>& progress) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Error{Code::kIo, "cannot read " + path.string() + ": " + std::strerror(errno)};
  Sha256 sha;
  std::vector<std::byte> block(size_t{1} << 20);
  double n_done = 0;
  for (;;) {
    const ssize_t n = ::read(fd, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int err = errno;
      ::close(fd);
      if (n == 0) return sha.finish();
      return Error{Code::kIo, "cannot read " + path.string() + ": " + std::strerror(err)};
    }
    sha.update(std::span(block).first(static_cast<size_t>(n)));
    n_done += static_cast<double>(n);
    if (progress) progress(std::min(1.0, n_done / size_bytes));
  }
}

}  // namespace

Result<Digest> fingerprint(const fs::path& gguf, const fs::path& cache_dir,
                           const std::function<void(double)>& progress) {
  struct stat st;
  if (::stat(gguf.c_str(), &st) != 0) {
    return Error{Code::kIo, "cannot read " + gguf.string() + ": " + std::strerror(errno)};
  }
  const auto size_bytes = static_cast<double>(st.st_size);
  if (cache_dir.empty()) return hash_file(gguf, size_bytes, progress);
  const std::string stamp = stamp_of(st);
  const fs::path entry = cache_dir / to_hex(Sha256().update(stamp).finish()).substr(0, 32);
  {
    std::ifstream in(entry);
    std::string saved_stamp, hex;
    if (in >> saved_stamp >> hex && saved_stamp == stamp) {
      if (auto digest = digest_from_hex(hex); digest.ok()) return digest;
    }
  }
  HS_ASSIGN_OR_RETURN(const Digest digest, hash_file(gguf, size_bytes, progress));
  PosixDisk disk;
  const std::string text = stamp + " " + to_hex(digest) + "\n";
  const fs::path beside = entry.string() + ".tmp" + std::to_string(::getpid());
  auto saved = disk.make_private_dir(cache_dir);
  if (saved.ok()) saved = disk.write_durable(beside, std::as_bytes(std::span(text)));
  if (saved.ok()) saved = disk.rename_durable(beside, entry);
  if (!saved.ok()) spdlog::debug("the model's digest is not cached: {}", saved.error().message);
  return digest;
}

}  // namespace headstart::model
