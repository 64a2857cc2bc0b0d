#include "store/disk_tier.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "store/chunk_file.h"

namespace headstart::store {
namespace {

// A directory's version is its modification time, which steps with the kernel's tick: a listing
// made this soon after a change may lack another change with the same version.
constexpr double kVersionSettles_s = 0.05;
constexpr double kLookEvery_s = 0.1;
constexpr double kTouchEvery_s = 60;
// No write takes this long: the process id in the name belongs to someone else by now.
constexpr double kTempAgeMax_s = 3600;

bool process_lives(int64_t pid) {
  if (pid <= 0 || pid > std::numeric_limits<pid_t>::max()) return false;
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
}

// Unique in the process, as two tiers may share a directory.
uint64_t next_temp_number() {
  static std::atomic<uint64_t> counter{0};
  return counter.fetch_add(1);
}

bool is_damage(const Error& error) {
  return error.code == Code::kCorrupt || error.code == Code::kIo;
}

Error not_here() { return Error{Code::kNotFound, "the chunk is not on disk"}; }
Error another_chunk() { return Error{Code::kCorrupt, "another chunk's contents"}; }

}  // namespace

DiskTier::DiskTier(std::filesystem::path dir, uint64_t budget_bytes, Disk& disk, const Clock& clock)
    : dir_(std::move(dir)),
      budget_bytes_(budget_bytes),
      disk_(disk),
      clock_(clock),
      index_(budget_bytes) {}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const std::filesystem::path& dir,
                                                 uint64_t budget_bytes, Disk& disk,
                                                 const Clock& clock) {
  HS_RETURN_IF_ERROR(disk.make_private_dir(dir));
  std::unique_ptr<DiskTier> tier(new DiskTier(dir, budget_bytes, disk, clock));
  std::lock_guard writing(tier->writing_);
  HS_RETURN_IF_ERROR(tier->scan());
  return tier;
}

std::filesystem::path DiskTier::path_of(const kv::ChunkId& id) const {
  return dir_ / chunk_file_name(id);
}

// --- Following the directory -------------------------------------------------------------------

bool DiskTier::look_is_due() const { return clock_.now_s() - looked_s_.load() >= kLookEvery_s; }

void DiskTier::look_for_changes() {
  if (!look_is_due()) return;
  std::unique_lock writing(writing_, std::try_to_lock);
  if (!writing.owns_lock()) return;  // a write looks too
  if (auto looked = scan_if_changed(); !looked.ok()) spdlog::warn("{}", looked.error().message);
}

Result<void> DiskTier::scan_if_changed() {
  if (!look_is_due()) return {};
  looked_s_ = clock_.now_s();
  HS_ASSIGN_OR_RETURN(const uint64_t version, disk_.dir_version(dir_));
  if (version == version_seen_) return {};
  return scan();
}

Result<void> DiskTier::scan() {
  HS_ASSIGN_OR_RETURN(const uint64_t version, disk_.dir_version(dir_));
  HS_ASSIGN_OR_RETURN(std::vector<FileInfo> files, disk_.list(dir_));
  const double age_s = clock_.unix_s() - 1e-9 * static_cast<double>(version);
  version_seen_ = age_s > kVersionSettles_s ? version : 0;
  follow_known(files);
  adopt_new(std::move(files));
  std::vector<kv::ChunkId> evicted;
  {
    std::lock_guard lock(mutex_);
    evicted = index_.shrink();
    counts_.n_evicted += evicted.size();
  }
  remove_files(evicted);
  return {};
}

// Drops what vanished and counts the uses of other processes.
void DiskTier::follow_known(const std::vector<FileInfo>& files) {
  std::unordered_map<std::string_view, double> mtime_of;
  for (const FileInfo& file : files) mtime_of[file.name] = file.mtime_s;
  std::lock_guard lock(mutex_);
  for (auto it = files_.begin(); it != files_.end();) {
    const auto listed = mtime_of.find(it->first);
    if (listed == mtime_of.end()) {
      index_.erase(it->second.id);
      it = files_.erase(it);
      continue;
    }
    if (listed->second > it->second.mtime_s + 1) {
      it->second.mtime_s = listed->second;
      index_.use(it->second.id);
    }
    ++it;
  }
}

void DiskTier::adopt_new(std::vector<FileInfo> files) {
  {
    std::lock_guard lock(mutex_);
    std::erase_if(files, [this](const FileInfo& file) { return files_.contains(file.name); });
  }
  // Oldest use first: the order of arrival is what a restart knows of each chunk's age.
  std::sort(files.begin(), files.end(),
            [](const FileInfo& a, const FileInfo& b) { return a.mtime_s < b.mtime_s; });
  for (const FileInfo& file : files) {
    if (auto pid = parse_temp_file_name(file.name)) sweep_temp(file, *pid);
    if (!parse_chunk_file_name(file.name) || skipped_.contains(file.name)) continue;
    auto summary = inspect(file);
    if (!summary) continue;
    std::lock_guard lock(mutex_);
    files_[file.name] = {summary->id, file.mtime_s};
    index_.adopt(*std::move(summary));
  }
}

// What the file holds; nothing where it vanished or was damaged and therefore removed.
std::optional<ChunkSummary> DiskTier::inspect(const FileInfo& file) {
  auto opened = disk_.open(dir_ / file.name);
  if (!opened.ok()) {
    if (opened.error().code == Code::kNotFound) return std::nullopt;
    spdlog::warn("{}; left alone", opened.error().message);
    skipped_.insert(file.name);
    return std::nullopt;
  }
  auto header = read_header(**opened);
  if (header.ok() && chunk_file_name(header->meta.id()) == file.name) {
    return summary_of(header->meta, header->file_bytes);
  }
  const Error error = header.ok() ? another_chunk() : header.error();
  if (!is_damage(error)) {
    // A newer version's: it takes room and can be evicted, first of all, but is never matched.
    ChunkSummary opaque;
    opaque.id = *parse_chunk_file_name(file.name);
    opaque.tokens = std::make_shared<const std::vector<Token>>();
    opaque.size_bytes = file.size_bytes;
    return opaque;
  }
  spdlog::warn("{}: {}; removed", file.name, error.message);
  if (auto removed = disk_.remove(dir_ / file.name); !removed.ok()) skipped_.insert(file.name);
  std::lock_guard lock(mutex_);
  ++counts_.n_corrupt;
  return std::nullopt;
}

void DiskTier::sweep_temp(const FileInfo& file, int64_t pid) {
  if (process_lives(pid) && clock_.unix_s() - file.mtime_s < kTempAgeMax_s) return;
  spdlog::info("{}: left by a process that died; removed", file.name);
  if (auto removed = disk_.remove(dir_ / file.name); !removed.ok()) {
    spdlog::warn("{}", removed.error().message);
  }
}

// --- Reading -----------------------------------------------------------------------------------

std::vector<ChunkSummary> DiskTier::children(const Digest& parent_key,
                                             std::span<const Token> tokens) {
  look_for_changes();
  std::lock_guard lock(mutex_);
  return index_.children(parent_key, tokens);
}

Result<std::unique_ptr<ReadFile>> DiskTier::open_file(const kv::ChunkId& id) {
  {
    std::lock_guard lock(mutex_);
    if (index_.find(id) == nullptr) return not_here();
  }
  auto file = disk_.open(path_of(id));
  if (!file.ok() && file.error().code == Code::kNotFound) {
    forget(id);  // another process evicted it
    return not_here();
  }
  return file;
}

Result<void> DiskTier::get(const kv::ChunkId& id, CellRange want, CellSink& sink,
                           Deadline deadline) {
  auto file = open_file(id);
  auto header = file.ok() ? read_header(**file) : file.error();
  if (header.ok() && header->meta.id() != id) header = another_chunk();
  if (!header.ok()) {
    const Error error = file.ok() ? refuse(id, header.error()) : file.error();
    std::lock_guard lock(mutex_);
    counts_.n_miss += error.code == Code::kNotFound;
    return error;
  }
  follow_header(*header);
  HS_RETURN_IF_ERROR(sink.begin(*header));
  auto read = read_cells(**file, *header, want, sink, clock_, deadline);
  if (!read.ok() && is_damage(read.error())) return refuse(id, read.error());
  if (read.ok()) touch(id, /*hit=*/true);
  return read;
}

Result<kv::ChunkPtr> DiskTier::read(const kv::ChunkId& id) {
  HS_ASSIGN_OR_RETURN(auto file, open_file(id));
  auto chunk = read_chunk(*file);
  if (!chunk.ok()) return refuse(id, chunk.error());
  if ((*chunk)->header().meta.id() != id) {
    return refuse(id, another_chunk());
  }
  return chunk;
}

// The file is not what the index says: dropped where it is damaged, a miss where it is a newer
// version's.
Error DiskTier::refuse(const kv::ChunkId& id, const Error& error) {
  const std::string name = chunk_file_name(id);
  if (!is_damage(error)) return not_here();
  spdlog::warn("{}: {}; removed", name, error.message);
  forget(id);
  auto removed = disk_.remove(dir_ / name);
  if (!removed.ok() && removed.error().code != Code::kNotFound) {
    spdlog::warn("{}", removed.error().message);
  }
  std::lock_guard lock(mutex_);
  ++counts_.n_corrupt;
  return Error{Code::kCorrupt, name + ": " + error.message};
}

// Another process may have replaced the file with one of the same tokens that has more of them
// strict; the index follows.
void DiskTier::follow_header(const kv::ChunkHeader& header) {
  std::lock_guard lock(mutex_);
  const ChunkSummary* known = index_.find(header.meta.id());
  if (known == nullptr) return;
  if (known->n_strict == header.meta.n_strict && known->flags == header.meta.flags) return;
  index_.adopt(summary_of(header.meta, header.file_bytes));
}

void DiskTier::forget(const kv::ChunkId& id) {
  std::lock_guard lock(mutex_);
  index_.erase(id);
  files_.erase(chunk_file_name(id));
}

void DiskTier::note_use(const kv::ChunkId& id) { touch(id, /*hit=*/false); }

void DiskTier::touch(const kv::ChunkId& id, bool hit) {
  const double now_s = clock_.unix_s();
  {
    std::lock_guard lock(mutex_);
    counts_.n_hit += hit;
    index_.use(id);
    auto file = files_.find(chunk_file_name(id));
    if (file == files_.end() || now_s - file->second.mtime_s < kTouchEvery_s) return;
    file->second.mtime_s = now_s;
  }
  auto touched = disk_.set_mtime(path_of(id), now_s);
  if (!touched.ok() && touched.error().code != Code::kNotFound) {
    spdlog::warn("{}", touched.error().message);
  }
}

// --- Writing -----------------------------------------------------------------------------------

Result<void> DiskTier::put(kv::ChunkPtr chunk) {
  ChunkSummary summary = summary_of(chunk->header().meta, chunk->header().file_bytes);
  std::lock_guard writing(writing_);
  if (summary.size_bytes > budget_bytes_) {
    std::lock_guard lock(mutex_);
    ++counts_.n_put_failed;
    return Error{Code::kExhausted, "a chunk of " + std::to_string(summary.size_bytes) +
                                       " bytes is larger than the disk budget"};
  }
  if (auto looked = scan_if_changed(); !looked.ok()) spdlog::warn("{}", looked.error().message);
  ChunkIndex::Verdict verdict;
  ChunkIndex::Room room;
  {
    std::lock_guard lock(mutex_);
    verdict = index_.judge(summary);
    if (!verdict.keep) {
      index_.use(summary.id);  // computed again, so it was wanted
      return {};
    }
    room = index_.reserve(summary, verdict.replaced);
    counts_.n_evicted += room.evicted.size() + !room.keep;
  }
  remove_files(room.evicted);
  if (!room.keep) return {};
  return put_reserved(*chunk, std::move(summary), verdict.replaced);
}

Result<void> DiskTier::put_reserved(const kv::EncodedChunk& chunk, ChunkSummary summary,
                                    const std::vector<kv::ChunkId>& replaced) {
  auto written = write(chunk);
  if (!written.ok()) {
    // One line for a disk that is full, not one for each chunk that does not fit.
    const auto level = put_failing_ ? spdlog::level::debug : spdlog::level::warn;
    spdlog::log(level, "{}; the chunk is not stored", written.error().message);
    put_failing_ = true;
    std::lock_guard lock(mutex_);
    index_.cancel(summary.id);
    ++counts_.n_put_failed;
    return written.error();
  }
  put_failing_ = false;
  std::vector<kv::ChunkId> stale;
  {
    std::lock_guard lock(mutex_);
    for (const kv::ChunkId& id : replaced) {
      if (id != summary.id) stale.push_back(id);
    }
    files_[chunk_file_name(summary.id)] = {summary.id, clock_.unix_s()};
    index_.commit(std::move(summary), replaced);
    ++counts_.n_put;
  }
  remove_files(stale);
  return {};
}

Result<void> DiskTier::write(const kv::EncodedChunk& chunk) {
  const auto temp = dir_ / temp_file_name(::getpid(), next_temp_number());
  auto written = disk_.write_durable(temp, chunk.bytes());
  if (written.ok()) written = disk_.rename_durable(temp, path_of(chunk.header().meta.id()));
  if (!written.ok()) {
    auto removed = disk_.remove(temp);  // not there after a rename whose sync failed
    if (!removed.ok() && removed.error().code != Code::kNotFound) {
      spdlog::warn("{}", removed.error().message);
    }
  }
  return written;
}

void DiskTier::remove_files(std::span<const kv::ChunkId> ids) {
  for (const kv::ChunkId& id : ids) {
    const std::string name = chunk_file_name(id);
    {
      std::lock_guard lock(mutex_);
      files_.erase(name);
    }
    auto removed = disk_.remove(dir_ / name);
    if (!removed.ok() && removed.error().code != Code::kNotFound) {
      spdlog::warn("{}", removed.error().message);
    }
  }
}

Result<void> DiskTier::erase(const kv::ChunkId& id) {
  std::lock_guard writing(writing_);
  forget(id);
  auto removed = disk_.remove(path_of(id));
  if (!removed.ok() && removed.error().code != Code::kNotFound) return removed;
  return {};
}

Result<void> DiskTier::clear() {
  std::lock_guard writing(writing_);
  HS_ASSIGN_OR_RETURN(const std::vector<FileInfo> files, disk_.list(dir_));
  {
    std::lock_guard lock(mutex_);
    index_.clear();
    files_.clear();
  }
  skipped_.clear();
  version_seen_ = 0;
  Result<void> result;
  for (const FileInfo& file : files) {
    if (auto pid = parse_temp_file_name(file.name)) sweep_temp(file, *pid);
    if (!parse_chunk_file_name(file.name)) continue;
    auto removed = disk_.remove(dir_ / file.name);
    if (!removed.ok() && removed.error().code != Code::kNotFound) result = removed;
  }
  return result;
}

Result<VerifyReport> DiskTier::verify() {
  std::vector<kv::ChunkId> ids;
  {
    std::lock_guard lock(mutex_);
    ids = index_.ids();
  }
  VerifyReport report;
  for (const kv::ChunkId& id : ids) {
    auto chunk = read(id);
    if (chunk.ok()) {
      ++report.n_ok;
    } else if (chunk.error().code == Code::kCorrupt) {
      ++report.n_corrupt;
    } else if (chunk.error().code != Code::kNotFound) {
      return chunk.error();
    }
  }
  return report;
}

TierStats DiskTier::stats() const {
  std::lock_guard lock(mutex_);
  TierStats stats = counts_;
  stats.n_chunk = index_.n_chunk();
  stats.size_bytes = index_.size_bytes();
  stats.budget_bytes = budget_bytes_;
  return stats;
}

}  // namespace headstart::store
