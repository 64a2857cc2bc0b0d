// model/llama_log.h: what ggml, libllama and common log goes to our logger, warnings and worse.
#pragma once

namespace headstart::model {

void quiet_libllama();  // idempotent

}  // namespace headstart::model
