// tests/support/tiny_gguf.h: writes a small random GGUF of a wanted architecture.
//
// The weights come from a seed alone and are scaled so that activations stay of order 1 and logits
// of order 2, as in a trained model: a wrong rope base, norm or mask then shows in the logits
// instead of drowning in saturated attention. The vocabulary is a valid SentencePiece one (256
// byte tokens, letters, a few merges, two chat markers), so text prompts work as well.
//
// To add an architecture: give it its tensors in tensors_of_layer() and its shape in tiny_model().
//
//   shapes   outermost first; ggml's ne is the reverse
//   source   what libllama reads: llama-arch.cpp, models/<architecture>.cpp
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "ggml.h"

namespace headstart::test {

enum class RopeScaling : uint8_t { kNone, kLinear, kYarn, kLlama3 };

struct TinyModel {
  std::string architecture = "llama";  // also one that nobody knows, for tests of the error
  std::string name = "tiny";           // general.name
  uint64_t seed = 1;

  uint32_t n_layer = 4;
  uint32_t d_model = 128;
  uint32_t n_head = 4;
  uint32_t n_head_kv = 2;
  uint32_t d_head = 32;
  uint32_t n_ff = 256;
  uint32_t n_vocab = 512;  // at least kTinyVocabMin
  uint32_t n_ctx_train = 2048;

  // Of every matrix, token_embd and output included. Row lengths must be multiples of its block:
  // d_model, n_ff and n_head * d_head of 256 for the K types, of 32 for the others.
  ggml_type weight_type = GGML_TYPE_F32;
  bool tied_head = false;  // no output.weight

  float rope_freq_base = 10000.0f;
  RopeScaling rope_scaling = RopeScaling::kNone;
  float rope_factor = 4.0f;        // linear and yarn
  uint32_t rope_n_ctx_orig = 512;  // yarn

  bool qkv_bias = false;
  bool qk_norm = false;
  bool post_norm = false;
  uint32_t sliding_window = 0;  // 0: the key is not written

  // A Jinja template (tokenizer.chat_template); empty: none. kTemplateWithBos begins with BOS.
  std::string chat_template;
  // Names of tensors and of keys that are left out: damaged files for tests of the error.
  std::vector<std::string> omit;
};

// Architecture, type and what is not the default, in letters, digits and _: a name for a test case.
std::string to_string(const TinyModel& model);
void PrintTo(const TinyModel& model, std::ostream* out);  // for GoogleTest

// Tokens of the vocabulary that every tiny model has.
inline constexpr uint32_t kTinyVocabMin = 384;
inline constexpr Token kTinyUnknown = 0, kTinyBos = 1, kTinyEos = 2;
inline constexpr Token kTinyFirstByte = 3;
inline constexpr Token kTinyImStart = 259, kTinyImEnd = 260;

// A template that renders BOS itself, so that encoding must not add a second one.
extern const char* const kTemplateWithBos;

// The smallest model of llama, qwen2, qwen3 or gemma3 with what that architecture needs; gemma3 has
// 7 layers, the sixth of which attends fully, and a window of 64. With a K type the row lengths are
// multiples of 256.
TinyModel tiny_model(std::string_view architecture, ggml_type weight_type = GGML_TYPE_F32);

// Writes the model; aborts where the shape does not fit the type or the file cannot be written.
void write_tiny_gguf(const TinyModel& model, const std::filesystem::path& file);

// A prompt of byte tokens behind BOS.
std::vector<Token> tiny_text(std::string_view text);
// n random ones, a newline now and then, so that chunks end at different places.
std::vector<Token> tiny_prompt(uint32_t n, uint32_t seed);

}  // namespace headstart::test
