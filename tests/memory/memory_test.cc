// Weights larger than memory: a process that may hold less than its model takes gives the bits of
// one that may hold all of it. Where no control group can be made (not root) the file is dropped
// from memory instead: then every layer comes from the disk once.
//
// To add a case, give another limit or model.
#include <gtest/gtest.h>

#include "bench/out_of_core.h"
#include "bench/scratch_dir.h"
#include "model/model.h"
#include "tests/support/models.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kTokens = 1024;  // two passes over the weights

TEST(LessMemoryThanWeights, GivesTheSameBits) {
  const auto path = test::model_path(test::RealModel::kQwen);
  ASSERT_TRUE(path.ok()) << path.error().message;
  const ScratchDir dir;
  PassOptions pass{dir.path() / path->filename(), kTokens, 2, 0};
  std::filesystem::copy_file(*path, pass.model);
  const auto file_bytes = static_cast<double>(std::filesystem::file_size(*path));

  const auto all = run_pass(pass, Runner::kReadAhead, nullptr);
  ASSERT_TRUE(all.ok()) << all.error().message;
  ASSERT_NE(all->logits_hash, 0u);

  const auto group = MemoryGroup::open(static_cast<uint64_t>(0.6 * file_bytes));
  const MemoryGroup* const limit = group.ok() ? &*group : nullptr;
  for (const Runner runner : {Runner::kReadAhead, Runner::kNoReadAhead}) {
    const auto limited = run_pass(pass, runner, limit);
    ASSERT_TRUE(limited.ok()) << limited.error().message;
    EXPECT_EQ(limited->logits_hash, all->logits_hash);
    // Read more than once, or the limit did nothing.
    if (limit != nullptr) {
      EXPECT_GT(limited->read_bytes, 1.3 * all->read_bytes);
    }
  }
}

}  // namespace
}  // namespace headstart::bench
