// store/sequence_files.h: the stored chunks of one sequence as a folder of their own, which
// outlives eviction and can be carried to another machine.
//
// The folder holds one chunk file for each chunk and a list of the sequence's tokens; the list is
// written last, so that a folder without it is nothing. Formats: docs/formats/sequence.md.
//
//   units    sizes in bytes
//   threads  one writer for each folder
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/disk.h"
#include "base/hash.h"
#include "base/result.h"
#include "base/token.h"
#include "kv/chunk_format.h"

namespace headstart::store {

inline constexpr uint32_t kSequenceTokensMax = 1u << 24;

struct Sequence {
  Digest fingerprint{};  // of the model that computed it
  std::string salt;      // at most 256 bytes
  std::vector<Token> tokens;
};

// Returns the bytes of all files; replaces what the folder held. Errors: kExhausted, kIo.
Result<uint64_t> write_sequence(Disk& disk, const std::filesystem::path& dir,
                                const Sequence& sequence, std::span<const kv::ChunkPtr> chunks);
// Errors: kNotFound, kCorrupt, kUnsupported (a newer version's), kIo.
Result<Sequence> read_sequence(Disk& disk, const std::filesystem::path& dir);

struct SequenceChunks {
  std::vector<kv::ChunkPtr> chunks;  // those that are whole, in no order
  uint64_t size_bytes = 0;           // read
  uint32_t n_damaged = 0;
};
Result<SequenceChunks> read_sequence_chunks(Disk& disk, const std::filesystem::path& dir);

}  // namespace headstart::store
