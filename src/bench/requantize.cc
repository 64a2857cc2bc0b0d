#include "bench/requantize.h"

namespace headstart::bench {

Result<void> requantize(const std::filesystem::path& from, const std::filesystem::path& to,
                        llama_ftype type) {
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = type;
  params.allow_requantize = true;
  params.nthread = 1;
  if (llama_model_quantize(from.c_str(), to.c_str(), &params) != 0) {
    return Error{Code::kIo, "libllama cannot write " + to.string()};
  }
  return {};
}

}  // namespace headstart::bench
