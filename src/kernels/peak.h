// kernels/peak.h: how fast a tile's instruction goes when nothing is in its way.
//
// Independent multiply-adds whose operands stay in registers, of the operand type that a tile
// multiplies: what a product or attention of that tile can reach at most.
//
//   units    floating-point operations: a product and a sum are two
//   threads  pure
#pragma once

#include <cstdint>

#include "kernels/tile.h"

namespace headstart::kernels {

// Does n_round rounds and returns their operations; 0 where this kind of tile has no such loop
// (one that is emulated, say).
uint64_t multiply_in_registers(const TileOps& ops, uint64_t n_round);

}  // namespace headstart::kernels
