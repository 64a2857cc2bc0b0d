// tests/fault/faulty_disk.h: a Disk that fails, tears or dies at any chosen step.
//
// Every call is one or more steps: a durable write can stop before the file exists, when it is
// empty, half written, or written and not synced; a rename can stop before it happened or before
// its folder was synced. fail_at(n) makes the n-th step from now fail; kKill also makes every later
// one fail, as if the process were gone, until revive().
#pragma once

#include <atomic>
#include <optional>

#include "base/disk.h"

namespace headstart::faults {

enum class Fault { kError, kNoSpace, kKill };

class FaultyDisk final : public Disk {
 public:
  explicit FaultyDisk(Disk& disk) : disk_(disk) {}

  void fail_at(uint64_t n, Fault fault) {
    fault_ = fault;
    n_step_ = 0;
    fail_at_ = n;
  }
  void fail_always(Fault fault) {  // every step
    fault_ = fault;
    always_ = true;
  }
  void revive() {
    fail_at_ = kNever;
    always_ = false;
    dead_ = false;
    n_step_ = 0;
  }
  uint64_t n_step() const { return n_step_; }
  bool reached() const { return n_step_ > fail_at_; }

  Result<void> make_private_dir(const std::filesystem::path& dir) override {
    if (auto error = step()) return *error;
    return disk_.make_private_dir(dir);
  }
  Result<std::vector<FileInfo>> list(const std::filesystem::path& dir) override {
    if (auto error = step()) return *error;
    return disk_.list(dir);
  }
  Result<std::unique_ptr<ReadFile>> open(const std::filesystem::path& file) override {
    if (auto error = step()) return *error;
    HS_ASSIGN_OR_RETURN(auto opened, disk_.open(file));
    return std::unique_ptr<ReadFile>(new FaultyFile(*this, std::move(opened)));
  }
  Result<void> write_durable(const std::filesystem::path& file,
                             std::span<const std::byte> bytes) override {
    if (auto error = step()) return *error;
    for (size_t written : {size_t{0}, bytes.size() / 2, bytes.size()}) {
      if (auto error = step()) {
        HS_RETURN_IF_ERROR(disk_.write_durable(file, bytes.first(written)));
        return *error;
      }
    }
    return disk_.write_durable(file, bytes);
  }
  Result<void> rename_durable(const std::filesystem::path& from,
                              const std::filesystem::path& to) override {
    if (auto error = step()) return *error;
    if (auto error = step()) {
      HS_RETURN_IF_ERROR(disk_.rename_durable(from, to));
      return *error;
    }
    return disk_.rename_durable(from, to);
  }
  Result<void> remove(const std::filesystem::path& file) override {
    if (auto error = step()) return *error;
    return disk_.remove(file);
  }
  Result<void> set_mtime(const std::filesystem::path& file, double unix_s) override {
    if (auto error = step()) return *error;
    return disk_.set_mtime(file, unix_s);
  }
  Result<uint64_t> dir_version(const std::filesystem::path& dir) override {
    if (auto error = step()) return *error;
    return disk_.dir_version(dir);
  }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};

  class FaultyFile final : public ReadFile {
   public:
    FaultyFile(FaultyDisk& disk, std::unique_ptr<ReadFile> file)
        : disk_(disk), file_(std::move(file)) {}
    uint64_t size_bytes() const override { return file_->size_bytes(); }
    Result<void> read_at(uint64_t offset, std::span<std::byte> out) const override {
      if (auto error = disk_.step()) return *error;
      return file_->read_at(offset, out);
    }

   private:
    FaultyDisk& disk_;
    std::unique_ptr<ReadFile> file_;
  };

  std::optional<Error> step() {
    const bool now = n_step_++ == fail_at_;
    if (now && fault_ == Fault::kKill) dead_ = true;
    if (!now && !dead_ && !always_) return std::nullopt;
    return Error{fault_ == Fault::kNoSpace ? Code::kExhausted : Code::kIo, "injected fault"};
  }

  Disk& disk_;
  std::atomic<Fault> fault_ = Fault::kError;
  std::atomic<uint64_t> n_step_ = 0;
  std::atomic<uint64_t> fail_at_ = kNever;
  std::atomic<bool> always_ = false;
  std::atomic<bool> dead_ = false;
};

}  // namespace headstart::faults
