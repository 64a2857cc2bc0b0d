// base/rounding.h: whole numbers rounded up.
#pragma once

#include <cstdint>

namespace headstart {

constexpr uint32_t ceil_div(uint32_t n, uint32_t by) { return (n + by - 1) / by; }
constexpr uint32_t pad_to(uint32_t n, uint32_t multiple) {
  return ceil_div(n, multiple) * multiple;
}

}  // namespace headstart
