// kernels/sparse_attention.h: attention over the key blocks that hold most of its mass.
//
// Queries whose positions share a block of kQueryBlock are a query block. Each of its query heads
// attends to a set of key blocks of its own: the first, the one before the query block and those
// that the query block lies in always, of the others the heaviest. How heavy they are is estimated
// from the exact softmax of a few of the queries. Results depend on all queries of a query block
// that the call has, but not on other query blocks or heads, which only share the packing of K,V.
//
//   shapes   outermost first
//   threads  pure; a scratch belongs to one thread
//   source   docs/decisions/0012-block-sparse.md
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace headstart::kernels {

inline constexpr uint32_t kQueryBlock = 128;    // positions, at multiples of it
inline constexpr uint32_t kKeyBlock = 64;       // likewise
inline constexpr uint32_t kSampledQueries = 8;  // of a query block: number (2 i + 1) n / 16 of n
// Of the mass; KeyBlocks::n_heavy counts at it whatever share is attended to, so that counts
// compare.
inline constexpr float kCountedShare = 0.98f;

// Queries [first, first + n) of a call.
struct QueryBlock {
  uint32_t first;
  uint32_t n;
};
std::vector<QueryBlock> query_blocks(std::span<const uint32_t> positions);

// Key blocks of one query head of a query block.
struct KeyBlocks {
  std::vector<uint8_t> active;  // [those that a query sees], 1: attended to
  uint32_t n_heavy = 0;         // the fewest that hold kCountedShare of the mass
};

// The fewest of the key blocks that hold `share` of all their mass, among them those always kept:
// 0, and from the one before `diagonal` on. All of them for a share of 1.
KeyBlocks choose_key_blocks(std::span<const float> mass, uint32_t diagonal, float share);

// For each query block and head, [n_query_block, n_group]. The attention has no window.
std::vector<KeyBlocks> select_key_blocks(const TileOps& ops, const Attention& attention,
                                         float share, AttentionScratch& scratch);

// As attend(), over the active key blocks, [n_query_block, n_group]; K,V of others are not read.
// With all of them active, to the bits of attend().
void attend_key_blocks(const TileOps& ops, const Attention& attention,
                       std::span<const KeyBlocks> keys, AttentionScratch& scratch);

}  // namespace headstart::kernels
