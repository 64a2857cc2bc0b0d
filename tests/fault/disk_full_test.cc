// A real disk that is full: a tmpfs of 256 KiB, mounted where this process alone sees it (case 5).
// Needs root; the same faults are injected without it in disk_fault_test.cc.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>

#include "store/chunk_file.h"
#include "store/disk_tier.h"
#include "tests/contract/sample_chunks.h"
#include "tests/support/temp_dir.h"

namespace headstart::store {
namespace {

using samples::CheckingSink;
using samples::Sample;

class FullDisk : public testing::Test {
 protected:
  void SetUp() override {
    // A mount namespace of our own: the mount ends with the process, however that ends.
    const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, "size=256k") == 0;
    if (!mounted) GTEST_SKIP() << "cannot mount a tmpfs: " << std::strerror(errno);
  }
  void TearDown() override { ::umount2(dir_.path().c_str(), MNT_DETACH); }

  test::TempDir dir_;
  PosixDisk disk_;
  SystemClock clock_;
};

TEST_F(FullDisk, FailsThePutLeavesNothingBehindAndServesWhatIsThere) {
  constexpr kv::KvShape kShape{4, 1, 64, 64};
  auto sample_of = [&](Token t) {
    return Sample{.tokens = samples::tokens_from(t * 100, 64), .shape = kShape};  // 64 KiB
  };
  auto tier = *DiskTier::open(dir_.path(), uint64_t{1} << 30, disk_, clock_);
  Token n = 0;
  Result<void> stored;
  while (n < 100 && (stored = tier->put(samples::sealed(sample_of(n)))).ok()) ++n;
  ASSERT_FALSE(stored.ok());
  EXPECT_EQ(stored.error().code, Code::kExhausted) << stored.error().message;
  EXPECT_GE(n, 2);
  EXPECT_EQ(tier->stats().n_put_failed, 1u);
  EXPECT_EQ(tier->stats().n_chunk, static_cast<uint64_t>(n));
  size_t n_file = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_TRUE(parse_chunk_file_name(entry.path().filename().string())) << entry.path();
    ++n_file;
  }
  EXPECT_EQ(n_file, static_cast<size_t>(n));
  for (Token t = 0; t <= n; ++t) {
    CheckingSink sink;
    auto got =
        tier->get(samples::id_of(sample_of(t)), samples::all_layers(kShape), sink, kNoDeadline);
    EXPECT_EQ(got.ok(), t < n);
    EXPECT_EQ(sink.n_wrong, 0u);
  }
  // Once there is room, storing works again.
  ASSERT_TRUE(tier->erase(samples::id_of(sample_of(0))).ok());
  EXPECT_TRUE(tier->put(samples::sealed(sample_of(n))).ok());
}

}  // namespace
}  // namespace headstart::store
