#include "kernels/tile.h"

#include "kernels/target.h"
#include "kernels/tile_bf16.h"
#include "kernels/tile_f32.h"

namespace headstart::kernels {

const TileOps& tile_ops() {
  const TileOps* bf16 = nullptr;
  if (target_allowed(Target::kAvx512Bf16)) bf16 = tile_ops_avx512bf16();
  if (bf16 == nullptr && target_allowed(Target::kNeonBf16)) bf16 = tile_ops_neonbf16();
  return bf16 != nullptr ? *bf16 : tile_ops_f32();
}

std::vector<const TileOps*> all_tile_ops() {
  std::vector<const TileOps*> all{&tile_ops_f32()};
  for (const TileOps* ops :
       {tile_ops_avx512bf16(), tile_ops_avx512bf16_emulated(), tile_ops_neonbf16()}) {
    if (ops != nullptr) all.push_back(ops);
  }
  return all;
}

}  // namespace headstart::kernels
