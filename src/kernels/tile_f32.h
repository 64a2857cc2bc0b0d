// kernels/tile_f32.h: kernels/tile.h with f32 operands, for every instruction set.
#pragma once

#include "kernels/tile.h"

namespace headstart::kernels {

const TileOps& tile_ops_f32();

}  // namespace headstart::kernels
