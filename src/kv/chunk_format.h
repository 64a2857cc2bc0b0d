// kv/chunk_format.h: one chunk of K,V as bytes, on disk, in RAM and on the wire.
//
// docs/formats/chunk.md describes every byte. A chunk is a header, its token ids, a table of
// cells and the cells. A cell is the K or the V of one layer: f16 [n_token, n_head_kv, d_head],
// K before RoPE. Cells are 64-byte aligned, each with an XXH3-64 checksum and its own offset, so
// that any range of layers can be fetched alone.
//
//   units    sizes and offsets in bytes from the start of the chunk
//   threads  values; an EncodedChunk never changes once sealed
//   errors   kCorrupt: damaged, or never a chunk; kUnsupported: whole, but made by a newer version
//            (a codec, flag or reserved field that this one does not know). The message names the
//            field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/chunk_id.h"

namespace headstart::kv {

using Half = uint16_t;  // IEEE 754 binary16, as bits

enum class Part : uint8_t { kKey = 0, kValue = 1 };
enum class Codec : uint8_t { kF16 = 0 };

// Shapes of a model's K,V. Every layer has the same.
struct KvShape {
  uint32_t n_layer = 0;
  uint32_t n_head_kv = 0;
  uint32_t d_head_k = 0;
  uint32_t d_head_v = 0;

  bool operator==(const KvShape&) const = default;
  uint64_t row_values(Part part) const {
    return uint64_t{n_head_kv} * (part == Part::kKey ? d_head_k : d_head_v);
  }
  uint64_t bytes_per_token() const {  // f16, all layers, K and V
    return n_layer * (row_values(Part::kKey) + row_values(Part::kValue)) * sizeof(Half);
  }
};

// Limits that a reader enforces before it allocates anything.
inline constexpr uint32_t kLayersMax = 1024;
inline constexpr uint32_t kHeadsMax = 1024;
inline constexpr uint32_t kHeadSizeMax = 1024;
inline constexpr uint32_t kPositionsMax = uint32_t{1} << 31;
inline constexpr uint64_t kChunkBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kHeaderBytesMax = uint64_t{1} << 20;

enum ChunkFlags : uint32_t {
  kFlagTail = 1,  // ends where its prompt ended, not at a final cut; a longer one replaces it
  kFlagApproximate = 2,  // computed behind a repaired cell: never under a prefix key
};

struct ChunkMeta {
  Digest fingerprint{};
  Digest numeric{};
  Digest parent_key{};
  Digest prefix_key{};
  Digest content_key{};
  KvShape shape;
  Codec codec = Codec::kF16;
  uint32_t flags = 0;
  uint32_t pos_first = 0;  // position of its first token when it was computed
  // Its first n_strict tokens have the bits that a cold run of any longer prompt gives; the others
  // are equal up to rounding (made by decode kernels, or behind such).
  uint32_t n_strict = 0;
  double compute_s = 0;  // measured seconds that computing it took
  std::vector<Token> tokens;

  ChunkId id() const { return {prefix_key, numeric}; }
  uint32_t n_token() const { return static_cast<uint32_t>(tokens.size()); }
};

struct CellEntry {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  uint64_t checksum = 0;
};

struct ChunkHeader {
  ChunkMeta meta;
  uint64_t header_bytes = 0;  // fixed part, token ids and table: what parse_header needs
  uint64_t file_bytes = 0;
  std::vector<CellEntry> cells;  // [n_layer * 2], K of a layer before its V

  const CellEntry& cell(uint32_t layer, Part part) const {
    return cells[layer * 2 + static_cast<uint32_t>(part)];
  }
};

// How many bytes of a chunk's start tell header_bytes.
inline constexpr size_t kFixedHeaderBytes = 320;

// header_bytes as claimed by the fixed part, checked against kHeaderBytesMax.
Result<uint64_t> header_size(std::span<const std::byte> fixed_part);
// Checks magic, version, limits, the header's checksum, the table's geometry against file_bytes,
// the prefix key against parent and tokens. `bytes` starts at the chunk and holds header_bytes.
Result<ChunkHeader> parse_header(std::span<const std::byte> bytes);
// Checks the cell's size and checksum.
Result<void> check_cell(const CellEntry& cell, std::span<const std::byte> bytes);

class EncodedChunk;
using ChunkPtr = std::shared_ptr<const EncodedChunk>;

// Fills a chunk: the constructor fixes sizes, cell() gives the place of each cell's values,
// seal() writes checksums and the header (the costly part: call it off the compute thread).
class ChunkBuilder {
 public:
  // CHECKs the limits above, and that prefix_key follows from parent_key and tokens.
  explicit ChunkBuilder(ChunkMeta meta);

  std::span<Half> cell(uint32_t layer, Part part);  // [n_token, n_head_kv, d_head]
  const ChunkMeta& meta() const { return header_.meta; }
  uint64_t size_bytes() const { return header_.file_bytes; }
  // The filled cells before seal(), which may run meanwhile: checksums are zero and bytes() is not
  // a chunk yet; header().meta and cell() are what they will be.
  ChunkPtr peek() const;
  ChunkPtr seal() &&;

 private:
  ChunkHeader header_;
  std::shared_ptr<std::byte[]> bytes_;  // 64-byte aligned
};

// A sealed chunk in memory.
class EncodedChunk {
 public:
  EncodedChunk(ChunkHeader header, std::shared_ptr<std::byte[]> bytes)
      : header_(std::move(header)), bytes_(std::move(bytes)) {}
  const ChunkHeader& header() const { return header_; }
  std::span<const std::byte> bytes() const { return {bytes_.get(), header_.file_bytes}; }
  std::span<const std::byte> cell(uint32_t layer, Part part) const {
    const CellEntry& e = header_.cell(layer, part);
    return bytes().subspan(e.offset, e.size_bytes);
  }

 private:
  ChunkHeader header_;
  std::shared_ptr<std::byte[]> bytes_;
};

}  // namespace headstart::kv
