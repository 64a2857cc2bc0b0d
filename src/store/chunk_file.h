// store/chunk_file.h: one chunk as one file: its name, and reading it with everything verified.
//
//   threads  pure but for a buffer of kBatchBytes that each reading thread keeps
//   source   docs/formats/chunk.md
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/disk.h"
#include "store/tier.h"

namespace headstart::store {

inline constexpr size_t kBatchBytes = size_t{256} << 10;  // read at once; small enough for L2

std::string chunk_file_name(const kv::ChunkId& id);
// The id that a name of that form stands for, as far as the name tells: only the first 8 bytes of
// the numeric identity are known. Nothing for any other name.
std::optional<kv::ChunkId> parse_chunk_file_name(std::string_view name);

std::string temp_file_name(int64_t pid, uint64_t counter);
std::optional<int64_t> parse_temp_file_name(std::string_view name);  // the writer's process id

// Errors of all three: kCorrupt (damaged, or longer or shorter than it says), kUnsupported (a newer
// version's), kIo.
Result<kv::ChunkHeader> read_header(const ReadFile& file);
// Hands the wanted cells to `sink` in order. Errors: also kUnavailable past the deadline.
Result<void> read_cells(const ReadFile& file, const kv::ChunkHeader& header, CellRange want,
                        CellSink& sink, const Clock& clock, Deadline deadline);
Result<kv::ChunkPtr> read_chunk(const ReadFile& file);

}  // namespace headstart::store
