#include "model/arch.h"

#include <ggml.h>

#include <array>
#include <cmath>

namespace headstart::model {
namespace {

// Every architecture, in the order in which errors list them.
std::array<const Arch*, 4> all_archs() {
  return {&llama_arch(), &qwen2_arch(), &qwen3_arch(), &gemma3_arch()};
}

// Limits on what a GGUF may claim, far above any real model, so that sizes cannot overflow.
constexpr uint32_t kLayersMax = 1024;
constexpr uint32_t kDimMax = 1u << 20;
constexpr uint32_t kContextMax = 1u << 24;
constexpr uint32_t kHeadSizeMax = 1024;

class Reader {
 public:
  Reader(const GgufFile& gguf, std::string_view arch)
      : gguf_(gguf), prefix_(std::string(arch) + ".") {}

  uint32_t required(const char* key, uint32_t max) { return u32(key, std::nullopt, max); }
  uint32_t u32(const char* key, std::optional<uint32_t> fallback, uint32_t max) {
    auto value = gguf_.u32(prefix_ + key);
    if (!value.ok()) return fail(value.error()), 1;
    const auto found = *value ? *value : fallback;
    if (!found) return fail({Code::kCorrupt, gguf_.path().string() + " lacks " + prefix_ + key}), 1;
    if (*value && (*found == 0 || *found > max)) {
      return fail({Code::kCorrupt, gguf_.path().string() + ": " + prefix_ + key + " = " +
                                       std::to_string(*found) + " is out of range"}),
             1;
    }
    return *found;
  }
  float f32(const char* key, float fallback) {
    auto value = gguf_.f32(prefix_ + key);
    if (!value.ok()) return fail(value.error()), fallback;
    const float found = value->value_or(fallback);
    if (!std::isfinite(found)) {
      fail({Code::kCorrupt, gguf_.path().string() + ": " + prefix_ + key + " is not finite"});
    }
    return found;
  }
  std::string string(const char* key, const char* fallback) {
    auto value = gguf_.string(prefix_ + key);
    if (!value.ok()) return fail(value.error()), fallback;
    return value->value_or(fallback);
  }
  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  const GgufFile& gguf_;
  std::string prefix_;
  std::optional<Error> error_;
};

// Linear and YaRN scaling as libllama derives them from the GGUF's keys.
void read_rope(const GgufFile& gguf, Reader& read, ModelParams& p) {
  kernels::RopeConfig& rope = p.rope;
  rope.d_head = p.d_head_k;
  rope.n_rot = read.u32("rope.dimension_count", p.d_head_k, p.d_head_k);
  rope.freq_base = read.f32("rope.freq_base", 10000.0f);
  rope.n_ctx_orig = read.u32("rope.scaling.original_context_length", p.n_ctx_train, kContextMax);
  const std::string type = read.string("rope.scaling.type", "linear");
  const float factor = read.f32("rope.scaling.factor", read.f32("rope.scale_linear", 0.0f));
  const float attn_factor = read.f32("rope.scaling.attn_factor", 1.0f);
  rope.beta_fast = read.f32("rope.scaling.yarn_beta_fast", 32.0f);
  rope.beta_slow = read.f32("rope.scaling.yarn_beta_slow", 1.0f);
  if (type != "none" && type != "linear" && type != "yarn") {
    return read.fail({Code::kUnsupported, gguf.path().string() + " scales RoPE by '" + type +
                                              "'; supported: none, linear, yarn"});
  }
  if (factor < 0.0f || rope.freq_base <= 0.0f || rope.n_rot % 2 != 0) {
    return read.fail({Code::kCorrupt, gguf.path().string() + ": RoPE settings out of range"});
  }
  rope.freq_scale = type == "none" || factor == 0.0f ? 1.0f : 1.0f / factor;
  rope.attn_factor = attn_factor;
  if (type == "yarn") {
    rope.ext_factor = 1.0f;
    // The table multiplies by 1 + 0.1 ln(factor) once more; libllama cancels that, so do we.
    const float stretch = 1.0f / rope.freq_scale;
    const float magnitude = stretch <= 1.0f ? 1.0f : 0.1f * std::log(stretch) + 1.0f;
    rope.attn_factor *= magnitude * (1.0f / (1.0f + 0.1f * std::log(stretch)));
  }
}

}  // namespace

Result<const Arch*> find_arch(std::string_view name) {
  std::string supported;
  for (const Arch* arch : all_archs()) {
    if (arch->name() == name) return arch;
    supported += (supported.empty() ? "" : ", ") + std::string(arch->name());
  }
  return Error{Code::kUnsupported, "the model's architecture '" + std::string(name) +
                                       "' is not supported; supported: " + supported};
}

Result<ModelParams> read_params(const GgufFile& gguf, const Arch& arch) {
  ModelParams p;
  p.architecture = arch.name();
  HS_ASSIGN_OR_RETURN(const auto name, gguf.string("general.name"));
  p.name = name.value_or(gguf.path().stem().string());
  Reader read(gguf, arch.name());
  p.n_layer = read.required("block_count", kLayersMax);
  p.d_model = read.required("embedding_length", kDimMax);
  p.n_ff = read.required("feed_forward_length", kDimMax);
  p.n_ctx_train = read.required("context_length", kContextMax);
  p.n_head = read.required("attention.head_count", kLayersMax);
  p.n_head_kv = read.u32("attention.head_count_kv", p.n_head, kLayersMax);
  p.d_head_k = read.u32("attention.key_length", p.d_model / p.n_head, kHeadSizeMax);
  p.d_head_v = read.u32("attention.value_length", p.d_model / p.n_head, kHeadSizeMax);
  p.norm_eps = read.f32("attention.layer_norm_rms_epsilon", 1e-5f);
  p.attention_scale = 1.0f / std::sqrt(static_cast<float>(p.d_head_k));
  p.windowed.assign(p.n_layer, false);
  read_rope(gguf, read, p);
  if (read.error()) return *read.error();
  if (p.d_head_k == 0 || p.d_head_k > kHeadSizeMax || p.d_head_v > kHeadSizeMax ||
      p.norm_eps < 0.0f) {
    return Error{Code::kCorrupt, gguf.path().string() + ": head size or norm epsilon out of range"};
  }
  if (p.n_head % p.n_head_kv != 0 || p.d_head_k != p.d_head_v) {
    return Error{Code::kUnsupported, gguf.path().string() + ": " + std::to_string(p.n_head) + "/" +
                                         std::to_string(p.n_head_kv) +
                                         " heads, or K and V of different sizes"};
  }
  if (ggml_tensor* factors = gguf.tensor("rope_freqs.weight")) {
    if (factors->type != GGML_TYPE_F32 || ggml_nelements(factors) != p.rope.n_rot / 2) {
      return Error{Code::kCorrupt, gguf.path().string() + ": rope_freqs.weight has a wrong shape"};
    }
    const auto* values = reinterpret_cast<const float*>(gguf.data(factors).data());
    p.rope.freq_factors.assign(values, values + p.rope.n_rot / 2);
  }
  p.rope_windowed = p.rope;
  HS_RETURN_IF_ERROR(arch.read(gguf, p));
  return p;
}

std::vector<TensorSpec> Arch::layer_tensors(const ModelParams& p) const {
  using W = LayerWeights;
  const int64_t d = p.d_model, q = int64_t{p.n_head} * p.d_head_k,
                kv = int64_t{p.n_head_kv} * p.d_head_k, ff = p.n_ff;
  return {
      {"attn_norm.weight", &W::attn_norm, 0, d}, {"attn_q.weight", &W::wq, q, d},
      {"attn_k.weight", &W::wk, kv, d},          {"attn_v.weight", &W::wv, kv, d},
      {"attn_output.weight", &W::wo, d, q},      {"attn_q.bias", &W::bq, 0, q, false},
      {"attn_k.bias", &W::bk, 0, kv, false},     {"attn_v.bias", &W::bv, 0, kv, false},
      {"attn_output.bias", &W::bo, 0, d, false}, {"ffn_norm.weight", &W::ffn_norm, 0, d},
      {"ffn_gate.weight", &W::gate, ff, d},      {"ffn_up.weight", &W::up, ff, d},
      {"ffn_down.weight", &W::down, d, ff},
  };
}

}  // namespace headstart::model
