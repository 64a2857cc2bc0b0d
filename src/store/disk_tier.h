// store/disk_tier.h: one file a chunk in one directory, within a byte budget.
//
// A chunk is written beside its place, synced and renamed, so a file under a chunk's name is whole
// or damaged by something else; either way every byte that is used was verified. The index lives in
// memory and is rebuilt from the files' headers. Processes may share a directory: a file that
// vanished is a miss, files that appeared are found when the directory changes, and the budget
// holds for what all of them wrote. A file's modification time is when it was last used.
//
// Names that Headstart does not give to files are left alone.
//
//   threads  any. put(), erase(), clear() and scanning hold writing_, which lookups never wait for;
//            the lock of the index is never held during I/O
//   source   docs/formats/chunk.md
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "base/disk.h"
#include "store/chunk_index.h"
#include "store/tier.h"

namespace headstart::store {

class DiskTier final : public Tier {
 public:
  // Creates the directory with mode 0700 if it is new, sweeps it and reads the header of every
  // chunk. `disk` and `clock` outlive the tier. Errors: kIo, kNotFound, kExhausted.
  static Result<std::unique_ptr<DiskTier>> open(const std::filesystem::path& dir,
                                                uint64_t budget_bytes, Disk& disk,
                                                const Clock& clock);

  std::string_view name() const override { return "disk"; }
  std::vector<ChunkSummary> children(const Digest& parent_key,
                                     std::span<const Token> tokens) override;
  Result<void> get(const kv::ChunkId& id, CellRange want, CellSink& sink,
                   Deadline deadline) override;
  Result<kv::ChunkPtr> read(const kv::ChunkId& id) override;
  void note_use(const kv::ChunkId& id) override;
  Result<void> put(kv::ChunkPtr chunk) override;
  Result<void> erase(const kv::ChunkId& id) override;
  Result<void> clear() override;
  Result<VerifyReport> verify() override;
  TierStats stats() const override;

 private:
  struct File {
    kv::ChunkId id;
    double mtime_s = 0;  // Unix time of the last use that the file shows
  };

  DiskTier(std::filesystem::path dir, uint64_t budget_bytes, Disk& disk, const Clock& clock);
  std::filesystem::path path_of(const kv::ChunkId& id) const;

  // With writing_ held.
  Result<void> scan();
  Result<void> scan_if_changed();
  void follow_known(const std::vector<FileInfo>& files);
  void adopt_new(std::vector<FileInfo> files);
  std::optional<ChunkSummary> inspect(const FileInfo& file);
  void sweep_temp(const FileInfo& file, int64_t pid);
  Result<void> put_reserved(const kv::EncodedChunk& chunk, ChunkSummary summary,
                            const std::vector<kv::ChunkId>& replaced);
  Result<void> write(const kv::EncodedChunk& chunk);
  void remove_files(std::span<const kv::ChunkId> ids);

  bool look_is_due() const;
  void look_for_changes();
  Result<std::unique_ptr<ReadFile>> open_file(const kv::ChunkId& id);
  Error refuse(const kv::ChunkId& id, const Error& error);
  void follow_header(const kv::ChunkHeader& header);
  void forget(const kv::ChunkId& id);
  void touch(const kv::ChunkId& id, bool hit);

  const std::filesystem::path dir_;
  const uint64_t budget_bytes_;
  Disk& disk_;
  const Clock& clock_;

  std::mutex writing_;
  uint64_t version_seen_ = 0;                // of the directory; 0: unknown
  std::unordered_set<std::string> skipped_;  // files that could be neither read nor removed
  bool put_failing_ = false;

  std::atomic<double> looked_s_ = -1e18;  // when the directory was last looked at, steady clock

  mutable std::mutex mutex_;
  ChunkIndex index_;
  std::unordered_map<std::string, File> files_;  // by name, those in index_
  TierStats counts_;                             // n_chunk and size_bytes come from index_
};

}  // namespace headstart::store
