// kernels/tile_int8.h: products of rows and weights as int8, with f32 scales for every block.
//
// A weight is what the file has, to the bit. A value of a row is rounded to 1/127 of the largest of
// its 32, as decoding does (kernels/matvec.h). A block of 32 (16 where the weights' type has a
// scale for each 16) is summed in integers; sums of blocks are f32, in ascending order of k. For
// weights that have levels (kernels/dequant_strip.h).
//
//   source   prefill's third kind of operands: docs/decisions/0015-int8-prefill.md
#pragma once

#include "kernels/tile.h"

namespace headstart::kernels {

// Null where the CPU or kernels/target.h has no such products.
const PanelOps* panel_ops_int8();
// The same bits with portable arithmetic, for tests. Null where the build has only scalars.
const PanelOps* panel_ops_int8_portable();

}  // namespace headstart::kernels
