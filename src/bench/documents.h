// bench/documents.h: text to measure with.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "model/tokenizer.h"

namespace headstart::bench {

// Text that every Debian machine has, cut to about n_token tokens of this model. Errors: kNotFound.
Result<std::string> documents(const model::Tokenizer& tokenizer, size_t n_token);

// The first n_token tokens of these files, one after the other; a file that is not there has none.
// Errors: kNotFound.
Result<std::vector<Token>> tokens_of(std::span<const std::filesystem::path> files,
                                     const model::Tokenizer& tokenizer, size_t n_token);

}  // namespace headstart::bench
