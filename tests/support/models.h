// tests/support/models.h: where the real models lie that tests run.
//
// A test never skips for want of a model: it fails and says which command fetches it.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"

namespace headstart::test {

enum class RealModel : uint8_t { kSmolLm2, kQwen, kGemma3 };

// HEADSTART_TEST_SMOLLM2, _QWEN or _GEMMA3 if set, else the file that `./run model` fetches.
// Errors: kNotFound, naming the command.
Result<std::filesystem::path> model_path(RealModel model);

}  // namespace headstart::test
