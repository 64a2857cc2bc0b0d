#include "tests/support/models.h"

#include <cstdlib>
#include <ostream>
#include <string>

namespace headstart::test {
namespace {

struct Entry {
  const char* variable;
  const char* name;  // of ./run model
  const char* file;
};

Entry entry(RealModel model) {
  switch (model) {
    case RealModel::kSmolLm2:
      return {"HEADSTART_TEST_SMOLLM2", "smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"};
    case RealModel::kQwen:
      return {"HEADSTART_TEST_QWEN", "qwen", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"};
    case RealModel::kGemma3: return {"HEADSTART_TEST_GEMMA3", "gemma3", "gemma-3-270m-q4_k_m.gguf"};
  }
  HS_CHECK(false, "no such model");
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::filesystem::path models_dir() {
  if (const char* dir = variable("HEADSTART_MODELS")) return dir;
  if (const char* cache = variable("XDG_CACHE_HOME")) {
    return std::filesystem::path(cache) / "headstart" / "models";
  }
  const char* home = variable("HOME");
  return std::filesystem::path(home ? home : "/") / ".cache" / "headstart" / "models";
}

}  // namespace

std::string to_string(RealModel model) { return entry(model).name; }

void PrintTo(RealModel model, std::ostream* out) { *out << to_string(model); }

Result<std::filesystem::path> model_path(RealModel model) {
  const Entry known = entry(model);
  const char* given = variable(known.variable);
  const std::filesystem::path file =
      given ? std::filesystem::path(given) : models_dir() / known.file;
  if (std::filesystem::exists(file)) return file;
  return Error{Code::kNotFound,
               file.string() + " is missing: run `./run model " + known.name + "`"};
}

}  // namespace headstart::test
