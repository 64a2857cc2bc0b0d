// server/sampling_fields.h: the fields that say how tokens are picked and where the text ends.
//
// Fields that are absent get OpenAI's defaults where OpenAI has the field, llama.cpp's where it has
// not (docs/decisions/0006-server.md).
//
//   threads  pure
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/sampler.h"
#include "server/json_fields.h"

namespace headstart::server {

inline constexpr size_t kStopBytesMax = 256;
inline constexpr size_t kBiasTextBytesMax = 256;

struct SamplingFields {
  model::SamplingOptions options;  // its seed is set by admission
  std::optional<uint32_t> seed;    // nothing: choose one
  // Biases of texts, for each token of them: llama-server's second form.
  std::vector<std::pair<std::string, float>> text_bias;
  std::vector<std::string> stop;
};

// `native`: llama-server's defaults throughout.
void parse_sampling(Fields& fields, bool native, SamplingFields& out);

}  // namespace headstart::server
