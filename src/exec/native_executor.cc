#include "exec/native_executor.h"

#include <ggml.h>

#include <algorithm>
#include <array>

#include "exec/compute_pool.h"
#include "exec/native_weights.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/layer_ops.h"

namespace headstart::exec {
namespace {

// Raised whenever a change of ours changes the bits of K,V.
constexpr int kRevision = 1;

// Tokens that one item of a row-by-row job takes.
constexpr uint32_t kRowBlock = 16;
// Rows (query, head) that attention takes against each key step: enough that packing the step's
// K,V is small beside multiplying with them.
constexpr uint32_t kAttentionRows = 768;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

const float* values(const ggml_tensor* vector) { return static_cast<const float*>(vector->data); }

struct ThreadScratch {
  kernels::GemmScratch gemm;
  kernels::AttentionScratch attention;
  std::vector<kv::Half> half, rotated;
  std::vector<float> row;
};

}  // namespace

struct NativeExecutor::Impl {
  const model::Model& model;
  RopeTables& tables;
  NativeExecutorOptions options;
  const kernels::TileOps& ops = kernels::tile_ops();
  NativeWeights weights;
  ComputePool pool;
  std::vector<ThreadScratch> scratch;  // [n_thread]
  // Of the step's tokens, outermost [n_token].
  kernels::Scratch<float> rows;                      // [d_model] the residual stream
  kernels::Scratch<float> branch;                    // [d_model] what is added to it
  kernels::Scratch<float> q, k, v;                   // [n_head * d_head] and so on
  kernels::Scratch<std::byte> normed, attended, ff;  // operands
  const LayerStep* step = nullptr;
  uint32_t layer = 0;

  Impl(const model::Model& m, RopeTables& t, const NativeExecutorOptions& o)
      : model(m), tables(t), options(o), pool(o.n_threads), scratch(o.n_threads) {}

  const model::ModelParams& params() const { return model.params(); }
  uint32_t n_token() const { return static_cast<uint32_t>(step->positions.size()); }
  size_t operand_bytes(size_t n) const { return n * ops.operand_bytes; }
  float* row(uint32_t i) { return rows.get(0) + size_t{i} * params().d_model; }

  void reserve();
  void take_input();
  bool wants_rows() const;
  void run_layer();
  void project_kv();
  void keep_kv(uint32_t i, ThreadScratch& s);
  void attend(uint32_t first);
  void feed_forward(uint32_t first);
  void add_branch(uint32_t first, const ggml_tensor* bias, const ggml_tensor* post_norm);
  void give_output();
  void give_logits();

  template <class F>
  void for_rows(uint32_t first, const F& f) {
    pool.run(ceil_div(n_token() - first, kRowBlock), [&](uint32_t item, uint32_t thread) {
      const uint32_t begin = first + item * kRowBlock;
      const uint32_t end = std::min(n_token(), begin + kRowBlock);
      for (uint32_t i = begin; i < end; ++i) f(i, scratch[thread]);
    });
  }

  void norm_rows(uint32_t first, const ggml_tensor* weight);
  template <size_t kN>
  void multiply(const std::array<kernels::Gemm, kN>& gemms);
  kernels::Gemm gemm(const std::byte* x, size_t n_in, uint32_t first, const NativeMatrix& w,
                     float* out) const;
};

// Grown to the largest step so far; the contents do not survive.
void NativeExecutor::Impl::reserve() {
  const model::ModelParams& p = params();
  const size_t n = n_token();
  rows.get(n * p.d_model);
  branch.get(n * p.d_model);
  q.get(n * p.n_head * p.d_head_k);
  k.get(n * p.n_head_kv * p.d_head_k);
  v.get(n * p.n_head_kv * p.d_head_v);
  normed.get(operand_bytes(n * p.d_model));
  attended.get(operand_bytes(n * p.n_head * p.d_head_v));
  ff.get(operand_bytes(n * p.n_ff));
}

void NativeExecutor::Impl::take_input() {
  const model::ModelParams& p = params();
  const kernels::WeightMatrix& embedding = weights.token_embedding;
  for_rows(0, [&](uint32_t i, ThreadScratch&) {
    if (step->layer_first > 0) {
      std::copy_n(step->hidden->row(step->positions[i]), p.d_model, row(i));
      return;
    }
    const auto token = static_cast<size_t>(step->tokens[i]);
    kernels::dequantize_row(embedding.type, embedding.data + token * embedding.row_bytes, p.d_model,
                            row(i));
    if (p.embedding_scale != 1.0f) kernels::scale(p.embedding_scale, p.d_model, row(i));
  });
}

// False where the last layer's K,V are all that is wanted.
bool NativeExecutor::Impl::wants_rows() const {
  const bool hidden = step->hidden != nullptr && step->layer_end < params().n_layer;
  return layer + 1 < step->layer_end || step->want_logits != WantLogits::kNone || hidden;
}

void NativeExecutor::Impl::norm_rows(uint32_t first, const ggml_tensor* weight) {
  const model::ModelParams& p = params();
  for_rows(first, [&](uint32_t i, ThreadScratch& s) {
    s.row.resize(p.d_model);
    kernels::rms_norm(row(i), values(weight), p.d_model, p.norm_eps, s.row.data());
    ops.to_operand(s.row.data(), p.d_model, normed.get(0) + operand_bytes(size_t{i} * p.d_model));
  });
}

// x and out are buffers of all the step's tokens, of which those from `first` on are computed.
kernels::Gemm NativeExecutor::Impl::gemm(const std::byte* x, size_t n_in, uint32_t first,
                                         const NativeMatrix& w, float* out) const {
  kernels::Gemm g;
  g.x_stride = operand_bytes(n_in);
  g.x = x + first * g.x_stride;
  g.m = n_token() - first;
  g.w = w;
  g.out_stride = w.n_row;
  g.out = out + size_t{first} * w.n_row;
  return g;
}

template <size_t kN>
void NativeExecutor::Impl::multiply(const std::array<kernels::Gemm, kN>& gemms) {
  uint32_t n_panel = 0;
  for (const kernels::Gemm& g : gemms) n_panel += kernels::n_panel(g);
  pool.run(n_panel, [&](uint32_t item, uint32_t thread) {
    for (const kernels::Gemm& g : gemms) {
      if (item < kernels::n_panel(g)) {
        kernels::multiply_panel(ops, g, item, scratch[thread].gemm);
        return;
      }
      item -= kernels::n_panel(g);
    }
  });
}

// One token's K and V: to the capture window before RoPE, to the live cache after.
void NativeExecutor::Impl::keep_kv(uint32_t i, ThreadScratch& s) {
  const model::ModelParams& p = params();
  const model::LayerWeights& w = model.layer(layer);
  const uint32_t pos = step->positions[i];
  const size_t n_k = size_t{p.n_head_kv} * p.d_head_k, n_v = size_t{p.n_head_kv} * p.d_head_v;
  float* const key = k.get(0) + i * n_k;
  float* const value = v.get(0) + i * n_v;
  if (w.bk != nullptr) kernels::add(values(w.bk), n_k, key);
  if (w.bv != nullptr) kernels::add(values(w.bv), n_v, value);
  for (uint32_t h = 0; w.k_norm != nullptr && h < p.n_head_kv; ++h) {
    float* const head = key + h * p.d_head_k;
    kernels::rms_norm(head, values(w.k_norm), p.d_head_k, p.norm_eps, head);
  }
  for (const kv::Part part : {kv::Part::kKey, kv::Part::kValue}) {
    const bool is_key = part == kv::Part::kKey;
    const std::span<const float> row{is_key ? key : value, is_key ? n_k : n_v};
    s.half.resize(row.size());
    kernels::to_half(row, s.half.data());
    if (step->capture != nullptr) {
      std::copy(s.half.begin(), s.half.end(), step->capture->row(layer, part, pos));
    }
    if (is_key) {
      s.rotated.resize(row.size());
      kernels::rotate_token(tables.of(layer), pos, p.n_head_kv, s.half.data(), s.rotated.data());
      std::swap(s.half, s.rotated);
    }
    step->kv->write(layer, part, pos, s.half);
  }
}

void NativeExecutor::Impl::project_kv() {
  const model::ModelParams& p = params();
  const NativeLayerWeights& w = weights.layers[layer];
  norm_rows(0, model.layer(layer).attn_norm);
  multiply(std::array{gemm(normed.get(0), p.d_model, 0, w.wk, k.get(0)),
                      gemm(normed.get(0), p.d_model, 0, w.wv, v.get(0))});
  for_rows(0, [&](uint32_t i, ThreadScratch& s) { keep_kv(i, s); });
}

// Rows from `first` on: rows += Wo · attention(q)
void NativeExecutor::Impl::attend(uint32_t first) {
  const model::ModelParams& p = params();
  const NativeLayerWeights& w = weights.layers[layer];
  const model::LayerWeights& vectors = model.layer(layer);
  const size_t n_q = size_t{p.n_head} * p.d_head_k;
  multiply(std::array{gemm(normed.get(0), p.d_model, first, w.wq, q.get(0))});
  for_rows(first, [&](uint32_t i, ThreadScratch&) {
    float* const query = q.get(0) + i * n_q;
    if (vectors.bq != nullptr) kernels::add(values(vectors.bq), n_q, query);
    for (uint32_t h = 0; vectors.q_norm != nullptr && h < p.n_head; ++h) {
      float* const head = query + h * p.d_head_k;
      kernels::rms_norm(head, values(vectors.q_norm), p.d_head_k, p.norm_eps, head);
    }
    kernels::rotate_token(tables.of(layer), step->positions[i], p.n_head, query);
  });

  kernels::Attention a;
  a.n_group = p.n_head / p.n_head_kv;
  a.d_head_k = p.d_head_k;
  a.d_head_v = p.d_head_v;
  a.n_window = p.windowed[layer] ? p.n_window : 0;
  a.scale = p.attention_scale;
  a.q_stride = n_q;
  a.out_stride = operand_bytes(size_t{p.n_head} * p.d_head_v);
  const uint32_t n_query = n_token() - first;
  const uint32_t block = std::clamp(kAttentionRows / a.n_group, 1u, n_query);
  const uint32_t n_block = ceil_div(n_query, block);
  // The last queries see the most keys: they go first, so that no thread ends late.
  pool.run(n_block * p.n_head_kv, [&](uint32_t item, uint32_t thread) {
    const uint32_t head = item % p.n_head_kv;
    const uint32_t begin = first + (n_block - 1 - item / p.n_head_kv) * block;
    kernels::Attention part = a;
    part.positions = step->positions.subspan(begin, std::min(block, n_token() - begin));
    part.k = kv_rows(*step->kv, layer, kv::Part::kKey, head);
    part.v = kv_rows(*step->kv, layer, kv::Part::kValue, head);
    part.q = q.get(0) + begin * n_q + size_t{head} * a.n_group * p.d_head_k;
    part.out = attended.get(0) + begin * a.out_stride +
               operand_bytes(size_t{head} * a.n_group * p.d_head_v);
    kernels::attend(ops, part, scratch[thread].attention);
  });

  multiply(
      std::array{gemm(attended.get(0), size_t{p.n_head} * p.d_head_v, first, w.wo, branch.get(0))});
  add_branch(first, vectors.bo, vectors.attn_post_norm);
}

// Rows from `first` on: rows += Wdown · (activation(Wgate · norm(rows)) * (Wup · norm(rows)))
void NativeExecutor::Impl::feed_forward(uint32_t first) {
  const model::ModelParams& p = params();
  const NativeLayerWeights& w = weights.layers[layer];
  norm_rows(first, model.layer(layer).ffn_norm);
  kernels::GatedGemm g;
  g.x_stride = operand_bytes(p.d_model);
  g.x = normed.get(0) + first * g.x_stride;
  g.m = n_token() - first;
  g.gate = w.gate;
  g.up = w.up;
  g.activation = p.activation;
  g.out_stride = operand_bytes(p.n_ff);
  g.out = ff.get(0) + first * g.out_stride;
  pool.run(kernels::n_panel(g), [&](uint32_t item, uint32_t thread) {
    kernels::multiply_panel(ops, g, item, scratch[thread].gemm);
  });
  multiply(std::array{gemm(ff.get(0), p.n_ff, first, w.down, branch.get(0))});
  add_branch(first, nullptr, model.layer(layer).ffn_post_norm);
}

void NativeExecutor::Impl::add_branch(uint32_t first, const ggml_tensor* bias,
                                      const ggml_tensor* post_norm) {
  const model::ModelParams& p = params();
  for_rows(first, [&](uint32_t i, ThreadScratch&) {
    float* const add = branch.get(0) + size_t{i} * p.d_model;
    if (bias != nullptr) kernels::add(values(bias), p.d_model, add);
    if (post_norm != nullptr) {
      kernels::rms_norm(add, values(post_norm), p.d_model, p.norm_eps, add);
    }
    kernels::add(add, p.d_model, row(i));
  });
}

void NativeExecutor::Impl::run_layer() {
  project_kv();
  if (!wants_rows()) return;
  // After the last layer's K,V only the row whose logits are wanted goes on.
  const bool last_only = layer + 1 == params().n_layer && step->want_logits == WantLogits::kLast;
  const uint32_t first = last_only ? n_token() - 1 : 0;
  attend(first);
  feed_forward(first);
}

void NativeExecutor::Impl::give_output() {
  if (step->layer_end == params().n_layer) {
    if (step->want_logits != WantLogits::kNone && step->logits != nullptr) give_logits();
    return;
  }
  if (step->hidden == nullptr) return;
  for (uint32_t i = 0; i < n_token(); ++i) {
    std::copy_n(row(i), params().d_model, step->hidden->row(step->positions[i]));
  }
}

void NativeExecutor::Impl::give_logits() {
  const model::ModelParams& p = params();
  const uint32_t first = step->want_logits == WantLogits::kLast ? n_token() - 1 : 0;
  const size_t n_row = n_token() - first;
  step->logits->resize(n_row * p.n_vocab);
  norm_rows(first, model.output_norm());
  kernels::Gemm g = gemm(normed.get(0), p.d_model, first, weights.output, nullptr);
  g.out = step->logits->data();
  multiply(std::array{g});
  for (size_t i = 0; i < n_row; ++i) {
    float* const logits = step->logits->data() + i * p.n_vocab;
    if (model.output_bias() != nullptr) {
      kernels::add(values(model.output_bias()), p.n_vocab, logits);
    }
    if (p.logit_softcap != 0) kernels::soft_cap(p.logit_softcap, p.n_vocab, logits);
  }
}

Result<std::unique_ptr<NativeExecutor>> NativeExecutor::open(const model::Model& model,
                                                             RopeTables& tables,
                                                             const NativeExecutorOptions& options) {
  auto impl = std::make_unique<Impl>(model, tables, options);
  HS_ASSIGN_OR_RETURN(impl->weights, native_weights(model));
  return std::unique_ptr<NativeExecutor>(new NativeExecutor(std::move(impl)));
}

NativeExecutor::NativeExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NativeExecutor::~NativeExecutor() = default;

std::string NativeExecutor::identity() const {
  return "native/" + std::to_string(kRevision) + "/" + impl_->ops.name + "/" +
         kernels::target_name();
}

uint32_t NativeExecutor::n_token_max() const { return impl_->options.n_token_max; }

Result<void> NativeExecutor::run(const LayerStep& step) {
  Impl& s = *impl_;
  HS_CHECK(!step.positions.empty() && step.positions.size() <= s.options.n_token_max,
           "a step has 1 to n_token_max tokens");
  HS_CHECK(step.layer_first < step.layer_end && step.layer_end <= s.params().n_layer,
           "a step's layers");
  HS_CHECK(step.numeric_class == NumericClass::kPrefill, "native steps are prefill");
  s.tables.reserve(step.positions.back() + 1);
  s.step = &step;
  s.reserve();
  s.take_input();
  for (s.layer = step.layer_first; s.layer < step.layer_end; ++s.layer) {
    if (step.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
    s.run_layer();
  }
  s.give_output();
  return {};
}

}  // namespace headstart::exec
