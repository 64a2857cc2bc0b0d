// store/disk_tier: what the contract of every tier does not cover: names and modes of files, the
// index after a restart, directories shared between processes, budgets of bytes on disk, ages.
// To add a case: a second tier on the same directory stands for another process or a restart.
#include "store/disk_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "store/chunk_file.h"
#include "tests/contract/sample_chunks.h"
#include "tests/support/temp_dir.h"

namespace headstart::store {
namespace {

namespace fs = std::filesystem;
using samples::CheckingSink;
using samples::Sample;
using samples::sealed;

constexpr uint64_t kBudget = 1 << 20;

class DiskTierTest : public testing::Test {
 protected:
  std::unique_ptr<DiskTier> open(uint64_t budget_bytes = kBudget) {
    auto tier = DiskTier::open(dir_, budget_bytes, disk_, clock_);
    EXPECT_TRUE(tier.ok());
    return *std::move(tier);
  }
  static Result<void> put(Tier& tier, const Sample& sample) { return tier.put(sealed(sample)); }
  static Code get(Tier& tier, const Sample& sample) {
    CheckingSink sink;
    auto got = tier.get(samples::id_of(sample), samples::all_layers(), sink, kNoDeadline);
    EXPECT_EQ(sink.n_wrong, 0u);
    return got.ok() ? kDelivered : got.error().code;
  }
  bool lists(Tier& tier, const Sample& sample) {
    clock_.advance(1);  // a tier looks at its directory at most every 0.1 s
    for (const auto& child : tier.children(sample.parent, sample.tokens)) {
      if (child.id == samples::id_of(sample)) return true;
    }
    return false;
  }
  fs::path path(const Sample& sample) const {
    return dir_ / chunk_file_name(samples::id_of(sample));
  }
  static void write(const fs::path& path, std::span<const std::byte> bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  static void write(const fs::path& path, const std::string& text) {
    write(path, std::as_bytes(std::span(text)));
  }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      out.insert(entry.path().filename().string());
    }
    return out;
  }
  uint64_t bytes_on_disk() const {
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(dir_)) bytes += entry.file_size();
    return bytes;
  }
  static uint64_t size_of(const Sample& sample) { return samples::build(sample).size_bytes(); }

  static constexpr Code kDelivered = Code::kCancelled;  // stands for success: no tier returns it

  test::TempDir temp_;
  fs::path dir_ = temp_ / "store" / "kv";
  PosixDisk disk_;
  FakeClock clock_{SystemClock().unix_s()};
};

TEST_F(DiskTierTest, KeepsAPrivateFileForEachChunk) {
  auto tier = open();
  ASSERT_TRUE(put(*tier, {}).ok());
  EXPECT_EQ(names(), std::set<std::string>{samples::id_of({}).to_string() + ".hskv"});
  struct stat st;
  ASSERT_EQ(::stat(dir_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat(path({}).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

// Case 7: a restart with a full tier.
TEST_F(DiskTierTest, RebuildsItsIndexAfterARestart) {
  std::vector<Sample> chain(1);
  while (chain.size() < 12) chain.push_back(samples::after(chain.back()));
  const uint64_t budget = 12 * size_of({});
  {
    auto tier = open(budget);
    for (const Sample& sample : chain) ASSERT_TRUE(put(*tier, sample).ok());
  }
  auto tier = open(budget);
  EXPECT_EQ(tier->stats().n_chunk, 12u);
  EXPECT_EQ(tier->stats().size_bytes, budget);
  for (const Sample& sample : chain) {
    EXPECT_TRUE(lists(*tier, sample));
    EXPECT_EQ(get(*tier, sample), kDelivered);
  }
  EXPECT_EQ(tier->stats().n_evicted, 0u);
}

TEST_F(DiskTierTest, ShrinksToASmallerBudgetAtARestart) {
  {
    auto tier = open();
    for (Token t = 0; t < 10; ++t) ASSERT_TRUE(put(*tier, {.tokens = {t}}).ok());
  }
  auto tier = open(3 * size_of({.tokens = {0}}));
  EXPECT_EQ(tier->stats().n_chunk, 3u);
  EXPECT_LE(bytes_on_disk(), tier->stats().budget_bytes);
}

TEST_F(DiskTierTest, RemembersAcrossARestartWhatWasUsedLast) {
  auto sample_of = [](Token t) { return Sample{.tokens = {t}}; };
  {
    auto tier = open();
    for (Token t = 0; t < 4; ++t) {
      ASSERT_TRUE(put(*tier, sample_of(t)).ok());
      ASSERT_TRUE(disk_.set_mtime(path(sample_of(t)), clock_.unix_s() + t).ok());
    }
    clock_.advance(3600);
    EXPECT_EQ(get(*tier, sample_of(0)), kDelivered);
  }
  auto tier = open(3 * size_of(sample_of(0)));
  EXPECT_EQ(get(*tier, sample_of(0)), kDelivered);
  EXPECT_EQ(get(*tier, sample_of(1)), Code::kNotFound);
}

TEST_F(DiskTierTest, WritesTheTimeOfUseAtMostOnceAMinute) {
  auto tier = open();
  ASSERT_TRUE(put(*tier, {}).ok());
  auto mtime = [&] { return disk_.list(dir_)->at(0).mtime_s; };
  const double written_s = mtime();
  clock_.advance(30);
  EXPECT_EQ(get(*tier, {}), kDelivered);
  EXPECT_EQ(mtime(), written_s);
  clock_.advance(40);
  EXPECT_EQ(get(*tier, {}), kDelivered);
  EXPECT_NEAR(mtime(), clock_.unix_s(), 1e-3);
  const double touched_s = mtime();
  clock_.advance(30);
  tier->note_use(samples::id_of({}));
  EXPECT_EQ(mtime(), touched_s);
  clock_.advance(40);
  tier->note_use(samples::id_of({}));
  EXPECT_NEAR(mtime(), clock_.unix_s(), 1e-3);
}

TEST_F(DiskTierTest, LeavesFilesAloneThatAreNotItsOwn) {
  fs::create_directories(dir_);
  const std::set<std::string> foreign = {"notes.txt", "x.hskv", ".tmp-", "model.gguf",
                                         samples::id_of({}).to_string() + ".hskv.bak"};
  for (const std::string& name : foreign) write(dir_ / name, "mine");
  fs::create_directory(dir_ / "folder");
  auto tier = open();
  EXPECT_EQ(tier->stats().n_corrupt, 0u);
  ASSERT_TRUE(put(*tier, {}).ok());
  ASSERT_TRUE(tier->clear().ok());
  auto left = foreign;
  left.insert("folder");
  EXPECT_EQ(names(), left);
}

TEST_F(DiskTierTest, RemovesAndCountsFilesThatOnlyCarryAChunksName) {
  fs::create_directories(dir_);
  Sample empty{.tokens = {1}}, garbage{.tokens = {2}}, other{.tokens = {3}}, good{.tokens = {4}};
  write(path(empty), "");
  write(path(garbage), std::string(5000, 'x'));
  write(path(other), sealed(good)->bytes());  // a whole chunk under another's name
  write(path(good), sealed(good)->bytes());
  auto tier = open();
  EXPECT_EQ(tier->stats().n_corrupt, 3u);
  EXPECT_EQ(tier->stats().n_chunk, 1u);
  EXPECT_EQ(names(), std::set<std::string>{path(good).filename().string()});
  EXPECT_EQ(get(*tier, good), kDelivered);
}

TEST_F(DiskTierTest, KeepsButNeverServesChunksOfANewerVersionAndEvictsThemFirst) {
  fs::create_directories(dir_);
  Sample newer{.tokens = {1}};
  auto chunk = sealed(newer);
  std::vector<std::byte> bytes(chunk->bytes().begin(), chunk->bytes().end());
  bytes[28] = std::byte{1};  // a codec of the future
  const size_t covered = chunk->header().header_bytes - 8;
  const uint64_t sum = checksum(std::span(bytes).first(covered));
  std::memcpy(bytes.data() + covered, &sum, sizeof(sum));
  write(path(newer), bytes);

  const uint64_t size = bytes.size();
  auto tier = open(3 * size);
  EXPECT_EQ(tier->stats().n_corrupt, 0u);
  EXPECT_EQ(tier->stats().size_bytes, size);
  EXPECT_FALSE(lists(*tier, newer));
  EXPECT_EQ(get(*tier, newer), Code::kNotFound);
  EXPECT_TRUE(fs::exists(path(newer)));
  for (Token t = 2; t < 5; ++t) ASSERT_TRUE(put(*tier, {.tokens = {t}}).ok());
  EXPECT_FALSE(fs::exists(path(newer)));
  EXPECT_EQ(tier->stats().n_chunk, 3u);
}

TEST_F(DiskTierTest, SweepsTemporaryFilesOfTheDeadOnly) {
  fs::create_directories(dir_);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_GT(child, 0);
  int status;
  ASSERT_EQ(::waitpid(child, &status, 0), child);  // its id is free now
  const auto dead = dir_ / temp_file_name(child, 0), live = dir_ / temp_file_name(::getppid(), 0),
             own = dir_ / temp_file_name(::getpid(), 1'000'000);
  for (const auto& path : {dead, live, own}) write(path, "half");
  auto tier = open();
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(live));
  EXPECT_TRUE(fs::exists(own));
  // Long after any write has ended, the process of that id is another one.
  clock_.advance(2 * 3600);
  EXPECT_FALSE(lists(*tier, {}));
  EXPECT_FALSE(fs::exists(live));
  EXPECT_FALSE(fs::exists(own));
}

TEST_F(DiskTierTest, FindsWhatAnotherProcessStores) {
  auto mine = open(), theirs = open();
  EXPECT_FALSE(lists(*mine, {}));
  ASSERT_TRUE(put(*theirs, {}).ok());
  EXPECT_TRUE(lists(*mine, {}));
  EXPECT_EQ(get(*mine, {}), kDelivered);
  EXPECT_EQ(mine->stats().n_chunk, 1u);
}

TEST_F(DiskTierTest, MissesWhatAnotherProcessRemoved) {
  auto mine = open(), theirs = open();
  Sample other{.tokens = {1}};
  ASSERT_TRUE(put(*mine, {}).ok());
  ASSERT_TRUE(put(*mine, other).ok());
  EXPECT_TRUE(lists(*theirs, {}));
  ASSERT_TRUE(theirs->erase(samples::id_of({})).ok());
  EXPECT_EQ(get(*mine, {}), Code::kNotFound) << "before it looked at the directory";
  EXPECT_EQ(mine->stats().n_miss, 1u);
  EXPECT_EQ(mine->stats().n_corrupt, 0u);
  ASSERT_TRUE(theirs->clear().ok());
  EXPECT_FALSE(lists(*mine, other)) << "after it did";
  EXPECT_EQ(mine->stats().size_bytes, 0u);
}

TEST_F(DiskTierTest, FollowsAChunkThatAnotherProcessReplacedByAStricterOne) {
  auto mine = open();
  ASSERT_TRUE(put(*mine, {.n_strict = 2}).ok());
  write(path({}), sealed({.n_strict = 7})->bytes());
  CheckingSink sink;
  ASSERT_TRUE(mine->get(samples::id_of({}), samples::all_layers(), sink, kNoDeadline).ok());
  EXPECT_EQ(sink.header().meta.n_strict, 7u);
  EXPECT_EQ(mine->children(Sample{}.parent, Sample{}.tokens).at(0).n_strict, 7u);
  EXPECT_EQ(mine->stats().n_chunk, 1u);
}

TEST_F(DiskTierTest, HoldsItsBudgetForWhatAllProcessesWrote) {
  const uint64_t budget = 6 * size_of({.tokens = {0}});
  auto mine = open(budget), theirs = open(budget);
  for (Token t = 0; t < 30; ++t) {
    clock_.advance(1);
    ASSERT_TRUE(put(t % 2 == 0 ? *mine : *theirs, {.tokens = {t}}).ok());
    EXPECT_LE(bytes_on_disk(), budget);
  }
  EXPECT_EQ(names().size(), 6u);
}

TEST_F(DiskTierTest, CountsTheUsesOfOtherProcesses) {
  auto sample_of = [](Token t) { return Sample{.tokens = {t}}; };
  const uint64_t budget = 4 * size_of(sample_of(0));
  auto mine = open(budget), theirs = open(budget);
  for (Token t = 0; t < 4; ++t) ASSERT_TRUE(put(*mine, sample_of(t)).ok());
  EXPECT_TRUE(lists(*theirs, sample_of(0)));
  clock_.advance(120);
  EXPECT_EQ(get(*theirs, sample_of(0)), kDelivered);
  ASSERT_TRUE(put(*mine, sample_of(10)).ok());
  EXPECT_EQ(get(*mine, sample_of(0)), kDelivered) << "the oldest, but just used";
}

TEST_F(DiskTierTest, FailsToOpenWhereItCannotWork) {
  fs::create_directories(dir_.parent_path());
  write(dir_, "a file, not a folder");
  EXPECT_FALSE(DiskTier::open(dir_, kBudget, disk_, clock_).ok());
}

}  // namespace
}  // namespace headstart::store
