#include "model/llama_log.h"

#include <ggml.h>
#include <llama.h>
#include <log.h>

#include <mutex>
#include <string>

#include "base/log.h"

namespace headstart::model {
namespace {

void forward(ggml_log_level level, const char* text, void*) {
  std::string line(text);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  if (line.empty()) return;
  // What libllama warns of (special tokens, template guesses) concerns whoever debugs a model.
  if (level == GGML_LOG_LEVEL_ERROR)
    spdlog::warn("{}", line);
  else
    spdlog::debug("{}", line);
}

}  // namespace

void quiet_libllama() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(forward, nullptr);  // ggml's too
    common_log_pause(common_log_main());
  });
}

}  // namespace headstart::model
