#include "store/deliver.h"

#include <string>

namespace headstart::store {

using kv::Part;

Result<void> check_range(const CellRange& want, uint32_t n_layer) {
  if (want.layer_first < want.layer_end && want.layer_end <= n_layer) return {};
  return Error{Code::kInvalidArgument, "layers " + std::to_string(want.layer_first) + " to " +
                                           std::to_string(want.layer_end) +
                                           " of a chunk that has " + std::to_string(n_layer)};
}

std::span<const kv::Half> as_half(std::span<const std::byte> cell) {
  return {reinterpret_cast<const kv::Half*>(cell.data()), cell.size() / sizeof(kv::Half)};
}

Result<void> deliver(const kv::EncodedChunk& chunk, CellRange want, CellSink& sink) {
  HS_RETURN_IF_ERROR(sink.begin(chunk.header()));
  HS_RETURN_IF_ERROR(check_range(want, chunk.header().meta.shape.n_layer));
  for (uint32_t layer = want.layer_first; layer < want.layer_end; ++layer) {
    for (Part part : {Part::kKey, Part::kValue}) {
      sink.cell(layer, part, as_half(chunk.cell(layer, part)));
    }
  }
  return {};
}

Result<void> verify_chunk(const kv::EncodedChunk& chunk) {
  HS_ASSIGN_OR_RETURN(const kv::ChunkHeader header, kv::parse_header(chunk.bytes()));
  if (header.file_bytes != chunk.bytes().size()) {
    return Error{Code::kCorrupt, "chunk: longer or shorter than its header says"};
  }
  for (const kv::CellEntry& cell : header.cells) {
    HS_RETURN_IF_ERROR(kv::check_cell(cell, chunk.bytes().subspan(cell.offset, cell.size_bytes)));
  }
  return {};
}

}  // namespace headstart::store
