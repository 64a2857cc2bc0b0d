// bench/requantize.h: a copy of a model with its matrices in another type.
//
//   source   llama_model_quantize() of the pinned libllama
#pragma once

#include <llama.h>

#include <filesystem>

#include "base/result.h"

namespace headstart::bench {

// From whatever types the file has, so what they rounded away stays lost. Errors: kIo.
Result<void> requantize(const std::filesystem::path& from, const std::filesystem::path& to,
                        llama_ftype type);

}  // namespace headstart::bench
