#include "kv/chunk_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <string>

namespace headstart::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "cells are handed over as they are read");

// Offsets of the fixed part; docs/formats/chunk.md says what each field means.
constexpr unsigned char kMagic[8] = {0x89, 'H', 'S', 'K', 'V', '\r', '\n', 0x1a};
constexpr uint32_t kVersion = 1;
constexpr size_t kAtVersion = 8, kAtHeaderBytes = 12, kAtFileBytes = 16, kAtFlags = 24,
                 kAtCodec = 28, kAtTokens = 32, kAtStrict = 36, kAtPosFirst = 40, kAtLayers = 44,
                 kAtHeads = 48, kAtHeadSizeK = 52, kAtHeadSizeV = 56, kAtComputeS = 64,
                 kAtFingerprint = 72, kAtNumeric = 104, kAtParentKey = 136, kAtPrefixKey = 168,
                 kAtContentKey = 200, kAtReserved = 232;
constexpr size_t kTableEntryBytes = 32, kAtEntryCodec = 24, kChecksumBytes = 8;
constexpr uint64_t kAlign = 64;

constexpr uint64_t align_up(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

template <class T>
T load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.subspan(at, sizeof(T)).data(), sizeof(T));
  return value;
}

template <class T>
void save(std::span<std::byte> bytes, size_t at, const T& value) {
  std::memcpy(bytes.subspan(at, sizeof(T)).data(), &value, sizeof(T));
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

Error corrupt(const char* field) {
  return Error{Code::kCorrupt, std::string("chunk header: wrong ") + field};
}

Error unsupported(const char* field) {
  return Error{Code::kUnsupported,
               std::string("chunk header: ") + field + " is of a newer version of Headstart"};
}

// The limits of a chunk's counts. Within them no size below can overflow 64 bits.
const char* field_beyond_limit(const ChunkMeta& meta, uint64_t n_token) {
  const KvShape& s = meta.shape;
  auto within = [](uint64_t n, uint64_t max) { return n >= 1 && n <= max; };
  if (!within(n_token, kChunkTokensMax)) return "number of tokens";
  if (!within(s.n_layer, kLayersMax)) return "number of layers";
  if (!within(s.n_head_kv, kHeadsMax)) return "number of heads";
  if (!within(s.d_head_k, kHeadSizeMax)) return "head size of K";
  if (!within(s.d_head_v, kHeadSizeMax)) return "head size of V";
  if (meta.n_strict > n_token) return "number of strict tokens";
  if (meta.pos_first > kPositionsMax - n_token) return "position";
  if (!std::isfinite(meta.compute_s) || meta.compute_s < 0) return "compute time";
  return nullptr;
}

struct Geometry {
  uint64_t table_at;
  uint64_t header_bytes;
  uint64_t cell_bytes[2];  // K, V
  uint64_t file_bytes;
};

Geometry geometry(const KvShape& shape, uint64_t n_token) {
  Geometry g;
  g.table_at = (kFixedHeaderBytes + n_token * sizeof(Token) + 7) / 8 * 8;
  g.header_bytes =
      align_up(g.table_at + uint64_t{shape.n_layer} * 2 * kTableEntryBytes + kChecksumBytes);
  for (Part part : {Part::kKey, Part::kValue}) {
    g.cell_bytes[static_cast<size_t>(part)] = n_token * shape.row_values(part) * sizeof(Half);
  }
  g.file_bytes =
      g.header_bytes + shape.n_layer * (align_up(g.cell_bytes[0]) + align_up(g.cell_bytes[1]));
  return g;
}

ChunkMeta load_counts(std::span<const std::byte> bytes) {
  ChunkMeta meta;
  meta.flags = load<uint32_t>(bytes, kAtFlags);
  meta.n_strict = load<uint32_t>(bytes, kAtStrict);
  meta.pos_first = load<uint32_t>(bytes, kAtPosFirst);
  meta.shape = {load<uint32_t>(bytes, kAtLayers), load<uint32_t>(bytes, kAtHeads),
                load<uint32_t>(bytes, kAtHeadSizeK), load<uint32_t>(bytes, kAtHeadSizeV)};
  meta.compute_s = load<double>(bytes, kAtComputeS);
  meta.fingerprint = load<Digest>(bytes, kAtFingerprint);
  meta.numeric = load<Digest>(bytes, kAtNumeric);
  meta.parent_key = load<Digest>(bytes, kAtParentKey);
  meta.prefix_key = load<Digest>(bytes, kAtPrefixKey);
  meta.content_key = load<Digest>(bytes, kAtContentKey);
  return meta;
}

void save_fixed_part(const ChunkHeader& header, std::span<std::byte> bytes) {
  const ChunkMeta& meta = header.meta;
  std::memcpy(bytes.data(), kMagic, sizeof(kMagic));
  save(bytes, kAtVersion, kVersion);
  save(bytes, kAtHeaderBytes, static_cast<uint32_t>(header.header_bytes));
  save(bytes, kAtFileBytes, header.file_bytes);
  save(bytes, kAtFlags, meta.flags);
  save(bytes, kAtCodec, meta.codec);
  save(bytes, kAtTokens, meta.n_token());
  save(bytes, kAtStrict, meta.n_strict);
  save(bytes, kAtPosFirst, meta.pos_first);
  save(bytes, kAtLayers, meta.shape.n_layer);
  save(bytes, kAtHeads, meta.shape.n_head_kv);
  save(bytes, kAtHeadSizeK, meta.shape.d_head_k);
  save(bytes, kAtHeadSizeV, meta.shape.d_head_v);
  save(bytes, kAtComputeS, meta.compute_s);
  save(bytes, kAtFingerprint, meta.fingerprint);
  save(bytes, kAtNumeric, meta.numeric);
  save(bytes, kAtParentKey, meta.parent_key);
  save(bytes, kAtPrefixKey, meta.prefix_key);
  save(bytes, kAtContentKey, meta.content_key);
}

// The table must be exactly the one that shape and n_token give: cells in order, aligned, without
// gaps, overlaps or other sizes.
Result<std::vector<CellEntry>> load_table(std::span<const std::byte> bytes, const Geometry& g,
                                          uint32_t n_layer) {
  std::vector<CellEntry> cells(size_t{n_layer} * 2);
  uint64_t offset = g.header_bytes;
  for (size_t i = 0; i < cells.size(); ++i) {
    auto entry = bytes.subspan(g.table_at + i * kTableEntryBytes, kTableEntryBytes);
    cells[i] = {load<uint64_t>(entry, 0), load<uint64_t>(entry, 8), load<uint64_t>(entry, 16)};
    if (load<Codec>(entry, kAtEntryCodec) != Codec::kF16) return unsupported("codec of a cell");
    if (!all_zero(entry.subspan(kAtEntryCodec + 1))) return corrupt("reserved byte of a cell");
    if (cells[i].offset != offset) return corrupt("offset of a cell");
    if (cells[i].size_bytes != g.cell_bytes[i % 2]) return corrupt("size of a cell");
    offset += align_up(cells[i].size_bytes);
  }
  return cells;
}

}  // namespace

Result<uint64_t> header_size(std::span<const std::byte> fixed_part) {
  if (fixed_part.size() < kFixedHeaderBytes) return corrupt("length");
  if (std::memcmp(fixed_part.data(), kMagic, sizeof(kMagic)) != 0) return corrupt("magic");
  if (load<uint32_t>(fixed_part, kAtVersion) != kVersion) return corrupt("version");
  uint64_t size = load<uint32_t>(fixed_part, kAtHeaderBytes);
  if (size < kFixedHeaderBytes || size > kHeaderBytesMax || size % kAlign != 0) {
    return corrupt("header size");
  }
  return size;
}

Result<ChunkHeader> parse_header(std::span<const std::byte> bytes) {
  HS_ASSIGN_OR_RETURN(uint64_t header_bytes, header_size(bytes));
  if (bytes.size() < header_bytes) return corrupt("length");
  bytes = bytes.first(header_bytes);
  const auto covered = bytes.first(header_bytes - kChecksumBytes);
  if (load<uint64_t>(bytes, covered.size()) != checksum(covered)) return corrupt("checksum");

  ChunkHeader header;
  header.header_bytes = header_bytes;
  header.file_bytes = load<uint64_t>(bytes, kAtFileBytes);
  ChunkMeta& meta = header.meta = load_counts(bytes);
  const uint64_t n_token = load<uint32_t>(bytes, kAtTokens);
  if (load<Codec>(bytes, kAtCodec) != Codec::kF16) return unsupported("codec");
  if ((meta.flags & ~uint32_t{kFlagTail}) != 0) return unsupported("a flag");
  if (!all_zero(bytes.subspan(kAtCodec + 1, 3)) || load<uint32_t>(bytes, kAtHeadSizeV + 4) != 0 ||
      !all_zero(bytes.subspan(kAtReserved, kFixedHeaderBytes - kAtReserved))) {
    return unsupported("a reserved field");
  }
  if (const char* field = field_beyond_limit(meta, n_token)) return corrupt(field);

  const Geometry g = geometry(meta.shape, n_token);
  if (g.header_bytes != header_bytes) return corrupt("header size");
  if (g.file_bytes > kChunkBytesMax || g.file_bytes != header.file_bytes) {
    return corrupt("file size");
  }
  meta.tokens.resize(n_token);
  std::memcpy(meta.tokens.data(), bytes.data() + kFixedHeaderBytes, n_token * sizeof(Token));
  if (extend_prefix(meta.parent_key, meta.tokens) != meta.prefix_key) return corrupt("prefix key");
  HS_ASSIGN_OR_RETURN(header.cells, load_table(bytes, g, meta.shape.n_layer));
  return header;
}

Result<void> check_cell(const CellEntry& cell, std::span<const std::byte> bytes) {
  if (bytes.size() == cell.size_bytes && checksum(bytes) == cell.checksum) return {};
  return Error{Code::kCorrupt,
               "chunk cell at offset " + std::to_string(cell.offset) + ": wrong checksum"};
}

ChunkBuilder::ChunkBuilder(ChunkMeta meta) {
  const char* field = field_beyond_limit(meta, meta.tokens.size());
  HS_CHECK(field == nullptr, field);
  HS_CHECK(meta.codec == Codec::kF16 && (meta.flags & ~uint32_t{kFlagTail}) == 0,
           "only exact f16 chunks can be built");
  HS_CHECK(extend_prefix(meta.parent_key, meta.tokens) == meta.prefix_key,
           "a chunk's prefix key follows from its parent and its tokens");
  const Geometry g = geometry(meta.shape, meta.tokens.size());
  HS_CHECK(g.file_bytes <= kChunkBytesMax, "chunk larger than 1 GiB");
  header_.header_bytes = g.header_bytes;
  header_.file_bytes = g.file_bytes;
  uint64_t offset = g.header_bytes;
  for (size_t i = 0; i < size_t{meta.shape.n_layer} * 2; ++i) {
    header_.cells.push_back({offset, g.cell_bytes[i % 2], 0});
    offset += align_up(g.cell_bytes[i % 2]);
  }
  header_.meta = std::move(meta);

  // Not cleared: every byte of a cell is about to be written. seal() clears what lies between.
  constexpr std::align_val_t align{kAlign};
  bytes_ = std::shared_ptr<std::byte[]>(
      static_cast<std::byte*>(::operator new(header_.file_bytes, align)),
      [](std::byte* p) { ::operator delete(p, align); });
}

std::span<Half> ChunkBuilder::cell(uint32_t layer, Part part) {
  const CellEntry& entry = header_.cell(layer, part);
  return {reinterpret_cast<Half*>(bytes_.get() + entry.offset), entry.size_bytes / sizeof(Half)};
}

ChunkPtr ChunkBuilder::peek() const { return std::make_shared<EncodedChunk>(header_, bytes_); }

ChunkPtr ChunkBuilder::seal() && {
  const std::span<std::byte> all(bytes_.get(), header_.file_bytes);
  for (CellEntry& entry : header_.cells) {
    const uint64_t end = entry.offset + entry.size_bytes;
    std::memset(all.data() + end, 0, align_up(end) - end);
    entry.checksum = checksum(all.subspan(entry.offset, entry.size_bytes));
  }
  const auto header = all.first(header_.header_bytes);
  std::memset(header.data(), 0, header.size());
  save_fixed_part(header_, header);
  const auto& tokens = header_.meta.tokens;
  std::memcpy(header.data() + kFixedHeaderBytes, tokens.data(), tokens.size() * sizeof(Token));
  size_t at = geometry(header_.meta.shape, tokens.size()).table_at;
  for (const CellEntry& entry : header_.cells) {
    save(header, at, entry.offset);
    save(header, at + 8, entry.size_bytes);
    save(header, at + 16, entry.checksum);
    save(header, at + kAtEntryCodec, Codec::kF16);
    at += kTableEntryBytes;
  }
  const size_t covered = header.size() - kChecksumBytes;
  save(header, covered, checksum(header.first(covered)));
  return std::make_shared<EncodedChunk>(std::move(header_), std::move(bytes_));
}

}  // namespace headstart::kv
