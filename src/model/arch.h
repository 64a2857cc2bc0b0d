// model/arch.h: one architecture: its parameters, its tensors and the order of its layer.
//
// CONTRIBUTING.md has the recipe for adding one: an arch_NAME.cc with a class, its line in
// arch.cc, its row in tests/golden.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/gguf_file.h"
#include "model/layer_graph.h"
#include "model/params.h"

namespace headstart::model {

// The weights of one layer; null where the architecture or the model has none. Matrices are
// [n_out, n_in] of the GGUF's type, vectors [n] f32.
struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;       // [d_model]
  ggml_tensor* attn_post_norm = nullptr;  // [d_model]
  ggml_tensor* wq = nullptr;              // [n_head * d_head, d_model]
  ggml_tensor* wk = nullptr;              // [n_head_kv * d_head, d_model]
  ggml_tensor* wv = nullptr;              // [n_head_kv * d_head, d_model]
  ggml_tensor* wo = nullptr;              // [d_model, n_head * d_head]
  ggml_tensor* bq = nullptr;
  ggml_tensor* bk = nullptr;
  ggml_tensor* bv = nullptr;
  ggml_tensor* bo = nullptr;
  ggml_tensor* q_norm = nullptr;         // [d_head]
  ggml_tensor* k_norm = nullptr;         // [d_head]
  ggml_tensor* ffn_norm = nullptr;       // [d_model]
  ggml_tensor* ffn_post_norm = nullptr;  // [d_model]
  ggml_tensor* gate = nullptr;           // [n_ff, d_model]
  ggml_tensor* up = nullptr;             // [n_ff, d_model]
  ggml_tensor* down = nullptr;           // [d_model, n_ff]
};

// One tensor of a layer: its name after "blk.N.", where it goes, what shape it must have.
struct TensorSpec {
  const char* name;
  ggml_tensor* LayerWeights::*slot;
  int64_t n_out;  // 0 for a vector
  int64_t n_in;   // or the vector's length
  bool required = true;
};

class Arch {
 public:
  virtual ~Arch() = default;
  virtual std::string_view name() const = 0;
  // Adds what is particular to the architecture to what read_params() found.
  virtual Result<void> read(const GgufFile& gguf, ModelParams& params) const = 0;
  virtual std::vector<TensorSpec> layer_tensors(const ModelParams& params) const;
  // The rows after the layer, [n_wanted, d_model] f32, or null where g.kv_only().
  virtual ggml_tensor* layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) const = 0;
  // True if layer() is what exec/native_executor.h computes: pre-norms, biases and head norms and
  // post-norms where there are weights for them, a gated feed-forward part.
  virtual bool pre_norm_gated() const = 0;
};

// Errors: kUnsupported, naming the architecture and those that are supported.
Result<const Arch*> find_arch(std::string_view name);

// Everything that the GGUF states in the same way for every architecture, then arch.read().
Result<ModelParams> read_params(const GgufFile& gguf, const Arch& arch);

const Arch& llama_arch();
const Arch& qwen2_arch();
const Arch& qwen3_arch();
const Arch& gemma3_arch();

}  // namespace headstart::model
