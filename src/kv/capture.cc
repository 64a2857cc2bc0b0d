#include "kv/capture.h"

#include <cstring>

namespace headstart::kv {

Capture::Capture(const KvShape& shape, uint32_t capacity) : shape_(shape), capacity_(capacity) {
  cells_.resize(size_t{shape.n_layer} * 2);
  for (uint32_t layer = 0; layer < shape.n_layer; ++layer) {
    for (Part part : {Part::kKey, Part::kValue}) {
      cell(layer, part).resize(capacity * shape.row_values(part));
    }
  }
}

Half* Capture::row(uint32_t layer, Part part, uint32_t pos) {
  HS_CHECK(holds(pos), "a position outside the capture window");
  return cell(layer, part).data() + (pos - pos_first_) * shape_.row_values(part);
}

void Capture::copy_to(ChunkBuilder& chunk) {
  for (uint32_t layer = 0; layer < shape_.n_layer; ++layer) {
    for (Part part : {Part::kKey, Part::kValue}) {
      const std::span<Half> to = chunk.cell(layer, part);
      std::memcpy(to.data(), cell(layer, part).data(), to.size_bytes());
    }
  }
}

void Capture::drop_front(uint32_t n_token, uint32_t pos_end) {
  const uint32_t kept = pos_end - pos_first_ - n_token;
  for (uint32_t layer = 0; layer < shape_.n_layer; ++layer) {
    for (Part part : {Part::kKey, Part::kValue}) {
      Half* data = cell(layer, part).data();
      const uint64_t row = shape_.row_values(part);
      std::memmove(data, data + n_token * row, kept * row * sizeof(Half));
    }
  }
  pos_first_ += n_token;
}

}  // namespace headstart::kv
