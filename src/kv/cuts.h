// kv/cuts.h: where a prompt is cut into chunks.
//
// A chunk ends at the last message or paragraph end among its tokens 32 to 144, else at the last
// sentence end there, else at 128. A cut depends only on the chunk's own first 144 tokens, so
// equal prefixes are cut equally whatever follows; the tokens after the last final cut are the
// tail.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/token.h"

namespace headstart::kv {

inline constexpr uint32_t kCutTokensMin = 32;
inline constexpr uint32_t kCutTokensDefault = 128;

using headstart::TextEnd;  // of each token, from model/tokenizer.h

// The length of the first chunk, or nothing where fewer than kChunkTokensMax tokens are known and
// the cut could still change.
std::optional<uint32_t> first_cut(std::span<const TextEnd> ends);

}  // namespace headstart::kv
