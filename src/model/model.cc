#include "model/model.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <map>
#include <set>

#include "model/llama_log.h"

namespace headstart::model {
namespace {

ggml_backend_dev_t cpu_device() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

std::vector<ggml_backend_buffer_type_t> repack_buffer_types() {
  std::vector<ggml_backend_buffer_type_t> types;
  auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
      ggml_backend_dev_backend_reg(cpu_device()), "ggml_backend_dev_get_extra_bufts"));
  if (get == nullptr) return types;
  for (auto* type = get(cpu_device()); type != nullptr && *type != nullptr; ++type) {
    types.push_back(*type);
  }
  return types;
}

// The question that libllama asks too: would the CPU multiply such a matrix from such a buffer?
bool multiplies_from(ggml_backend_buffer_type_t type, const ggml_tensor* weight) {
  ggml_init_params params{ggml_tensor_overhead() * 8, nullptr, /*no_alloc=*/true};
  ggml_context* ctx = ggml_init(params);
  ggml_tensor* w = ggml_new_tensor_2d(ctx, weight->type, weight->ne[0], weight->ne[1]);
  ggml_tensor* x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, weight->ne[0], 512);
  ggml_tensor* product = ggml_mul_mat(ctx, w, x);
  w->buffer = ggml_backend_buft_alloc_buffer(type, 0);
  const bool ok = ggml_backend_dev_supports_op(cpu_device(), product);
  ggml_backend_buffer_free(w->buffer);
  ggml_free(ctx);
  return ok;
}

std::optional<kernels::WeightType> weight_type(ggml_type type) {
  using T = kernels::WeightType;
  switch (type) {
    case GGML_TYPE_F32: return T::kF32;
    case GGML_TYPE_F16: return T::kF16;
    case GGML_TYPE_BF16: return T::kBf16;
    case GGML_TYPE_Q4_0: return T::kQ4_0;
    case GGML_TYPE_Q4_1: return T::kQ4_1;
    case GGML_TYPE_Q5_0: return T::kQ5_0;
    case GGML_TYPE_Q5_1: return T::kQ5_1;
    case GGML_TYPE_Q8_0: return T::kQ8_0;
    case GGML_TYPE_Q2_K: return T::kQ2_K;
    case GGML_TYPE_Q3_K: return T::kQ3_K;
    case GGML_TYPE_Q4_K: return T::kQ4_K;
    case GGML_TYPE_Q5_K: return T::kQ5_K;
    case GGML_TYPE_Q6_K: return T::kQ6_K;
    case GGML_TYPE_IQ4_NL: return T::kIq4Nl;
    default: return std::nullopt;
  }
}

}  // namespace

Result<std::unique_ptr<Model>> Model::open(const std::filesystem::path& path) {
  quiet_libllama();
  std::unique_ptr<Model> model(new Model);
  HS_ASSIGN_OR_RETURN(model->gguf_, GgufFile::open(path));
  HS_ASSIGN_OR_RETURN(const auto name, model->gguf_->string("general.architecture"));
  HS_ASSIGN_OR_RETURN(model->arch_, find_arch(name.value_or("none")));
  HS_ASSIGN_OR_RETURN(model->params_, read_params(*model->gguf_, *model->arch_));
  HS_RETURN_IF_ERROR(model->take_tensors());
  HS_RETURN_IF_ERROR(model->check_all_taken());
  model->map_file();
  model->find_layers();
  return model;
}

Model::~Model() {
  for (ggml_backend_buffer_t buffer : buffers_) ggml_backend_buffer_free(buffer);
  if (own_ != nullptr) ggml_free(own_);
}

std::optional<kernels::WeightMatrix> Model::matrix(const ggml_tensor* tensor) const {
  const auto type = weight_type(tensor->type);
  if (!type) return std::nullopt;
  const auto n_col = static_cast<uint32_t>(tensor->ne[0]);
  return kernels::WeightMatrix{*type, in_file_.at(tensor), kernels::row_bytes(*type, n_col),
                               static_cast<uint32_t>(tensor->ne[1]), n_col};
}

Result<ggml_tensor*> Model::take(const std::string& name, int64_t n_out, int64_t n_in,
                                 bool required) {
  ggml_tensor* t = gguf_->tensor(name);
  if (t == nullptr) {
    if (!required) return t;
    return Error{Code::kCorrupt, path().string() + " lacks the tensor " + name};
  }
  const bool shape_ok =
      t->ne[0] == n_in && t->ne[1] == std::max<int64_t>(n_out, 1) && t->ne[2] == 1 && t->ne[3] == 1;
  if (!shape_ok || (n_out == 0 && t->type != GGML_TYPE_F32)) {
    return Error{Code::kCorrupt, path().string() + ": the tensor " + name +
                                     " has a shape or type that its parameters exclude"};
  }
  if (n_out != 0 && ggml_get_type_traits_cpu(t->type)->vec_dot == nullptr) {
    return Error{Code::kUnsupported, path().string() + ": the tensor " + name + " has type " +
                                         ggml_type_name(t->type) +
                                         ", which the CPU cannot multiply"};
  }
  placements_.push_back({t, gguf_->data(t), n_out != 0});
  return t;
}

Result<void> Model::take_tensors() {
  const int64_t d = params_.d_model;
  ggml_tensor* embedding = gguf_->tensor("token_embd.weight");
  if (embedding == nullptr || embedding->ne[1] > (1 << 24)) {
    return Error{Code::kCorrupt, path().string() + " lacks a usable token_embd.weight"};
  }
  params_.n_vocab = static_cast<uint32_t>(embedding->ne[1]);
  HS_ASSIGN_OR_RETURN(token_embedding_, take("token_embd.weight", params_.n_vocab, d, true));
  // Rows are looked up in it, which repacking would prevent.
  placements_.back().matrix = false;
  HS_ASSIGN_OR_RETURN(output_norm_, take("output_norm.weight", 0, d, true));
  HS_ASSIGN_OR_RETURN(output_bias_, take("output.bias", 0, params_.n_vocab, false));
  HS_ASSIGN_OR_RETURN(output_, take("output.weight", params_.n_vocab, d, false));
  if (output_ == nullptr) {  // tied: a tensor of its own, so that it may be repacked
    ggml_init_params params{ggml_tensor_overhead() * 2, nullptr, /*no_alloc=*/true};
    own_ = ggml_init(params);
    output_ = ggml_new_tensor_2d(own_, embedding->type, d, params_.n_vocab);
    ggml_set_name(output_, "output.weight");
    placements_.push_back({output_, gguf_->data(embedding), true});
  }
  const auto specs = arch_->layer_tensors(params_);
  layers_.resize(params_.n_layer);
  for (uint32_t il = 0; il < params_.n_layer; ++il) {
    for (const TensorSpec& spec : specs) {
      HS_ASSIGN_OR_RETURN(layers_[il].*spec.slot,
                          take("blk." + std::to_string(il) + "." + spec.name, spec.n_out, spec.n_in,
                               spec.required));
    }
  }
  return {};
}

// A tensor that nobody asked for would change the result if we knew it: experts, fused projections.
Result<void> Model::check_all_taken() const {
  std::set<const ggml_tensor*> taken;
  for (const Placement& p : placements_) taken.insert(p.tensor);
  for (ggml_tensor* t = ggml_get_first_tensor(gguf_->tensors()); t != nullptr;
       t = ggml_get_next_tensor(gguf_->tensors(), t)) {
    if (!taken.contains(t) && std::string_view(t->name) != "rope_freqs.weight") {
      return Error{Code::kUnsupported, path().string() + " has the tensor " + t->name +
                                           ", which '" + std::string(arch_->name()) +
                                           "' does not use here; this variant is not supported"};
    }
  }
  return {};
}

void Model::map_file() {
  auto* base = const_cast<std::byte*>(gguf_->mapping().data());
  mapped_ = ggml_backend_dev_buffer_from_host_ptr(cpu_device(), base, gguf_->mapping().size(),
                                                  gguf_->mapping().size());
  HS_CHECK(mapped_ != nullptr, "the CPU device uses mapped memory");
  ggml_backend_buffer_set_usage(mapped_, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  buffers_.push_back(mapped_);
  for (const Placement& p : placements_) {
    in_file_.emplace(p.tensor, p.data.data());
    if (!p.matrix) {
      ggml_backend_tensor_alloc(mapped_, p.tensor, const_cast<std::byte*>(p.data.data()));
    }
  }
}

// From the first to the last of a layer's matrices; files have the tensors of a layer together.
void Model::find_layers() {
  for (const LayerWeights& w : layers_) {
    const std::byte *first = nullptr, *last = nullptr;
    for (const ggml_tensor* t : {w.wq, w.wk, w.wv, w.wo, w.gate, w.up, w.down}) {
      const std::byte* data = in_file_.at(t);
      if (first == nullptr || data < first) first = data;
      if (last == nullptr || data + ggml_nbytes(t) > last) last = data + ggml_nbytes(t);
    }
    layer_bytes_.emplace_back(first, last);
  }
}

void Model::read_ahead(uint32_t layer) const { gguf_->read_ahead(layer_bytes_[layer]); }

Result<void> Model::place_matrices(const std::function<void(double)>& progress) {
  std::map<ggml_backend_buffer_type_t, std::vector<const Placement*>> repacked;
  const auto types = repack_buffer_types();
  size_t n_repacked = 0;
  for (const Placement& p : placements_) {
    if (!p.matrix) continue;
    ggml_backend_buffer_type_t chosen = nullptr;
    for (ggml_backend_buffer_type_t type : types) {
      if (chosen == nullptr && multiplies_from(type, p.tensor)) chosen = type;
    }
    if (chosen != nullptr) {
      repacked[chosen].push_back(&p);
      ++n_repacked;
    } else {
      ggml_backend_tensor_alloc(mapped_, p.tensor, const_cast<std::byte*>(p.data.data()));
    }
  }

  size_t n_done = 0;
  for (const auto& [type, tensors] : repacked) {
    const size_t alignment = ggml_backend_buft_get_alignment(type);
    size_t size = 0;
    for (const Placement* p : tensors) {
      size += GGML_PAD(ggml_backend_buft_get_alloc_size(type, p->tensor), alignment);
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, size);
    if (buffer == nullptr) {
      return Error{Code::kExhausted, "no memory for " + std::to_string(size >> 20) +
                                         " MiB of weights; use a smaller model or quantisation"};
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    buffers_.push_back(buffer);
    auto* at = static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer));
    for (const Placement* p : tensors) {
      ggml_backend_tensor_alloc(buffer, p->tensor, at);
      ggml_backend_tensor_set(p->tensor, p->data.data(), 0, p->data.size());
      at += GGML_PAD(ggml_backend_buft_get_alloc_size(type, p->tensor), alignment);
      if (progress) progress(static_cast<double>(++n_done) / static_cast<double>(n_repacked));
    }
  }
  return {};
}

}  // namespace headstart::model
