// bench/documents.h: text to measure with.
#pragma once

#include <string>

#include "base/result.h"
#include "model/tokenizer.h"

namespace headstart::bench {

// Text that every Debian machine has, cut to about n_token tokens of this model. Errors: kNotFound.
Result<std::string> documents(const model::Tokenizer& tokenizer, size_t n_token);

}  // namespace headstart::bench
