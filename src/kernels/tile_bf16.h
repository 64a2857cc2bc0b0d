// kernels/tile_bf16.h: kernels/tile.h with bf16 operands: pairs of k are multiplied and summed by
// one instruction.
#pragma once

#include "kernels/tile.h"

namespace headstart::kernels {

// AVX512_BF16; null where this CPU lacks it.
const TileOps* tile_ops_avx512bf16();
// ARM's BFDOT; null where this CPU lacks it.
const TileOps* tile_ops_neonbf16();

// The same packing and loops with the two bf16 instructions spelled out in AVX-512: slower than
// f32, and there so that tests can run them on CPUs without bf16. Null without AVX-512.
const TileOps* tile_ops_avx512bf16_emulated();

}  // namespace headstart::kernels
