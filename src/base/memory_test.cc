// base/memory: what control groups leave, from files as the two versions have them.
#include "base/memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "tests/support/temp_dir.h"

namespace headstart {
namespace {
namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

void write_v2(const fs::path& group, const std::string& max, int current, int file) {
  write(group / "memory.max", max + "\n");
  write(group / "memory.current", std::to_string(current) + "\n");
  write(group / "memory.stat",
        "anon 5\ninactive_file " + std::to_string(file) + "\nactive_file 1\nfile_mapped 900\n");
}

void write_v1(const fs::path& group, const std::string& limit, int usage, int file) {
  write(group / "memory.limit_in_bytes", limit + "\n");
  write(group / "memory.usage_in_bytes", std::to_string(usage) + "\n");
  write(group / "memory.stat",
        "inactive_file 7\ntotal_inactive_file " + std::to_string(file) + "\ntotal_active_file 2\n");
}

TEST(GroupMemory, CountsFilePagesAsAvailable) {
  const test::TempDir mount;
  write_v2(mount / "app", "1000", 950, 599);
  const GroupMemory m = group_memory("0::/app\n", mount.path());
  EXPECT_EQ(m.limit_bytes, 1000u);
  EXPECT_EQ(m.available_bytes, 650u);
}

TEST(GroupMemory, ReadsVersion1) {
  const test::TempDir mount;
  write_v1(mount / "memory/app", "1000", 900, 98);
  const GroupMemory m = group_memory("7:cpu,cpuacct:/other\n5:memory:/app\n0::/\n", mount.path());
  EXPECT_EQ(m.limit_bytes, 1000u);
  EXPECT_EQ(m.available_bytes, 200u);
}

TEST(GroupMemory, TakesTheNarrowestOfAllAround) {
  const test::TempDir mount;
  write_v2(mount / "a/b", "max", 10, 0);
  write_v2(mount / "a", "500", 401, 0);
  const GroupMemory m = group_memory("0::/a/b", mount.path());
  EXPECT_EQ(m.limit_bytes, 500u);
  EXPECT_EQ(m.available_bytes, 100u);
}

TEST(GroupMemory, FallsBackToTheRootOfAContainer) {
  const test::TempDir mount;
  write_v2(mount.path(), "800", 900, 49);
  const GroupMemory m = group_memory("0::/outside/that/is/not/here\n", mount.path());
  EXPECT_EQ(m.limit_bytes, 800u);
  EXPECT_EQ(m.available_bytes, 0u);
}

TEST(GroupMemory, KnowsNothingWithoutGroups) {
  const test::TempDir mount;
  for (const char* text : {"", "\n", "junk", "0::/\n", "::", "5:memory"}) {
    EXPECT_EQ(group_memory(text, mount.path()).limit_bytes, UINT64_MAX) << text;
  }
}

TEST(AvailableMemory, IsSomethingHere) {
  EXPECT_GT(available_memory_bytes(), 0u);
  EXPECT_LE(available_memory_bytes(), total_memory_bytes());
}

TEST(Memory, SaysWhatTheProcessHolds) {
  const uint64_t before = resident_memory().private_bytes;
  const std::vector<char> taken(64 << 20, 1);
  EXPECT_GE(resident_memory().private_bytes, before + taken.size() / 2);
  EXPECT_GT(resident_memory().file_bytes, 0u);  // this program itself
}

}  // namespace
}  // namespace headstart
