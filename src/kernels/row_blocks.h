// kernels/row_blocks.h: the rows of a product in blocks whose size the compiler knows.
#pragma once

#include <cstddef>
#include <utility>

namespace headstart::kernels {

// f.operator()<kM>(row) for blocks of kRows rows, then for one of the rest.
template <size_t kRows, class F>
void for_row_blocks(size_t m, const F& f) {
  size_t row = 0;
  for (; row + kRows <= m; row += kRows) f.template operator()<kRows>(row);
  const size_t rest = m - row;
  [&]<size_t... kI>(std::index_sequence<kI...>) {
    ((rest == kI + 1 ? f.template operator()<kI + 1>(row) : void()), ...);
  }
  (std::make_index_sequence<kRows - 1>{});
}

}  // namespace headstart::kernels
