#include "store/tier.h"

#include <algorithm>

namespace headstart::store {

ChunkSummary summary_of(const kv::ChunkMeta& meta, uint64_t size_bytes) {
  return {.id = meta.id(),
          .fingerprint = meta.fingerprint,
          .parent_key = meta.parent_key,
          .tokens = std::make_shared<const std::vector<Token>>(meta.tokens),
          .shape = meta.shape,
          .flags = meta.flags,
          .pos_first = meta.pos_first,
          .n_strict = meta.n_strict,
          .size_bytes = size_bytes,
          .compute_s = meta.compute_s};
}

uint32_t n_shared(std::span<const Token> a, std::span<const Token> b) {
  auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<uint32_t>(end - a.begin());
}

}  // namespace headstart::store
