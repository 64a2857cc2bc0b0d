// A process that stores chunks in a loop is killed with SIGKILL at random moments (case 4). After a
// restart every entry is whole or absent, what put() had confirmed is there, and nothing leaks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "store/chunk_file.h"
#include "store/disk_tier.h"
#include "store/store.h"
#include "tests/contract/sample_chunks.h"
#include "tests/support/temp_dir.h"

namespace headstart::store {
namespace {

using samples::CheckingSink;
using samples::Sample;

constexpr uint64_t kBudget = 64 << 20;
// Large enough that a write takes a while: 1 MiB.
constexpr kv::KvShape kBig{16, 2, 128, 128};
Sample sample_of(int i) { return {.tokens = samples::tokens_from(i * 64, 64), .shape = kBig}; }

// Stores chunks from `first` on and reports each that put() confirmed, until it is killed.
[[noreturn]] void store_for_ever(const std::filesystem::path& dir, int first, int confirmed) {
  PosixDisk disk;
  SystemClock clock;
  auto tier = DiskTier::open(dir, kBudget, disk, clock);
  if (!tier.ok()) ::_exit(1);
  for (int i = first;; ++i) {
    if (!(*tier)->put(samples::sealed(sample_of(i))).ok()) ::_exit(2);
    if (::write(confirmed, &i, sizeof(i)) != sizeof(i)) ::_exit(3);
  }
}

TEST(Kill, AtAnyMomentOfAWriteLeavesEveryEntryWholeOrAbsent) {
  test::TempDir dir;
  PosixDisk disk;
  SystemClock clock;
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  int next = 0;
  size_t n_swept = 0;
  for (int round = 0; round < 12; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) store_for_ever(dir.path(), next, pipe[1]);
    ASSERT_GT(child, 0);
    ::close(pipe[1]);
    int last = -1, i;
    ASSERT_EQ(::read(pipe[0], &i, sizeof(i)), static_cast<ssize_t>(sizeof(i)));  // it has begun
    last = i;
    ::usleep(static_cast<useconds_t>(random() % 30'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << status;
    while (::read(pipe[0], &i, sizeof(i)) == sizeof(i)) last = i;
    ::close(pipe[0]);
    for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
      n_swept += parse_temp_file_name(entry.path().filename().string()).has_value();
    }

    auto tier = *DiskTier::open(dir.path(), kBudget, disk, clock);
    auto report = tier->verify();
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->n_corrupt, 0u);
    EXPECT_EQ(tier->stats().n_corrupt, 0u);
    for (int confirmed = next; confirmed <= last; ++confirmed) {
      CheckingSink sink;
      EXPECT_TRUE(tier->get(samples::id_of(sample_of(confirmed)), samples::all_layers(kBig), sink,
                            kNoDeadline)
                      .ok())
          << "chunk " << confirmed;
      EXPECT_EQ(sink.n_wrong, 0u);
    }
    for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
      EXPECT_TRUE(parse_chunk_file_name(entry.path().filename().string()).has_value())
          << entry.path() << " was left";
    }
    next = last + 2;  // one more may have been renamed before it was confirmed
    if (next > 40) {
      ASSERT_TRUE(tier->clear().ok());
    }
  }
  RecordProperty("swept", static_cast<int>(n_swept));
}

// Case 1: stored by one process, found by the next: all tokens but the last one of the prompt.
TEST(Restart, FindsWhatTheProcessBeforeStored) {
  test::TempDir dir;
  std::vector<Sample> chain = {{.tokens = samples::tokens_from(0, 40)}};
  chain.push_back(samples::after(chain[0]));
  chain.push_back(samples::after(chain[1]));
  chain[2].flags = kv::kFlagTail;
  std::vector<Token> prompt;
  for (const Sample& sample : chain) {
    prompt.insert(prompt.end(), sample.tokens.begin(), sample.tokens.end());
  }
  auto open_store = [&dir](Disk& disk, const Clock& clock) {
    std::vector<std::unique_ptr<Tier>> tiers;
    tiers.push_back(*DiskTier::open(dir.path(), kBudget, disk, clock));
    return std::make_unique<Store>(std::move(tiers), uint64_t{1} << 20);
  };
  const pid_t child = ::fork();
  if (child == 0) {
    PosixDisk disk;
    SystemClock clock;
    auto store = open_store(disk, clock);
    for (const Sample& sample : chain) store->put(samples::build(sample));
    store = nullptr;  // its destructor stores what waits
    ::_exit(0);
  }
  int status;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);

  PosixDisk disk;
  SystemClock clock;
  auto store = open_store(disk, clock);
  Match match = store->match({.fingerprint = samples::kModel,
                              .numeric = samples::kNumeric,
                              .shape = samples::kShape,
                              .salt = "",
                              .tokens = std::span(prompt).first(prompt.size() - 1),
                              .mode = ReuseMode::kStrict});
  EXPECT_EQ(match.n_token, prompt.size() - 1);
  for (const MatchedChunk& matched : match.chunks) {
    CheckingSink sink;
    EXPECT_TRUE(store->load(matched, samples::all_layers(), sink, kNoDeadline).ok());
    EXPECT_EQ(sink.n_wrong, 0u);
  }
}

}  // namespace
}  // namespace headstart::store
