#include "exec/native_executor.h"

#include <ggml.h>

#include <algorithm>
#include <system_error>

#include "base/rounding.h"
#include "exec/native_products.h"

namespace headstart::exec {
namespace {

// Raised whenever a change of ours changes the bits of K,V.
constexpr int kRevision = 2;

// Tokens that one item of a row-by-row job takes.
constexpr uint32_t kRowBlock = 16;

const float* values(const ggml_tensor* vector) { return static_cast<const float*>(vector->data); }

}  // namespace

struct NativeExecutor::Impl {
  const model::Model& model;
  RopeTables& tables;
  NativeExecutorOptions options;
  NativeWeights weights;
  NativeProducts products;
  // Of the step's tokens, outermost [n_token].
  kernels::Scratch<float> rows;     // [d_model] the residual stream
  kernels::Scratch<float> branch;   // [d_model] what is added to it
  kernels::Scratch<float> q, k, v;  // [n_head * d_head] and so on
  ProductRows normed, attended, ff;
  struct ThreadRows {
    std::vector<kv::Half> half, rotated;
    std::vector<float> row;
  };
  std::vector<ThreadRows> thread_rows;  // [n_thread]
  const LayerStep* step = nullptr;
  std::vector<uint32_t> row_sequence;  // [n_token], which of the step's sequences
  uint32_t layer = 0;

  Impl(const model::Model& m, RopeTables& t, const NativeExecutorOptions& o)
      : model(m),
        tables(t),
        options(o),
        products(o.prefill, o.n_threads, o.sparse_attention),
        thread_rows(o.n_threads) {}

  const model::ModelParams& params() const { return model.params(); }
  uint32_t n_token() const { return static_cast<uint32_t>(step->positions.size()); }
  float* row(uint32_t i) { return rows.get(0) + size_t{i} * params().d_model; }
  float* branch_row(uint32_t i) { return branch.get(0) + size_t{i} * params().d_model; }

  void begin(const LayerStep& s);
  void take_input();
  bool wants_rows() const;
  void run_layer();
  void project_kv();
  void keep_kv(uint32_t i, ThreadRows& t);
  void prepare_query(uint32_t i);
  void attend(RowRange range);
  void feed_forward(RowRange range);
  void norm_rows(RowRange range, const ggml_tensor* weight);
  void add_branch(RowRange range, const ggml_tensor* bias, const ggml_tensor* post_norm);
  void give_output();
  void give_logits();

  template <class F>
  void for_rows(RowRange range, const F& f) {
    const uint32_t n_item = ceil_div(range.size(), kRowBlock);
    products.pool().run(n_item, [&](uint32_t item, uint32_t thread) {
      const uint32_t first = range.first + item * kRowBlock;
      const uint32_t end = std::min(range.end, first + kRowBlock);
      for (uint32_t i = first; i < end; ++i) f(i, thread_rows[thread]);
    });
  }
};

// Buffers grow to the largest step so far.
void NativeExecutor::Impl::begin(const LayerStep& s) {
  const model::ModelParams& p = params();
  step = &s;
  tables.reserve(*std::ranges::max_element(s.positions) + 1);
  row_sequence.clear();
  for (uint32_t i = 0; i < s.sequences.size(); ++i) {
    row_sequence.insert(row_sequence.end(), s.sequences[i].n_token, i);
  }
  products.set_class(s.numeric_class);
  const size_t n = n_token(), n_attended = size_t{p.n_head} * p.d_head_v;
  rows.get(n * p.d_model);
  branch.get(n * p.d_model);
  q.get(n * p.n_head * p.d_head_k);
  k.get(n * p.n_head_kv * p.d_head_k);
  v.get(n * p.n_head_kv * p.d_head_v);
  normed.resize(n, p.d_model, products.row_bytes(p.d_model));
  attended.resize(n, n_attended, products.row_bytes(n_attended));
  ff.resize(n, p.n_ff, products.row_bytes(p.n_ff));
}

void NativeExecutor::Impl::take_input() {
  const model::ModelParams& p = params();
  const kernels::WeightMatrix& embedding = weights.token_embedding;
  for_rows({0, n_token()}, [&](uint32_t i, ThreadRows&) {
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

void NativeExecutor::Impl::run_layer() {
  project_kv();
  if (!wants_rows()) return;
  // After the last layer's K,V only the row whose logits are wanted goes on.
  const bool last_only = layer + 1 == params().n_layer && step->want_logits == WantLogits::kLast;
  const RowRange range{last_only ? n_token() - 1 : 0, n_token()};
  attend(range);
  feed_forward(range);
}

void NativeExecutor::Impl::norm_rows(RowRange range, const ggml_tensor* weight) {
  const model::ModelParams& p = params();
  for_rows(range, [&](uint32_t i, ThreadRows& t) {
    t.row.resize(p.d_model);
    kernels::rms_norm(row(i), values(weight), p.d_model, p.norm_eps, t.row.data());
    products.to_input(t.row.data(), p.d_model, normed.row(i));
  });
}

void NativeExecutor::Impl::project_kv() {
  const NativeLayerWeights& w = weights.layers[layer];
  const RowRange all{0, n_token()};
  norm_rows(all, model.layer(layer).attn_norm);
  products.multiply(normed, all, {{&w.wk, k.get(0)}, {&w.wv, v.get(0)}});
  for_rows(all, [&](uint32_t i, ThreadRows& t) { keep_kv(i, t); });
}

// One token's K and V: to the capture window before RoPE, to the live cache after.
void NativeExecutor::Impl::keep_kv(uint32_t i, ThreadRows& t) {
  const model::ModelParams& p = params();
  const model::LayerWeights& w = model.layer(layer);
  const uint32_t pos = step->positions[i];
  const SequenceRows& sequence = step->sequences[row_sequence[i]];
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
    const std::span<const float> from{is_key ? key : value, is_key ? n_k : n_v};
    t.half.resize(from.size());
    kernels::to_half(from, t.half.data());
    if (sequence.capture != nullptr) {
      std::copy(t.half.begin(), t.half.end(), sequence.capture->row(layer, part, pos));
    }
    if (is_key) {
      t.rotated.resize(from.size());
      kernels::rotate_token(tables.of(layer), pos, p.n_head_kv, t.half.data(), t.rotated.data());
      std::swap(t.half, t.rotated);
    }
    sequence.kv->write(layer, part, pos, t.half);
  }
}

void NativeExecutor::Impl::prepare_query(uint32_t i) {
  const model::ModelParams& p = params();
  const model::LayerWeights& w = model.layer(layer);
  const size_t n_q = size_t{p.n_head} * p.d_head_k;
  float* const query = q.get(0) + i * n_q;
  if (w.bq != nullptr) kernels::add(values(w.bq), n_q, query);
  for (uint32_t h = 0; w.q_norm != nullptr && h < p.n_head; ++h) {
    float* const head = query + h * p.d_head_k;
    kernels::rms_norm(head, values(w.q_norm), p.d_head_k, p.norm_eps, head);
  }
  kernels::rotate_token(tables.of(layer), step->positions[i], p.n_head, query);
}

// rows += Wo · attention(Wq · normed)
void NativeExecutor::Impl::attend(RowRange range) {
  const model::ModelParams& p = params();
  const NativeLayerWeights& w = weights.layers[layer];
  products.multiply(normed, range, {{&w.wq, q.get(0) + size_t{range.first} * w.wq.n_row}});
  for_rows(range, [&](uint32_t i, ThreadRows&) { prepare_query(i); });

  kernels::Attention shape;
  shape.n_group = p.n_head / p.n_head_kv;
  shape.d_head_k = p.d_head_k;
  shape.d_head_v = p.d_head_v;
  shape.n_window = p.windowed[layer] ? p.n_window : 0;
  shape.scale = p.attention_scale;
  shape.q = q.get(0);
  shape.q_stride = size_t{p.n_head} * p.d_head_k;
  products.attend({shape, step->sequences, layer, step->positions, step->attention}, range,
                  attended);

  products.multiply(attended, range, {{&w.wo, branch_row(range.first)}});
  add_branch(range, model.layer(layer).bo, model.layer(layer).attn_post_norm);
}

// rows += Wdown · (activation(Wgate · norm(rows)) · (Wup · norm(rows)))
void NativeExecutor::Impl::feed_forward(RowRange range) {
  const NativeLayerWeights& w = weights.layers[layer];
  norm_rows(range, model.layer(layer).ffn_norm);
  products.multiply_gated(normed, range, w, params().activation, ff);
  products.multiply(ff, range, {{&w.down, branch_row(range.first)}});
  add_branch(range, nullptr, model.layer(layer).ffn_post_norm);
}

void NativeExecutor::Impl::add_branch(RowRange range, const ggml_tensor* bias,
                                      const ggml_tensor* post_norm) {
  const model::ModelParams& p = params();
  for_rows(range, [&](uint32_t i, ThreadRows&) {
    float* const add = branch_row(i);
    if (bias != nullptr) kernels::add(values(bias), p.d_model, add);
    if (post_norm != nullptr) {
      kernels::rms_norm(add, values(post_norm), p.d_model, p.norm_eps, add);
    }
    kernels::add(add, p.d_model, row(i));
  });
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
  const RowRange range{step->want_logits == WantLogits::kLast ? n_token() - 1 : 0, n_token()};
  norm_rows(range, model.output_norm());
  step->logits->resize(range.size() * size_t{p.n_vocab});
  products.multiply(normed, range, {{&weights.output, step->logits->data()}});
  for (size_t i = 0; i < range.size(); ++i) {
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
  NativeExecutorOptions o = options;
  if (o.prefill.tile == nullptr) o.prefill = {&kernels::tile_ops(), &kernels::tile_ops()};
  HS_ASSIGN_OR_RETURN(NativeWeights weights, native_weights(model));
  HS_RETURN_IF_ERROR(check_operands(model, weights, *o.prefill.weights));
  std::unique_ptr<Impl> impl;
  try {
    impl = std::make_unique<Impl>(model, tables, o);
  } catch (const std::system_error&) {
    return Error{Code::kExhausted, "the system starts no more threads; use fewer with -t"};
  }
  impl->weights = std::move(weights);
  return std::unique_ptr<NativeExecutor>(new NativeExecutor(std::move(impl)));
}

NativeExecutor::NativeExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NativeExecutor::~NativeExecutor() = default;

std::string NativeExecutor::revision() { return std::to_string(kRevision); }

std::string NativeExecutor::identity() const {
  const kernels::PrefillOps& prefill = impl_->options.prefill;
  std::string tiles = prefill.tile->name;
  if (prefill.weights != prefill.tile) tiles += std::string("+") + prefill.weights->name;
  return "native/" + revision() + "/" + tiles + "/" + kernels::target_name();
}

uint32_t NativeExecutor::grain() const {
  return impl_->options.sparse_attention > 0 ? kernels::kQueryBlock : 1;
}

uint32_t NativeExecutor::n_token_max() const { return impl_->options.n_token_max; }
uint32_t NativeExecutor::n_decode_max() const {
  return std::min(kernels::kMaxColumns, impl_->options.n_token_max);
}

Result<void> NativeExecutor::run(const LayerStep& step) {
  Impl& s = *impl_;
  HS_CHECK(!step.positions.empty() && step.positions.size() <= s.options.n_token_max,
           "a step has 1 to n_token_max tokens");
  HS_CHECK(step.layer_first < step.layer_end && step.layer_end <= s.params().n_layer,
           "a step's layers");
  HS_CHECK(step.numeric_class == NumericClass::kPrefill || step.positions.size() <= n_decode_max(),
           "a decode step's tokens");
  HS_CHECK(step.numeric_class == NumericClass::kDecode || step.sequences.size() == 1,
           "a prefill step's sequences");
  s.begin(step);
  HS_CHECK(s.row_sequence.size() == step.positions.size(), "the tokens of a step's sequences");
  s.take_input();
  for (s.layer = step.layer_first; s.layer < step.layer_end; ++s.layer) {
    if (step.cancel.stop_requested()) return Error{Code::kCancelled, "cancelled"};
    if (s.options.read_ahead && s.layer + 1 < s.params().n_layer) s.model.read_ahead(s.layer + 1);
    s.run_layer();
  }
  s.give_output();
  return {};
}

}  // namespace headstart::exec
