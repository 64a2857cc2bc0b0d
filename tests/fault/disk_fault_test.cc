// Every I/O step of a put and of a get fails once, with each kind of fault: the new chunk is whole
// or absent, those stored before are unharmed, nothing half-written stays.
// To add a case: a step of its own in FaultyDisk; the loops below find how many there are.
#include <gtest/gtest.h>

#include "store/chunk_file.h"
#include "store/disk_tier.h"
#include "store/store.h"
#include "tests/contract/sample_chunks.h"
#include "tests/fault/faulty_disk.h"
#include "tests/support/temp_dir.h"

namespace headstart::store {
namespace {

namespace fs = std::filesystem;
using faults::Fault;
using faults::FaultyDisk;
using samples::CheckingSink;
using samples::Sample;

constexpr uint64_t kBudget = 1 << 20;

struct World {
  test::TempDir dir;
  PosixDisk posix;
  FaultyDisk disk{posix};
  FakeClock clock{SystemClock().unix_s()};

  std::unique_ptr<DiskTier> open(uint64_t budget_bytes = kBudget) {
    return *DiskTier::open(dir.path(), budget_bytes, disk, clock);
  }
  size_t n_temp() const {
    size_t n = 0;
    for (const auto& entry : fs::directory_iterator(dir.path())) {
      n += parse_temp_file_name(entry.path().filename().string()).has_value();
    }
    return n;
  }
};

// Whether the tier delivers the chunk, which it must do rightly or not at all.
bool holds(Tier& tier, const Sample& sample) {
  CheckingSink sink;
  auto got = tier.get(samples::id_of(sample), samples::all_layers(), sink, kNoDeadline);
  EXPECT_EQ(sink.n_wrong, 0u);
  if (!got.ok()) {
    EXPECT_EQ(got.error().code, Code::kNotFound) << got.error().message;
  }
  if (got.ok()) {
    EXPECT_EQ(sink.n_cell, 4u);
  }
  return got.ok();
}

class PutFaults : public testing::TestWithParam<Fault> {};

TEST_P(PutFaults, LeaveEveryChunkWholeOrAbsent) {
  const Sample before{.tokens = {1}}, tail{.tokens = {2, 3}, .flags = kv::kFlagTail};
  const Sample added{.tokens = {2, 3, 4}};  // replaces the tail
  bool reached = true;
  for (uint64_t n = 0; reached; ++n) {
    World world;
    auto tier = world.open();
    ASSERT_TRUE(tier->put(samples::sealed(before)).ok());
    ASSERT_TRUE(tier->put(samples::sealed(tail)).ok());
    world.disk.fail_at(n, GetParam());
    auto stored = tier->put(samples::sealed(added));
    reached = world.disk.reached();
    world.disk.revive();

    SCOPED_TRACE("step " + std::to_string(n));
    EXPECT_TRUE(holds(*tier, before));
    EXPECT_EQ(holds(*tier, added), stored.ok());
    EXPECT_TRUE(stored.ok() || holds(*tier, tail)) << "replaced by nothing";
    if (GetParam() != Fault::kKill) {
      EXPECT_EQ(world.n_temp(), 0u);
    }

    // A restart, after long enough for a dead writer's file to be known as such.
    tier = nullptr;
    world.clock.advance(2 * 3600);
    auto restarted = world.open();
    EXPECT_EQ(restarted->stats().n_corrupt, 0u);
    EXPECT_EQ(world.n_temp(), 0u);
    EXPECT_TRUE(holds(*restarted, before));
    EXPECT_TRUE(holds(*restarted, added) || holds(*restarted, tail));
    if (stored.ok()) {
      EXPECT_TRUE(holds(*restarted, added));
    }
    EXPECT_TRUE(restarted->verify().ok());
    if (!reached) {
      EXPECT_GT(n, 5u) << "the loop saw every step of a put";
    }
  }
}

TEST_P(PutFaults, LeaveRoomForLaterChunks) {
  for (uint64_t n = 0; n < 12; ++n) {
    World world;
    const uint64_t size = samples::sealed({.tokens = {1}})->bytes().size();
    auto tier = world.open(3 * size);
    for (Token t = 0; t < 3; ++t) ASSERT_TRUE(tier->put(samples::sealed({.tokens = {t}})).ok());
    world.disk.fail_at(n, GetParam());
    auto failed = tier->put(samples::sealed({.tokens = {10}}));
    world.disk.revive();
    for (Token t = 20; t < 23; ++t) {
      world.clock.advance(2 * 3600);
      EXPECT_TRUE(tier->put(samples::sealed({.tokens = {t}})).ok()) << "step " << n;
      EXPECT_TRUE(holds(*tier, {.tokens = {t}}));
    }
    EXPECT_LE(tier->stats().size_bytes, 3 * size);
  }
}

INSTANTIATE_TEST_SUITE_P(, PutFaults, testing::Values(Fault::kError, Fault::kNoSpace, Fault::kKill),
                         [](const auto& test) {
                           return std::string(test.param == Fault::kError     ? "Error"
                                              : test.param == Fault::kNoSpace ? "NoSpace"
                                                                              : "Kill");
                         });

TEST(GetFaults, AreNeverAWrongAnswer) {
  bool reached = true;
  for (uint64_t n = 0; reached; ++n) {
    World world;
    auto tier = world.open();
    ASSERT_TRUE(tier->put(samples::sealed({})).ok());
    world.clock.advance(120);  // the get also writes the time of use
    world.disk.fail_at(n, Fault::kError);
    CheckingSink sink;
    auto got = tier->get(samples::id_of({}), samples::all_layers(), sink, kNoDeadline);
    EXPECT_EQ(sink.n_wrong, 0u);
    reached = world.disk.reached();
    world.disk.revive();
    if (!reached) {
      EXPECT_GT(n, 3u) << "the loop saw every step of a get";
    }
    if (!got.ok()) {
      EXPECT_NE(got.error().code, Code::kNotFound) << "a fault is not an absence";
    }
    EXPECT_TRUE(tier->put(samples::sealed({})).ok());
    EXPECT_TRUE(holds(*tier, {}));
  }
}

TEST(OpenFaults, AreReportedOrHarmless) {
  bool reached = true;
  for (uint64_t n = 0; reached; ++n) {
    World world;
    for (Token t = 0; t < 3; ++t) {
      ASSERT_TRUE(world.open()->put(samples::sealed({.tokens = {t}})).ok());
    }
    world.disk.fail_at(n, Fault::kError);
    auto tier = DiskTier::open(world.dir.path(), kBudget, world.disk, world.clock);
    reached = world.disk.reached();
    world.disk.revive();
    if (!tier.ok()) continue;
    for (Token t = 0; t < 3; ++t) holds(**tier, {.tokens = {t}});
  }
}

// A disk that fails at everything costs reuse, not the service: chunks are matched and loaded while
// they wait, later requests just compute.
TEST(StoreFaults, AStoreOnABrokenDiskGoesOn) {
  World world;
  std::vector<std::unique_ptr<Tier>> tiers;
  tiers.push_back(world.open());
  Store store(std::move(tiers), 1 << 20);
  ASSERT_TRUE(store.put(samples::build({})));
  store.flush();
  world.disk.fail_always(Fault::kNoSpace);
  for (Token t = 0; t < 20; ++t) ASSERT_TRUE(store.put(samples::build({.tokens = {t}})));
  store.flush();
  auto stats = store.stats().tiers.at(0).second;
  EXPECT_EQ(stats.n_put_failed, 20u);
  EXPECT_EQ(stats.n_chunk, 1u);
  const std::vector<Token> prompt = Sample{}.tokens;
  Match match = store.match({.fingerprint = samples::kModel,
                             .numeric = samples::kNumeric,
                             .shape = samples::kShape,
                             .salt = "",
                             .tokens = prompt});
  ASSERT_EQ(match.chunks.size(), 1u);
  CheckingSink sink;
  EXPECT_FALSE(store.load(match.chunks[0], samples::all_layers(), sink, kNoDeadline).ok());
}

}  // namespace
}  // namespace headstart::store
