#include "store/chunk_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <new>

#include "store/deliver.h"

namespace headstart::store {
namespace {

constexpr std::string_view kSuffix = ".hskv", kTempPrefix = ".tmp-";
constexpr size_t kKeyDigits = 64, kNumericDigits = 16;
constexpr std::align_val_t kCellAlign{64};
constexpr size_t kHeaderGuess = 8192;  // holds the header of a model of up to 100 layers

struct AlignedDelete {
  void operator()(std::byte* p) const { ::operator delete(p, kCellAlign); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

AlignedBytes allocate(uint64_t size_bytes) {
  return AlignedBytes(static_cast<std::byte*>(::operator new(size_bytes, kCellAlign)));
}

// The thread's own buffer, or a larger one for a cell that does not fit (at most kChunkBytesMax,
// as parse_header has checked).
std::span<std::byte> batch_buffer(uint64_t cell_bytes_max, AlignedBytes& large) {
  if (cell_bytes_max > kBatchBytes) {
    large = allocate(cell_bytes_max);
    return {large.get(), cell_bytes_max};
  }
  thread_local const AlignedBytes own = allocate(kBatchBytes);
  return {own.get(), kBatchBytes};
}

bool passed(const Clock& clock, Deadline deadline) {
  if (deadline == kNoDeadline) return false;
  return clock.now_s() >= std::chrono::duration<double>(deadline.time_since_epoch()).count();
}

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::string chunk_file_name(const kv::ChunkId& id) { return id.to_string() + std::string(kSuffix); }

std::optional<kv::ChunkId> parse_chunk_file_name(std::string_view name) {
  if (name.size() != kKeyDigits + 1 + kNumericDigits + kSuffix.size()) return std::nullopt;
  if (!name.ends_with(kSuffix) || name[kKeyDigits] != '-') return std::nullopt;
  std::string numeric(name.substr(kKeyDigits + 1, kNumericDigits));
  numeric.resize(kKeyDigits, '0');
  auto prefix_key = digest_from_hex(name.substr(0, kKeyDigits));
  auto numeric_id = digest_from_hex(numeric);
  if (!prefix_key.ok() || !numeric_id.ok()) return std::nullopt;
  return kv::ChunkId{*prefix_key, *numeric_id};
}

std::string temp_file_name(int64_t pid, uint64_t counter) {
  return std::string(kTempPrefix) + std::to_string(pid) + '-' + std::to_string(counter);
}

std::optional<int64_t> parse_temp_file_name(std::string_view name) {
  if (!name.starts_with(kTempPrefix)) return std::nullopt;
  name.remove_prefix(kTempPrefix.size());
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos || !parse_number(name.substr(dash + 1))) return std::nullopt;
  return parse_number(name.substr(0, dash));
}

Result<kv::ChunkHeader> read_header(const ReadFile& file) {
  std::array<std::byte, kHeaderGuess> guess;
  const auto start = std::span(guess).first(std::min<uint64_t>(guess.size(), file.size_bytes()));
  HS_RETURN_IF_ERROR(file.read_at(0, start));
  HS_ASSIGN_OR_RETURN(const uint64_t header_bytes, kv::header_size(start));
  std::vector<std::byte> longer;
  std::span<const std::byte> bytes = start;
  if (header_bytes > start.size()) {
    if (header_bytes > file.size_bytes()) return Error{Code::kCorrupt, "the file ends early"};
    longer.resize(header_bytes);
    HS_RETURN_IF_ERROR(file.read_at(0, longer));
    bytes = longer;
  }
  HS_ASSIGN_OR_RETURN(kv::ChunkHeader header, kv::parse_header(bytes));
  if (header.file_bytes != file.size_bytes()) {
    return Error{Code::kCorrupt, "the file is longer or shorter than its header says"};
  }
  return header;
}

Result<void> read_cells(const ReadFile& file, const kv::ChunkHeader& header, CellRange want,
                        CellSink& sink, const Clock& clock, Deadline deadline) {
  HS_RETURN_IF_ERROR(check_range(want, header.meta.shape.n_layer));
  const auto cells =
      std::span(header.cells)
          .subspan(size_t{want.layer_first} * 2, size_t{want.layer_end - want.layer_first} * 2);
  // K and V sizes repeat from layer to layer.
  AlignedBytes large;
  const auto buffer = batch_buffer(std::max(cells[0].size_bytes, cells[1].size_bytes), large);
  for (size_t i = 0; i < cells.size();) {
    if (passed(clock, deadline)) {
      return Error{Code::kUnavailable, "the deadline passed while the chunk was read"};
    }
    const uint64_t start = cells[i].offset;
    size_t end = i;
    while (end < cells.size() &&
           cells[end].offset + cells[end].size_bytes - start <= buffer.size()) {
      ++end;
    }
    const kv::CellEntry& last = cells[end - 1];
    HS_RETURN_IF_ERROR(file.read_at(start, buffer.first(last.offset + last.size_bytes - start)));
    for (; i < end; ++i) {
      const auto bytes = buffer.subspan(cells[i].offset - start, cells[i].size_bytes);
      HS_RETURN_IF_ERROR(kv::check_cell(cells[i], bytes));
      sink.cell(want.layer_first + static_cast<uint32_t>(i / 2), static_cast<kv::Part>(i % 2),
                as_half(bytes));
    }
  }
  return {};
}

Result<kv::ChunkPtr> read_chunk(const ReadFile& file) {
  HS_ASSIGN_OR_RETURN(kv::ChunkHeader header, read_header(file));
  std::shared_ptr<std::byte[]> bytes = allocate(header.file_bytes);
  HS_RETURN_IF_ERROR(file.read_at(0, {bytes.get(), header.file_bytes}));
  auto chunk = std::make_shared<const kv::EncodedChunk>(std::move(header), std::move(bytes));
  HS_RETURN_IF_ERROR(verify_chunk(*chunk));
  return chunk;
}

}  // namespace headstart::store
