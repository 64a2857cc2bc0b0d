// requantize FROM TO: writes the model as Q4_0, the type that ggml repacks for every CPU.
#include <cstdio>

#include "bench/requantize.h"
#include "model/llama_log.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: requantize FROM.gguf TO.gguf\n");
    return 2;
  }
  headstart::model::quiet_libllama();
  const auto done = headstart::bench::requantize(argv[1], argv[2], LLAMA_FTYPE_MOSTLY_Q4_0);
  if (!done.ok()) std::fprintf(stderr, "requantize: %s\n", done.error().message.c_str());
  return done.ok() ? 0 : 1;
}
