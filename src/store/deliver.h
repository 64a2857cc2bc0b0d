// store/deliver.h: hands the cells of a chunk in memory to a sink. Shared by the RAM tier and by
// the store, for chunks that still wait to be written.
#pragma once

#include "base/result.h"
#include "store/tier.h"

namespace headstart::store {

// Errors: kInvalidArgument unless `want` names layers of the chunk.
Result<void> check_range(const CellRange& want, uint32_t n_layer);
// Errors: as check_range; what the sink's begin() returned.
Result<void> deliver(const kv::EncodedChunk& chunk, CellRange want, CellSink& sink);
// Checks the header and every cell. Errors: kCorrupt, kUnsupported.
Result<void> verify_chunk(const kv::EncodedChunk& chunk);

std::span<const kv::Half> as_half(std::span<const std::byte> cell);

}  // namespace headstart::store
