// base/disk.h: the file operations that must survive faults, behind an interface.
//
// PosixDisk does them; a test's FaultyDisk fails, tears or kills at any chosen operation. Paths are
// absolute. Errors: kNotFound, kExhausted (no space left), kIo; the message names the path.
//
//   units    offsets and sizes in bytes
//   threads  every method may be called from any thread at once
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace headstart {

struct FileInfo {
  std::string name;  // within its folder
  uint64_t size_bytes = 0;
  double mtime_s = 0;  // Unix time
};

// An open file for reading; closed by its destructor.
class ReadFile {
 public:
  virtual ~ReadFile() = default;
  virtual uint64_t size_bytes() const = 0;
  // Fills all of `out` from `offset`. Errors: kCorrupt where the file ends before, kIo.
  virtual Result<void> read_at(uint64_t offset, std::span<std::byte> out) const = 0;
};

class Disk {
 public:
  virtual ~Disk() = default;
  // Creates the folder and its parents; the last one gets mode 0700 if it is new.
  virtual Result<void> make_private_dir(const std::filesystem::path& dir) = 0;
  virtual Result<std::vector<FileInfo>> list(const std::filesystem::path& dir) = 0;
  virtual Result<std::unique_ptr<ReadFile>> open(const std::filesystem::path& file) = 0;
  // Creates or truncates `file` with mode 0600, writes all bytes and fsyncs them.
  virtual Result<void> write_durable(const std::filesystem::path& file,
                                     std::span<const std::byte> bytes) = 0;
  // Replaces `to` in one step, then fsyncs its folder.
  virtual Result<void> rename_durable(const std::filesystem::path& from,
                                      const std::filesystem::path& to) = 0;
  virtual Result<void> remove(const std::filesystem::path& file) = 0;
  virtual Result<void> set_mtime(const std::filesystem::path& file, double unix_s) = 0;
  // Changes when an entry of the folder is added or removed (its mtime, in nanoseconds).
  virtual Result<uint64_t> dir_version(const std::filesystem::path& dir) = 0;
};

class PosixDisk final : public Disk {
 public:
  Result<void> make_private_dir(const std::filesystem::path& dir) override;
  Result<std::vector<FileInfo>> list(const std::filesystem::path& dir) override;
  Result<std::unique_ptr<ReadFile>> open(const std::filesystem::path& file) override;
  Result<void> write_durable(const std::filesystem::path& file,
                             std::span<const std::byte> bytes) override;
  Result<void> rename_durable(const std::filesystem::path& from,
                              const std::filesystem::path& to) override;
  Result<void> remove(const std::filesystem::path& file) override;
  Result<void> set_mtime(const std::filesystem::path& file, double unix_s) override;
  Result<uint64_t> dir_version(const std::filesystem::path& dir) override;
};

}  // namespace headstart
