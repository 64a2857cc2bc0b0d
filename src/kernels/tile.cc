#include "kernels/tile.h"

#include "kernels/tile_f32.h"

namespace headstart::kernels {

const TileOps& tile_ops() { return tile_ops_f32(); }

}  // namespace headstart::kernels
