// tests/support/models.h: where the real models lie that tests run.
//
// A test never skips for want of a model: it fails and says which command fetches it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>

#include "base/result.h"

namespace headstart::test {

enum class RealModel : uint8_t { kSmolLm2, kQwen, kGemma3 };

std::string to_string(RealModel model);            // as ./run model names it
void PrintTo(RealModel model, std::ostream* out);  // for GoogleTest

// HEADSTART_TEST_SMOLLM2, _QWEN or _GEMMA3 if set, else the file that `./run model` fetches.
// Errors: kNotFound, naming the command.
Result<std::filesystem::path> model_path(RealModel model);

}  // namespace headstart::test
