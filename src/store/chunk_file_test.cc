// store/chunk_file: names are recognised exactly, and a file is read whole or refused, whatever the
// sizes of its header and cells.
#include "store/chunk_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/contract/sample_chunks.h"
#include "tests/support/temp_dir.h"

namespace headstart::store {
namespace {

using samples::CheckingSink;
using samples::Sample;

class ChunkFile : public testing::Test {
 protected:
  std::unique_ptr<ReadFile> write(std::span<const std::byte> bytes) {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return *disk_.open(path_);
  }
  Result<void> read(const ReadFile& file, CellRange want, CellSink& sink) {
    HS_ASSIGN_OR_RETURN(auto header, read_header(file));
    HS_RETURN_IF_ERROR(sink.begin(header));
    return read_cells(file, header, want, sink, clock_, kNoDeadline);
  }

  test::TempDir dir_;
  std::filesystem::path path_ = dir_ / "chunk";
  PosixDisk disk_;
  SystemClock clock_;
};

TEST_F(ChunkFile, NamesAreReadBackExactly) {
  const kv::ChunkId id = samples::id_of({});
  const std::string name = chunk_file_name(id);
  auto parsed = parse_chunk_file_name(name);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->prefix_key, id.prefix_key);
  EXPECT_TRUE(std::equal(parsed->numeric.begin(), parsed->numeric.begin() + 8, id.numeric.begin()));
  for (size_t i = 0; i < name.size(); ++i) {
    std::string wrong = name;
    wrong[i] = 'X';
    EXPECT_FALSE(parse_chunk_file_name(wrong)) << i;
    EXPECT_FALSE(parse_chunk_file_name(name.substr(0, i))) << i;
  }
  EXPECT_FALSE(parse_chunk_file_name(name + "~"));
  EXPECT_FALSE(parse_chunk_file_name("../" + name));
}

TEST_F(ChunkFile, TemporaryNamesTellTheirWriter) {
  EXPECT_EQ(parse_temp_file_name(temp_file_name(4711, 3)), 4711);
  for (const char* name : {".tmp-", ".tmp-1", ".tmp-1-", ".tmp--1-2", ".tmp-x-1", ".tmp-1-x",
                           ".tmp-1-2.swp", "tmp-1-2", ".tmp-99999999999999999999-1"}) {
    EXPECT_FALSE(parse_temp_file_name(name)) << name;
  }
}

TEST_F(ChunkFile, ReadsEveryRangeOfChunksOfEverySize) {
  const kv::KvShape shapes[] = {{1, 1, 1, 1},
                                {300, 1, 4, 4},      // a header larger than the first read
                                {3, 8, 128, 64},     // several cells at once
                                {2, 16, 128, 128}};  // cells larger than the buffer
  for (const kv::KvShape& shape : shapes) {
    Sample sample{.tokens = samples::tokens_from(0, 144), .shape = shape};
    auto chunk = samples::sealed(sample);
    auto file = write(chunk->bytes());
    for (CellRange want : {CellRange{0, shape.n_layer}, CellRange{shape.n_layer - 1, shape.n_layer},
                           CellRange{shape.n_layer / 2, shape.n_layer}}) {
      CheckingSink sink;
      auto got = read(*file, want, sink);
      ASSERT_TRUE(got.ok()) << got.error().message;
      EXPECT_EQ(sink.n_cell, 2 * (want.layer_end - want.layer_first));
      EXPECT_EQ(sink.n_wrong, 0u);
    }
    auto whole = read_chunk(*file);
    ASSERT_TRUE(whole.ok());
    EXPECT_TRUE(std::ranges::equal((*whole)->bytes(), chunk->bytes()));
  }
}

TEST_F(ChunkFile, RefusesFilesLongerOrShorterThanTheySay) {
  auto chunk = samples::sealed({});
  std::vector<std::byte> bytes(chunk->bytes().begin(), chunk->bytes().end());
  bytes.push_back({});
  EXPECT_EQ(read_header(*write(bytes)).error().code, Code::kCorrupt);
  bytes.resize(bytes.size() - 2);
  EXPECT_EQ(read_header(*write(bytes)).error().code, Code::kCorrupt);
  EXPECT_EQ(read_header(*write({})).error().code, Code::kCorrupt);
}

// A header that claims the largest size, in a file of a few bytes: refused, nothing allocated.
TEST_F(ChunkFile, RefusesAClaimThatTheFileCannotKeep) {
  auto chunk = samples::sealed({});
  std::vector<std::byte> bytes(chunk->bytes().begin(), chunk->bytes().end());
  const uint32_t claim = static_cast<uint32_t>(kv::kHeaderBytesMax);
  std::memcpy(bytes.data() + 12, &claim, sizeof(claim));
  EXPECT_EQ(read_header(*write(bytes)).error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace headstart::store
