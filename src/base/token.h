// base/token.h: the words that tokenizer, chunks and planning share.
#pragma once

#include <cstdint>

namespace headstart {

using Token = int32_t;

// What ends with a token: chunks are cut there (kv/cuts.h).
enum class TextEnd : uint8_t { kNone = 0, kSentence = 1, kParagraph = 2 };

}  // namespace headstart
