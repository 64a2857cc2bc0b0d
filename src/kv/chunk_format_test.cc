// kv/chunk_format: what is sealed is parsed back equal; every changed byte of a header and every
// lie about a size is refused before anything is allocated for it.
// To add a lie: one line in HeaderLies, with the offset from docs/formats/chunk.md.
#include "kv/chunk_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/contract/sample_chunks.h"

namespace headstart::kv {
namespace {

using samples::Sample;

std::vector<std::byte> bytes_of(const EncodedChunk& chunk) {
  return {chunk.bytes().begin(), chunk.bytes().end()};
}

// Makes the header checksum right again, so that the check behind it is reached.
void reseal(std::vector<std::byte>& bytes) {
  uint32_t size;
  std::memcpy(&size, bytes.data() + 12, sizeof(size));
  if (size < 8 || size > bytes.size()) return;
  uint64_t sum = checksum(std::span(bytes).first(size - 8));
  std::memcpy(bytes.data() + size - 8, &sum, sizeof(sum));
}

template <class T>
std::vector<std::byte> with(std::vector<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  reseal(bytes);
  return bytes;
}

TEST(Chunk, IsParsedBackAsItWasBuilt) {
  Sample sample{.tokens = samples::tokens_from(5, 33),
                .flags = kFlagTail,
                .pos_first = 77,
                .n_strict = 20,
                .compute_s = 0.25};
  auto chunk = samples::sealed(sample);
  auto parsed = parse_header(chunk->bytes());
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const ChunkMeta& meta = parsed->meta;
  EXPECT_EQ(meta.id(), samples::id_of(sample));
  EXPECT_EQ(meta.fingerprint, samples::kModel);
  EXPECT_EQ(meta.parent_key, sample.parent);
  EXPECT_EQ(meta.content_key, content_key(samples::kModel, "", sample.tokens));
  EXPECT_EQ(meta.tokens, sample.tokens);
  EXPECT_EQ(meta.shape, sample.shape);
  EXPECT_EQ(meta.flags, kFlagTail);
  EXPECT_EQ(meta.pos_first, 77u);
  EXPECT_EQ(meta.n_strict, 20u);
  EXPECT_EQ(meta.compute_s, 0.25);
  EXPECT_EQ(parsed->file_bytes, chunk->bytes().size());
  for (uint32_t layer = 0; layer < sample.shape.n_layer; ++layer) {
    for (Part part : {Part::kKey, Part::kValue}) {
      auto cell = chunk->cell(layer, part);
      EXPECT_TRUE(check_cell(parsed->cell(layer, part), cell).ok());
      EXPECT_EQ(parsed->cell(layer, part).offset % 64, 0u);
      Half last;
      std::memcpy(&last, cell.data() + cell.size() - sizeof(Half), sizeof(Half));
      EXPECT_EQ(last, samples::value_of(layer, part, cell.size() / sizeof(Half) - 1));
    }
  }
}

TEST(Chunk, HasTheSameBytesHoweverOftenItIsBuilt) {
  // A head size that leaves gaps between cells: they are cleared too.
  Sample sample{.tokens = {1, 2, 3}, .shape = {2, 1, 6, 10}};
  EXPECT_EQ(bytes_of(*samples::sealed(sample)), bytes_of(*samples::sealed(sample)));
}

TEST(Chunk, CanBeReadWhileItIsNotSealed) {
  ChunkBuilder builder = samples::build({});
  auto peeked = builder.peek();
  auto chunk = std::move(builder).seal();
  EXPECT_EQ(peeked->header().meta.tokens, chunk->header().meta.tokens);
  EXPECT_EQ(peeked->cell(1, Part::kValue).data(), chunk->cell(1, Part::kValue).data());
}

TEST(Chunk, TakesTheLargestCounts) {
  Sample sample{.tokens = samples::tokens_from(0, kChunkTokensMax), .shape = {kLayersMax, 1, 1, 1}};
  auto chunk = samples::sealed(sample);
  EXPECT_LE(chunk->header().header_bytes, kHeaderBytesMax);
  EXPECT_TRUE(parse_header(chunk->bytes()).ok());
}

TEST(ParseHeader, RefusesEveryFlippedBit) {
  const auto good = bytes_of(*samples::sealed({}));
  const size_t header_bytes = *header_size(good);
  for (size_t bit = 0; bit < header_bytes * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    auto parsed = parse_header(bad);
    ASSERT_FALSE(parsed.ok()) << "bit " << bit;
    EXPECT_EQ(parsed.error().code, Code::kCorrupt);
  }
}

TEST(ParseHeader, RefusesEveryTruncation) {
  const auto good = bytes_of(*samples::sealed({}));
  const size_t header_bytes = *header_size(good);
  for (size_t size = 0; size < header_bytes; ++size) {
    EXPECT_FALSE(parse_header(std::span(good).first(size)).ok()) << size;
  }
  EXPECT_TRUE(parse_header(std::span(good).first(header_bytes)).ok());
}

TEST(CheckCell, RefusesEveryFlippedBitAndOtherSizes) {
  auto chunk = samples::sealed({.tokens = {1, 2}});
  const CellEntry& entry = chunk->header().cell(0, Part::kKey);
  auto span = chunk->cell(0, Part::kKey);
  std::vector<std::byte> cell(span.begin(), span.end());
  EXPECT_TRUE(check_cell(entry, cell).ok());
  EXPECT_FALSE(check_cell(entry, std::span(cell).first(cell.size() - 1)).ok());
  for (size_t bit = 0; bit < cell.size() * 8; ++bit) {
    cell[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(check_cell(entry, cell).ok()) << bit;
    cell[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

// Headers that lie, each with a right checksum. Offsets: docs/formats/chunk.md.
struct Lie {
  const char* what;
  size_t at;
  uint64_t value;
  size_t n_byte;
  Code code = Code::kCorrupt;
};

class HeaderLies : public testing::TestWithParam<Lie> {};

TEST_P(HeaderLies, AreRefused) {
  const Lie& lie = GetParam();
  auto bytes = bytes_of(*samples::sealed({.n_strict = 4}));
  std::memcpy(bytes.data() + lie.at, &lie.value, lie.n_byte);
  reseal(bytes);
  auto parsed = parse_header(bytes);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().code, lie.code) << parsed.error().message;
}

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
constexpr size_t kAtTable = 320 + 8 * 4;  // of a sample with 8 tokens

INSTANTIATE_TEST_SUITE_P(
    , HeaderLies,
    testing::Values(
        Lie{"magic", 0, 0, 4}, Lie{"version", 8, 2, 4}, Lie{"header_zero", 12, 0, 4},
        Lie{"header_huge", 12, 0xffffffff, 4}, Lie{"header_odd", 12, 513, 4},
        Lie{"header_short", 12, 384, 4}, Lie{"file_zero", 16, 0, 8}, Lie{"file_huge", 16, kHuge, 8},
        Lie{"file_2_63", 16, uint64_t{1} << 63, 8}, Lie{"no_tokens", 32, 0, 4},
        Lie{"more_tokens", 32, 9, 4}, Lie{"fewer_tokens", 32, 7, 4},
        Lie{"tokens_huge", 32, 0xffffffff, 4}, Lie{"strict", 36, 9, 4},
        Lie{"position", 40, 0xffffffff, 4}, Lie{"no_layers", 44, 0, 4},
        Lie{"layers_huge", 44, 0xffffffff, 4}, Lie{"layers", 44, 3, 4}, Lie{"no_heads", 48, 0, 4},
        Lie{"heads_huge", 48, 0xffffffff, 4}, Lie{"head_k", 52, 16, 4},
        Lie{"head_k_zero", 52, 0, 4}, Lie{"head_v_huge", 56, 0x80000000, 4},
        Lie{"compute_nan", 64, 0x7ff8000000000000, 8},
        Lie{"compute_negative", 64, 0xbff0000000000000, 8}, Lie{"parent", 136, 1, 8},
        Lie{"prefix", 168, 1, 8}, Lie{"token", 320, 1, 4}, Lie{"offset", kAtTable, 448, 8},
        Lie{"offset_huge", kAtTable, kHuge - 63, 8}, Lie{"size", kAtTable + 8, 64, 8},
        Lie{"size_huge", kAtTable + 8, kHuge, 8}, Lie{"overlap", kAtTable + 32, 512, 8},
        Lie{"entry_reserved", kAtTable + 25, 1, 1}, Lie{"codec", 28, 1, 1, Code::kUnsupported},
        Lie{"cell_codec", kAtTable + 24, 1, 1, Code::kUnsupported},
        Lie{"approximate", 24, 2, 4, Code::kUnsupported},
        Lie{"flag", 24, 0x80000000, 4, Code::kUnsupported},
        Lie{"reserved_1", 29, 1, 1, Code::kUnsupported},
        Lie{"reserved_2", 60, 1, 4, Code::kUnsupported},
        Lie{"reserved_3", 232, 1, 1, Code::kUnsupported},
        Lie{"reserved_4", 319, 1, 1, Code::kUnsupported}),
    [](const auto& test) { return std::string(test.param.what); });

TEST(ChunkBuilderDeathTest, RefusesWhatCouldNotBeReadBack) {
  EXPECT_DEATH(samples::build({.tokens = {}}), "number of tokens");
  EXPECT_DEATH(samples::build({.tokens = samples::tokens_from(0, kChunkTokensMax + 1)}),
               "number of tokens");
  EXPECT_DEATH(samples::build({.shape = {0, 1, 8, 8}}), "number of layers");
  EXPECT_DEATH(samples::build({.n_strict = 9}), "strict");
  EXPECT_DEATH(samples::build({.compute_s = std::nan("")}), "compute time");
  EXPECT_DEATH(samples::build({.flags = kFlagApproximate}), "only exact");
}

}  // namespace
}  // namespace headstart::kv
