// Every byte of a chunk file is changed and the file is cut at every length, before and after the
// tier has indexed it: always a miss that is counted, never a wrong value, never a crash. And a
// whole chunk of another model in the same directory (case 3).
#include <gtest/gtest.h>

#include <fstream>

#include "store/chunk_file.h"
#include "store/disk_tier.h"
#include "store/store.h"
#include "tests/contract/sample_chunks.h"
#include "tests/support/temp_dir.h"

namespace headstart::store {
namespace {

using samples::CheckingSink;
using samples::Sample;

class Damage : public testing::Test {
 protected:
  void write(std::span<const std::byte> bytes) {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  std::unique_ptr<DiskTier> open() { return *DiskTier::open(dir_.path(), 1 << 20, disk_, clock_); }
  // Damaged before the tier looks, and after.
  void expect_miss(std::span<const std::byte> damaged) {
    write(damaged);
    auto restarted = open();
    expect_miss(*restarted);
    EXPECT_FALSE(std::filesystem::exists(path_));

    write(good_);
    auto running = open();
    EXPECT_EQ(running->stats().n_chunk, 1u);
    write(damaged);
    expect_miss(*running);
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
  void expect_miss(DiskTier& tier) {
    CheckingSink sink;
    auto got =
        tier.get(samples::id_of(sample_), samples::all_layers(sample_.shape), sink, kNoDeadline);
    EXPECT_FALSE(got.ok());
    EXPECT_EQ(sink.n_wrong, 0u);
    EXPECT_EQ(tier.stats().n_corrupt, 1u);
    EXPECT_EQ(tier.stats().n_chunk, 0u);
    EXPECT_EQ(tier.stats().size_bytes, 0u);
  }

  // Cells whose sizes are multiples of 64: no byte of the file is mere padding.
  const Sample sample_{.tokens = {1, 2}, .shape = {1, 1, 16, 16}};
  const kv::ChunkPtr chunk_ = samples::sealed(sample_);
  const std::vector<std::byte> good_{chunk_->bytes().begin(), chunk_->bytes().end()};
  test::TempDir dir_;
  std::filesystem::path path_ = dir_ / chunk_file_name(samples::id_of(sample_));
  PosixDisk disk_;
  FakeClock clock_{SystemClock().unix_s()};
};

TEST_F(Damage, ToAnyBitIsACountedMiss) {
  auto damaged = good_;
  for (size_t i = 0; i < damaged.size(); ++i) {
    SCOPED_TRACE("byte " + std::to_string(i));
    damaged[i] ^= std::byte{1} << (i % 8);
    expect_miss(damaged);
    damaged[i] = good_[i];
    if (HasFailure()) return;
  }
}

TEST_F(Damage, ByCuttingAtAnyLengthIsACountedMiss) {
  for (size_t size = 0; size < good_.size(); ++size) {
    SCOPED_TRACE("size " + std::to_string(size));
    expect_miss(std::span(good_).first(size));
    if (HasFailure()) return;
  }
}

TEST_F(Damage, ByZeroingAnyBlockIsACountedMiss) {
  for (size_t block = 0; block < good_.size(); block += 64) {
    auto damaged = good_;
    std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(block),
                std::min<size_t>(64, damaged.size() - block), std::byte{0});
    if (damaged == good_) continue;
    SCOPED_TRACE("block at " + std::to_string(block));
    expect_miss(damaged);
  }
}

TEST_F(Damage, IsFoundAndRemovedByVerify) {
  auto tier = open();
  for (Token t = 10; t < 15; ++t) ASSERT_TRUE(tier->put(samples::sealed({.tokens = {t}})).ok());
  ASSERT_TRUE(tier->put(chunk_).ok());
  auto damaged = good_;
  damaged.back() ^= std::byte{1};
  write(damaged);
  auto report = tier->verify();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->n_ok, 5u);
  EXPECT_EQ(report->n_corrupt, 1u);
  EXPECT_EQ(tier->stats().n_chunk, 5u);
}

TEST_F(Damage, OneLayerDoesNotKeepTheOthersFromBeingRead) {
  const Sample deep{.tokens = {3}, .shape = {4, 1, 32, 32}};
  const auto chunk = samples::sealed(deep);
  path_ = dir_ / chunk_file_name(samples::id_of(deep));
  std::vector<std::byte> bytes(chunk->bytes().begin(), chunk->bytes().end());
  bytes[chunk->header().cell(3, kv::Part::kKey).offset] ^= std::byte{1};
  write(bytes);
  auto tier = open();
  CheckingSink sink;
  EXPECT_TRUE(tier->get(samples::id_of(deep), {0, 3}, sink, kNoDeadline).ok());
  EXPECT_EQ(sink.n_wrong, 0u);
  EXPECT_EQ(tier->get(samples::id_of(deep), {0, 4}, sink, kNoDeadline).error().code,
            Code::kCorrupt);
}

TEST_F(Damage, AChunkOfAnotherModelIsNeverMatchedNorLoaded) {
  // The same prompt, salt and shape, another model (or quantisation, or rope setting).
  Sample foreign = sample_;
  foreign.fingerprint = samples::digest_of(0x77);
  foreign.parent = kv::prefix_root(foreign.fingerprint, "");
  path_ = dir_ / chunk_file_name(samples::id_of(foreign));
  write(samples::sealed(foreign)->bytes());
  auto tier = open();
  EXPECT_EQ(tier->stats().n_chunk, 1u);
  CheckingSink sink;  // wants samples::kModel
  auto got =
      tier->get(samples::id_of(foreign), samples::all_layers(foreign.shape), sink, kNoDeadline);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(sink.n_cell, 0u);
  EXPECT_EQ(tier->stats().n_corrupt, 0u);

  std::vector<std::unique_ptr<Tier>> tiers;
  tiers.push_back(std::move(tier));
  Store store(std::move(tiers), 1 << 20);
  MatchQuery query{.fingerprint = samples::kModel,
                   .numeric = samples::kNumeric,
                   .shape = sample_.shape,
                   .salt = "",
                   .tokens = sample_.tokens};
  EXPECT_EQ(store.match(query).n_token, 0u);
  query.fingerprint = foreign.fingerprint;
  EXPECT_EQ(store.match(query).n_token, 2u) << "its own model does find it";
}

}  // namespace
}  // namespace headstart::store
