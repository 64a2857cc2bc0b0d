#include "tests/support/tiny_gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <ostream>
#include <random>

#include "base/check.h"
#include "gguf.h"

namespace headstart::test {
namespace {

// SplitMix64 and Box-Muller: the same numbers on every machine and standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }

 private:
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // outermost first
  float mean = 0.0f;
  float deviation = 0.0f;
};

// A matrix whose product with a vector of unit RMS has RMS `gain`.
TensorSpec matrix(std::string name, int64_t n_out, int64_t n_in, float gain) {
  return {std::move(name), {n_out, n_in}, 0.0f, gain / std::sqrt(static_cast<float>(n_in))};
}

TensorSpec vector(std::string name, int64_t size, float mean, float deviation) {
  return {std::move(name), {size}, mean, deviation};
}

std::vector<TensorSpec> tensors_of_layer(const TinyModel& m, uint32_t layer) {
  const int64_t d_q = int64_t{m.n_head} * m.d_head, d_kv = int64_t{m.n_head_kv} * m.d_head;
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  std::vector<TensorSpec> specs = {
      vector(prefix + "attn_norm.weight", m.d_model, 1.0f, 0.2f),
      matrix(prefix + "attn_q.weight", d_q, m.d_model, 1.2f),
      matrix(prefix + "attn_k.weight", d_kv, m.d_model, 1.2f),
      matrix(prefix + "attn_v.weight", d_kv, m.d_model, 1.0f),
      matrix(prefix + "attn_output.weight", m.d_model, d_q, 1.0f),
      vector(prefix + "ffn_norm.weight", m.d_model, 1.0f, 0.2f),
      matrix(prefix + "ffn_gate.weight", m.n_ff, m.d_model, 1.0f),
      matrix(prefix + "ffn_up.weight", m.n_ff, m.d_model, 1.0f),
      matrix(prefix + "ffn_down.weight", m.d_model, m.n_ff, 1.5f),
  };
  if (m.qkv_bias) {
    specs.push_back(vector(prefix + "attn_q.bias", d_q, 0.0f, 0.5f));
    specs.push_back(vector(prefix + "attn_k.bias", d_kv, 0.0f, 0.5f));
    specs.push_back(vector(prefix + "attn_v.bias", d_kv, 0.0f, 0.3f));
  }
  if (m.qk_norm) {
    specs.push_back(vector(prefix + "attn_q_norm.weight", m.d_head, 1.2f, 0.2f));
    specs.push_back(vector(prefix + "attn_k_norm.weight", m.d_head, 1.2f, 0.2f));
  }
  if (m.post_norm) {
    specs.push_back(vector(prefix + "post_attention_norm.weight", m.d_model, 0.6f, 0.1f));
    specs.push_back(vector(prefix + "post_ffw_norm.weight", m.d_model, 0.6f, 0.1f));
  }
  return specs;
}

std::vector<TensorSpec> all_tensors(const TinyModel& m) {
  // gemma3 multiplies embeddings by sqrt(d_model).
  const float embedding_gain = m.tied_head || m.architecture == "gemma3" ? 2.0f : 0.0f;
  std::vector<TensorSpec> specs = {
      embedding_gain > 0 ? matrix("token_embd.weight", m.n_vocab, m.d_model, embedding_gain)
                         : TensorSpec{"token_embd.weight", {m.n_vocab, m.d_model}, 0.0f, 1.0f},
      // Of both signs with a tied head, or each token's own logit would drown all others.
      vector("output_norm.weight", m.d_model, m.tied_head ? 0.0f : 1.0f, m.tied_head ? 1.0f : 0.2f),
  };
  if (!m.tied_head) specs.push_back(matrix("output.weight", m.n_vocab, m.d_model, 2.0f));
  for (uint32_t layer = 0; layer < m.n_layer; ++layer) {
    for (TensorSpec& spec : tensors_of_layer(m, layer)) specs.push_back(std::move(spec));
  }
  return specs;
}

// Llama 3's smoothed factors: 1 for short wavelengths, `factor` for long ones.
std::vector<float> llama3_factors(const TinyModel& m) {
  const float low_freq = 1.0f, high_freq = 4.0f, factor = 8.0f;
  const float n_ctx_orig = static_cast<float>(m.rope_n_ctx_orig);
  std::vector<float> factors;
  for (uint32_t i = 0; i < m.d_head; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(m.d_head);
    const float wavelength =
        2.0f * std::numbers::pi_v<float> * std::pow(m.rope_freq_base, exponent);
    const float share = (n_ctx_orig / wavelength - low_freq) / (high_freq - low_freq);
    const float smooth = std::clamp(share, 0.0f, 1.0f);
    factors.push_back(1.0f / ((1.0f - smooth) / factor + smooth));
  }
  return factors;
}

struct ContextFree {
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(gguf_context* context) const { gguf_free(context); }
};
using GgmlContext = std::unique_ptr<ggml_context, ContextFree>;
using GgufContext = std::unique_ptr<gguf_context, ContextFree>;

bool omitted(const TinyModel& m, const std::string& name) {
  return std::ranges::find(m.omit, name) != m.omit.end();
}

// Collects keys and tensors; what the model omits is dropped here.
class Writer {
 public:
  explicit Writer(const TinyModel& model)
      : model_(model), random_(model.seed), gguf_(gguf_init_empty()) {
    const size_t n_tensor = size_t{model.n_layer} * 16 + 8;
    ggml_init_params params = {n_tensor * ggml_tensor_overhead(), nullptr, true};
    tensors_.reset(ggml_init(params));
  }

  void set(const std::string& key, uint32_t value) {
    if (!omitted(model_, key)) gguf_set_val_u32(gguf_.get(), key.c_str(), value);
  }
  void set(const std::string& key, float value) {
    if (!omitted(model_, key)) gguf_set_val_f32(gguf_.get(), key.c_str(), value);
  }
  void set(const std::string& key, bool value) {
    if (!omitted(model_, key)) gguf_set_val_bool(gguf_.get(), key.c_str(), value);
  }
  void set(const std::string& key, const char* value) {
    if (!omitted(model_, key)) gguf_set_val_str(gguf_.get(), key.c_str(), value);
  }
  gguf_context* gguf() { return gguf_.get(); }

  void add_random(const TensorSpec& spec) {
    std::vector<float> values(count(spec));
    for (float& value : values) value = spec.mean + spec.deviation * random_.normal();
    add(spec, spec.shape.size() == 2 ? model_.weight_type : GGML_TYPE_F32, values);
  }
  void add_values(const std::string& name, const std::vector<float>& values) {
    add({name, {static_cast<int64_t>(values.size())}}, GGML_TYPE_F32, values);
  }

  void write(const std::filesystem::path& file) {
    HS_CHECK(gguf_write_to_file(gguf_.get(), file.c_str(), false), "cannot write the tiny GGUF");
  }

 private:
  static size_t count(const TensorSpec& spec) {
    size_t n = 1;
    for (int64_t extent : spec.shape) n *= static_cast<size_t>(extent);
    return n;
  }

  void add(const TensorSpec& spec, ggml_type type, const std::vector<float>& values) {
    if (omitted(model_, spec.name)) return;
    const int64_t n_row = spec.shape.size() == 2 ? spec.shape[0] : 1;
    const int64_t row = spec.shape.back();
    HS_CHECK(row % ggml_blck_size(type) == 0, "a row is no multiple of the type's block");
    ggml_tensor* tensor = spec.shape.size() == 2
                              ? ggml_new_tensor_2d(tensors_.get(), type, row, n_row)
                              : ggml_new_tensor_1d(tensors_.get(), type, row);
    ggml_set_name(tensor, spec.name.c_str());
    gguf_add_tensor(gguf_.get(), tensor);
    std::vector<std::byte>& bytes = bytes_.emplace_back(ggml_nbytes(tensor));
    const size_t written =
        ggml_quantize_chunk(type, values.data(), bytes.data(), 0, n_row, row, nullptr);
    HS_CHECK(written == bytes.size(), "the quantised size differs");
    gguf_set_tensor_data(gguf_.get(), spec.name.c_str(), bytes.data());
  }

  const TinyModel& model_;
  Random random_;
  GgufContext gguf_;
  GgmlContext tensors_;
  std::vector<std::vector<std::byte>> bytes_;  // gguf points into them until it is written
};

void set_shape(const TinyModel& m, Writer& out) {
  const std::string prefix = m.architecture + ".";
  out.set("general.architecture", m.architecture.c_str());
  out.set("general.name", m.name.c_str());
  out.set(prefix + "context_length", m.n_ctx_train);
  out.set(prefix + "embedding_length", m.d_model);
  out.set(prefix + "block_count", m.n_layer);
  out.set(prefix + "feed_forward_length", m.n_ff);
  out.set(prefix + "attention.head_count", m.n_head);
  out.set(prefix + "attention.head_count_kv", m.n_head_kv);
  out.set(prefix + "attention.key_length", m.d_head);
  out.set(prefix + "attention.value_length", m.d_head);
  out.set(prefix + "attention.layer_norm_rms_epsilon", 1e-5f);
  out.set(prefix + "rope.dimension_count", m.d_head);
  out.set(prefix + "rope.freq_base", m.rope_freq_base);
  out.set(prefix + "vocab_size", m.n_vocab);
  if (m.sliding_window > 0) out.set(prefix + "attention.sliding_window", m.sliding_window);
  if (m.rope_scaling == RopeScaling::kLinear || m.rope_scaling == RopeScaling::kYarn) {
    const bool yarn = m.rope_scaling == RopeScaling::kYarn;
    out.set(prefix + "rope.scaling.type", yarn ? "yarn" : "linear");
    out.set(prefix + "rope.scaling.factor", m.rope_factor);
    if (yarn) out.set(prefix + "rope.scaling.original_context_length", m.rope_n_ctx_orig);
  }
}

// Pieces by score: letters, then pairs, then words, so that longer merges win. The space is ▁.
std::vector<std::string> pieces() {
  std::vector<std::string> result = {"▁"};
  for (char c = 'a'; c <= 'z'; ++c) result.emplace_back(1, c);
  for (char c = 'A'; c <= 'Z'; ++c) result.emplace_back(1, c);
  for (char c : std::string(".,;:!?'\"()-")) result.emplace_back(1, c);
  for (const char* merge :
       {"th", "he",  "in",   "er",  "an",  "re",   "on", "at",  "en",  "nd", "▁t",  "▁a",
        "▁s", "▁th", "▁the", "ing", "▁an", "▁and", "▁o", "▁of", "▁to", "▁i", "▁in", "▁is"}) {
    result.emplace_back(merge);
  }
  return result;
}

void set_vocabulary(const TinyModel& m, Writer& out) {
  enum Type : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };
  std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {kUnknown, kControl, kControl};
  std::vector<float> scores = {0, 0, 0};
  const auto add = [&](std::string text, int32_t type, float score) {
    texts.push_back(std::move(text));
    types.push_back(type);
    scores.push_back(score);
  };
  for (int byte = 0; byte < 256; ++byte) {
    std::array<char, 8> text;
    std::snprintf(text.data(), text.size(), "<0x%02X>", static_cast<unsigned>(byte));
    add(text.data(), kByte, 0.0f);
  }
  add("<|im_start|>", kControl, 0.0f);
  add("<|im_end|>", kControl, 0.0f);
  float score = -1000.0f;
  for (std::string& piece : pieces()) add(std::move(piece), kNormal, score += 1.0f);
  HS_CHECK(texts.size() <= kTinyVocabMin && m.n_vocab >= kTinyVocabMin, "n_vocab is too small");
  while (texts.size() < m.n_vocab) {
    add("[w" + std::to_string(texts.size()) + "]", kNormal, -1e6f);
  }

  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  out.set("tokenizer.ggml.model", "llama");
  gguf_set_arr_str(out.gguf(), "tokenizer.ggml.tokens", pointers.data(), pointers.size());
  gguf_set_arr_data(out.gguf(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                    types.size());
  gguf_set_arr_data(out.gguf(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(),
                    scores.size());
  out.set("tokenizer.ggml.bos_token_id", uint32_t{kTinyBos});
  out.set("tokenizer.ggml.eos_token_id", uint32_t{kTinyEos});
  out.set("tokenizer.ggml.eot_token_id", uint32_t{kTinyImEnd});
  out.set("tokenizer.ggml.unknown_token_id", uint32_t{kTinyUnknown});
  out.set("tokenizer.ggml.add_bos_token", true);
  if (!m.chat_template.empty()) out.set("tokenizer.chat_template", m.chat_template.c_str());
}

bool is_k_type(ggml_type type) { return ggml_blck_size(type) == 256; }

}  // namespace

const char* const kTemplateWithBos =
    "{{ bos_token }}{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

std::string to_string(const TinyModel& model) {
  std::string text = model.architecture + "_" + ggml_type_name(model.weight_type);
  switch (model.rope_scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear: text += "_linear"; break;
    case RopeScaling::kYarn: text += "_yarn"; break;
    case RopeScaling::kLlama3: text += "_llama3"; break;
  }
  if (model.n_layer > 7) text.append("_").append(std::to_string(model.n_layer)).append("layers");
  if (model.tied_head) text += "_tied";
  if (model.sliding_window > 0) text += "_window" + std::to_string(model.sliding_window);
  return text;
}

void PrintTo(const TinyModel& model, std::ostream* out) { *out << to_string(model); }

TinyModel tiny_model(std::string_view architecture, ggml_type weight_type) {
  TinyModel model;
  model.architecture = architecture;
  model.name = "tiny " + model.architecture;
  model.weight_type = weight_type;
  if (is_k_type(weight_type)) {
    model.d_model = 256;
    model.d_head = 64;
  }
  if (architecture == "qwen2") {
    model.qkv_bias = true;
    model.rope_freq_base = 1000000.0f;
  } else if (architecture == "qwen3") {
    model.qk_norm = true;
    model.d_head = 64;  // wider in sum than d_model where that is 128, as in Qwen3 0.6B
    model.rope_freq_base = 1000000.0f;
  } else if (architecture == "gemma3") {
    model.n_layer = 7;
    model.n_head_kv = 1;
    model.d_head = 64;
    model.qk_norm = true;
    model.post_norm = true;
    model.tied_head = true;
    model.sliding_window = 64;
    model.rope_freq_base = 1000000.0f;
  }
  return model;
}

void write_tiny_gguf(const TinyModel& model, const std::filesystem::path& file) {
  Writer out(model);
  set_shape(model, out);
  set_vocabulary(model, out);
  for (const TensorSpec& spec : all_tensors(model)) out.add_random(spec);
  if (model.rope_scaling == RopeScaling::kLlama3) {
    out.add_values("rope_freqs.weight", llama3_factors(model));
  }
  out.write(file);
}

std::vector<Token> tiny_text(std::string_view text) {
  std::vector<Token> tokens{kTinyBos};
  for (const char c : text) tokens.push_back(kTinyFirstByte + static_cast<unsigned char>(c));
  return tokens;
}

std::vector<Token> tiny_prompt(uint32_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens{kTinyBos};
  while (tokens.size() < n)
    tokens.push_back(kTinyFirstByte +
                     static_cast<Token>(random() % 17 == 0 ? '\n' : random() % 256));
  return tokens;
}

}  // namespace headstart::test
