#include "kernels/column_scale.h"

#include <bit>
#include <limits>

namespace headstart::kernels {

ColumnScale column_scale(uint32_t largest) {
  if (largest >= kInfinityBits) return {std::numeric_limits<float>::quiet_NaN(), 0, false};
  const float magnitude = std::bit_cast<float>(largest);
  if (magnitude < kSmallestMagnitude) return {0, 0, false};
  return {magnitude / 127, 127 / magnitude, true};
}

}  // namespace headstart::kernels
