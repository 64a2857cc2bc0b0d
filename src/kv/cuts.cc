#include "kv/cuts.h"

#include "kv/chunk_id.h"

namespace headstart::kv {

std::optional<uint32_t> first_cut(std::span<const TextEnd> ends) {
  if (ends.size() < kChunkTokensMax) return std::nullopt;  // a later end would win
  uint32_t sentence = 0;
  for (uint32_t length = kChunkTokensMax; length >= kCutTokensMin; --length) {
    if (ends[length - 1] == TextEnd::kParagraph) return length;
    if (ends[length - 1] == TextEnd::kSentence && sentence == 0) sentence = length;
  }
  return sentence != 0 ? sentence : kCutTokensDefault;
}

}  // namespace headstart::kv
