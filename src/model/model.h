// model/model.h: an immutable model: parameters, and weights in the buffers that suit the CPU.
//
// Vectors and embeddings are used where the file is mapped. Matrices are too by our kernels; for
// ggml, place_matrices() puts them into the buffer types that libllama would choose: those that
// ggml repacks for this CPU are copied once.
//
//   units    bytes
//   threads  const after open() and place_matrices()
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "kernels/weight_matrix.h"
#include "model/arch.h"
#include "model/gguf_file.h"
#include "model/params.h"

struct ggml_backend_buffer;
struct ggml_backend_buffer_type;

namespace headstart::model {

class Model {
 public:
  // Errors: kIo, kCorrupt, kUnsupported (architecture, unknown tensors).
  static Result<std::unique_ptr<Model>> open(const std::filesystem::path& gguf);
  // Makes the matrices usable in ggml graphs; once. `progress` hears the share done, 0 to 1; may be
  // empty. Errors: kExhausted (no memory for repacked weights).
  Result<void> place_matrices(const std::function<void(double)>& progress = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelParams& params() const { return params_; }
  const Arch& arch() const { return *arch_; }
  const std::filesystem::path& path() const { return gguf_->path(); }
  const LayerWeights& layer(uint32_t i) const { return layers_[i]; }
  ggml_tensor* token_embedding() const { return token_embedding_; }  // [n_vocab, d_model]
  ggml_tensor* output_norm() const { return output_norm_; }          // [d_model]
  ggml_tensor* output() const { return output_; }                    // [n_vocab, d_model]
  ggml_tensor* output_bias() const { return output_bias_; }          // [n_vocab] or null
  // A matrix as the file has it, wherever ggml put it. Nothing where our kernels lack its type.
  std::optional<kernels::WeightMatrix> matrix(const ggml_tensor* tensor) const;
  // Asks the system to read a layer's matrices from the file unless they are in memory; returns at
  // once. Computing a layer then hides reading the next one, also where memory cannot hold all.
  void read_ahead(uint32_t layer) const;

 private:
  Model() = default;
  struct Placement {
    ggml_tensor* tensor;
    std::span<const std::byte> data;
    bool matrix;  // multiplied, so it may be repacked
  };
  Result<ggml_tensor*> take(const std::string& name, int64_t n_out, int64_t n_in, bool required);
  Result<void> take_tensors();
  Result<void> check_all_taken() const;
  void map_file();
  void find_layers();

  std::unique_ptr<GgufFile> gguf_;
  const Arch* arch_ = nullptr;
  ModelParams params_;
  std::vector<LayerWeights> layers_;
  ggml_tensor* token_embedding_ = nullptr;
  ggml_tensor* output_norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
  ggml_tensor* output_bias_ = nullptr;
  ggml_context* own_ = nullptr;                          // the second copy of a tied head
  std::vector<std::span<const std::byte>> layer_bytes_;  // in the file, from first to last matrix
  std::vector<Placement> placements_;                    // of every tensor
  ggml_backend_buffer* mapped_ = nullptr;                // the whole file
  std::unordered_map<const ggml_tensor*, const std::byte*> in_file_;
  std::vector<ggml_backend_buffer*> buffers_;
};

}  // namespace headstart::model
