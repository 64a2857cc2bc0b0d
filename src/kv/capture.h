// kv/capture.h: K before RoPE and V of the newest tokens, until they are chunks.
//
// The live cache holds rotated and perhaps quantised rows, from which the stored form cannot be
// recovered; computing fills this buffer as well. It holds a window of consecutive positions,
// bounded by its capacity, and slides as chunks are taken from its front.
//
//   shapes   a row is f16 [n_head_kv, d_head]
//   threads  distinct rows may be written at once; everything else by one thread
#pragma once

#include <cstdint>
#include <vector>

#include "kv/chunk_format.h"

namespace headstart::kv {

class Capture {
 public:
  Capture(const KvShape& shape, uint32_t capacity);

  uint32_t capacity() const { return capacity_; }  // tokens
  uint32_t pos_first() const { return pos_first_; }
  // The window starts at `pos` from now on. Rows stay where they lie: with the position that it
  // had, they are still there.
  void set_start(uint32_t pos) { pos_first_ = pos; }
  bool holds(uint32_t pos) const { return pos >= pos_first_ && pos - pos_first_ < capacity_; }
  Half* row(uint32_t layer, Part part, uint32_t pos);  // CHECKs holds(pos)

  // Copies the first chunk.meta().n_token() rows of every cell out of the window.
  void copy_to(ChunkBuilder& chunk);
  // Moves the window's start on by n_token; rows up to pos_end are kept.
  void drop_front(uint32_t n_token, uint32_t pos_end);

 private:
  std::vector<Half>& cell(uint32_t layer, Part part) {
    return cells_[layer * 2 + static_cast<uint32_t>(part)];
  }
  KvShape shape_;
  uint32_t capacity_;
  uint32_t pos_first_ = 0;
  std::vector<std::vector<Half>> cells_;  // [n_layer * 2][capacity * row_values]
};

}  // namespace headstart::kv
