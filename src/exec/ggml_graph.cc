#include "exec/ggml_graph.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rounding.h"

namespace headstart::exec {
namespace {

uint32_t padded_tokens(const LayerStep& step, bool reference_numerics) {
  const auto n = static_cast<uint32_t>(step.positions.size());
  const bool pad = step.numeric_class == NumericClass::kPrefill && !reference_numerics;
  return pad ? pad_to(n, kTokenPad) : n;
}

}  // namespace

GgmlGraph::GgmlGraph(ggml_context* ctx, const model::Model& model, const RopeTables& tables,
                     const LayerStep& step, ggml_backend_buffer* kv_buffer, bool reference_numerics)
    : ctx_(ctx),
      model_(model),
      tables_(tables),
      step_(&step),
      kv_buffer_(kv_buffer),
      reference_numerics_(reference_numerics),
      shape_(shape_of(step)),
      n_padded_(padded_tokens(step, reference_numerics)) {}

GgmlGraph::Shape GgmlGraph::shape_of(const LayerStep& step) const {
  const kv::LiveKv& kv = *step.sequences.front().kv;
  const uint32_t first = step.positions.front(), n_window = params().n_window;
  return {.layer_first = step.layer_first,
          .layer_end = step.layer_end,
          .n_token = static_cast<uint32_t>(step.positions.size()),
          .n_key_end = std::min(kv.n_ctx(), pad_to(step.positions.back() + 1, kKeyPad)),
          .key_first_windowed = n_window == 0 || first + 1 <= n_window
                                    ? 0
                                    : (first + 1 - n_window) / kKeyPad * kKeyPad,
          .numeric_class = step.numeric_class,
          .want_logits = step.want_logits,
          .hidden = step.hidden != nullptr,
          .kv = kv.mapping().data(),
          .type_k = kv.type(kv::Part::kKey),
          .type_v = kv.type(kv::Part::kValue),
          .n_ctx = kv.n_ctx()};
}

bool GgmlGraph::fits(const LayerStep& step) const { return shape_of(step) == shape_; }

ggml_tensor* GgmlGraph::new_input(ggml_type type, int64_t n_inner, int64_t n_outer) {
  ggml_tensor* t = ggml_new_tensor_2d(ctx_, type, n_inner, n_outer);
  ggml_set_input(t);
  return t;
}

ggml_cgraph* GgmlGraph::build() {
  const model::ModelParams& p = params();
  graph_ = ggml_new_graph_custom(ctx_, graph_nodes(step_->layer_end - step_->layer_first), false);
  positions_ = new_input(GGML_TYPE_I32, n_padded_, 1);
  ggml_tensor* x;
  if (step_->layer_first == 0) {
    tokens_ = new_input(GGML_TYPE_I32, n_padded_, 1);
    x = ggml_get_rows(ctx_, model_.token_embedding(), tokens_);
    if (p.embedding_scale != 1.0f) x = ggml_scale(ctx_, x, p.embedding_scale);
  } else {
    x = hidden_in_ = new_input(GGML_TYPE_F32, p.d_model, n_padded_);
  }
  for (layer_ = step_->layer_first; layer_ < step_->layer_end; ++layer_) {
    x = model_.arch().layer(*this, model_.layer(layer_), x);
  }
  if (step_->want_logits != WantLogits::kNone) build_output(x);
  if (x != nullptr && step_->hidden != nullptr && step_->layer_end < p.n_layer) {
    hidden_out_ = x;
    ggml_set_output(x);
    ggml_build_forward_expand(graph_, x);
  }
  return graph_;
}

void GgmlGraph::build_output(ggml_tensor* x) {
  const model::ModelParams& p = params();
  if (step_->want_logits == WantLogits::kLast && x->ne[1] > 1) {
    x = ggml_view_2d(ctx_, x, x->ne[0], 1, x->nb[1], (n_token() - 1) * x->nb[1]);
  }
  ggml_tensor* y = linear(model_.output(), model_.output_bias(), norm(x, model_.output_norm()));
  if (p.logit_softcap != 0.0f) {
    y = ggml_scale(ctx_, ggml_tanh(ctx_, ggml_scale(ctx_, y, 1.0f / p.logit_softcap)),
                   p.logit_softcap);
  }
  logits_ = y;
  ggml_set_output(y);
  ggml_build_forward_expand(graph_, y);
}

bool GgmlGraph::last_row_only() const {
  return layer_ + 1 == params().n_layer && step_->want_logits == WantLogits::kLast &&
         !reference_numerics_;
}

bool GgmlGraph::kv_only() const {
  return layer_ + 1 == step_->layer_end && step_->want_logits == WantLogits::kNone &&
         (step_->hidden == nullptr || step_->layer_end == params().n_layer);
}

ggml_tensor* GgmlGraph::wanted(ggml_tensor* rows) {
  if (!last_row_only() || rows->ne[1] == 1) return rows;
  return ggml_view_2d(ctx_, rows, rows->ne[0], 1, rows->nb[1], (n_token() - 1) * rows->nb[1]);
}

ggml_tensor* GgmlGraph::rope(ggml_tensor* x, ggml_tensor* positions) {
  const kernels::RopeConfig& c = params().rope_of(layer_);
  ggml_tensor*& factors = freq_factors_[params().windowed[layer_] ? 1 : 0];
  if (factors == nullptr && !c.freq_factors.empty()) {
    factors = new_input(GGML_TYPE_F32, static_cast<int64_t>(c.freq_factors.size()), 1);
  }
  const int mode =
      c.pairs == kernels::RopePairs::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  return ggml_rope_ext(ctx_, x, positions, factors, static_cast<int>(c.n_rot), mode,
                       static_cast<int>(c.n_ctx_orig), c.freq_base, c.freq_scale, c.ext_factor,
                       c.attn_factor, c.beta_fast, c.beta_slow);
}

ggml_tensor* GgmlGraph::rotate(ggml_tensor* q) {
  if (q->ne[2] == static_cast<int64_t>(n_padded_)) return rope(q, positions_);
  if (last_position_ == nullptr) last_position_ = new_input(GGML_TYPE_I32, 1, 1);
  return rope(q, last_position_);
}

void GgmlGraph::store_kv(ggml_tensor* k, ggml_tensor* v) {
  if (reference_numerics_) k = rope(k, positions_);
  store_ops_.push_back({this, layer_});
  ggml_tensor* sources[] = {k, v};
  const int n_tasks = n_token() == 1 ? 1 : GGML_N_TASKS_MAX;
  ggml_tensor* stored = ggml_custom_4d(ctx_, GGML_TYPE_F32, 1, 1, 1, 1, sources, 2, store_rows,
                                       n_tasks, &store_ops_.back());
  // Before the attention node: nodes run in the order in which they were added.
  ggml_build_forward_expand(graph_, stored);
}

void GgmlGraph::store_rows(ggml_tensor* dst, int ith, int nth, void* userdata) {
  const auto& op = *static_cast<const StoreOp*>(userdata);
  const LayerStep& step = *op.graph->step_;
  const kernels::RopeTable& table = op.graph->tables_.of(op.layer);
  const bool rotate = !op.graph->reference_numerics_;  // else k arrives rotated
  const SequenceRows& sequence = step.sequences.front();
  const kv::KvShape& shape = sequence.kv->shape();
  const auto n_token = step.positions.size();
  thread_local std::vector<kv::Half> raw, rotated;
  for (size_t i = n_token * static_cast<size_t>(ith) / static_cast<size_t>(nth);
       i < n_token * static_cast<size_t>(ith + 1) / static_cast<size_t>(nth); ++i) {
    const uint32_t pos = step.positions[i];
    for (kv::Part part : {kv::Part::kKey, kv::Part::kValue}) {
      const ggml_tensor* source = dst->src[static_cast<size_t>(part)];
      const auto* row = reinterpret_cast<const float*>(static_cast<const char*>(source->data) +
                                                       i * source->nb[2]);
      const size_t n_value = shape.row_values(part);
      raw.resize(n_value);
      kernels::to_half({row, n_value}, raw.data());
      if (sequence.capture != nullptr) {
        std::memcpy(sequence.capture->row(op.layer, part, pos), raw.data(),
                    n_value * sizeof(kv::Half));
      }
      if (part == kv::Part::kKey && rotate) {
        rotated.resize(n_value);
        kernels::rotate_token(table, pos, shape.n_head_kv, raw.data(), rotated.data());
        sequence.kv->write(op.layer, part, pos, rotated);
      } else {
        sequence.kv->write(op.layer, part, pos, raw);
      }
    }
  }
}

const GgmlGraph::Mask& GgmlGraph::mask(bool windowed, uint32_t n_row, uint32_t n_repeat) {
  const bool last_only = last_row_only();
  for (const Mask& m : masks_) {
    if (m.windowed == windowed && m.last_only == last_only) return m;
  }
  Mask m{nullptr, windowed, last_only, n_repeat, windowed ? shape_.key_first_windowed : 0};
  m.tensor = new_input(GGML_TYPE_F16, shape_.n_key_end - m.key_first, n_row);
  masks_.push_back(m);
  return masks_.back();
}

// [n_query, n_head, d_head] -> [n_head_kv, n_query * group, d_head]: the query heads that share K,V
// become rows.
ggml_tensor* GgmlGraph::heads_to_rows(ggml_tensor* q) {
  const int64_t n_kv = params().n_head_kv, n_group = params().n_head / n_kv, n_query = q->ne[2];
  ggml_tensor* grouped = ggml_reshape_4d(ctx_, q, q->ne[0], n_group, n_kv, n_query);
  grouped = ggml_cont(ctx_, ggml_permute(ctx_, grouped, 0, 1, 3, 2));
  return ggml_reshape_3d(ctx_, grouped, q->ne[0], n_group * n_query, n_kv);
}

// The way back, from attention's [n_row, n_head_kv, d_head] to [n_query, n_head * d_head].
ggml_tensor* GgmlGraph::rows_to_heads(ggml_tensor* out, int64_t n_query) {
  const int64_t n_kv = params().n_head_kv, n_group = params().n_head / n_kv, d_head = out->ne[0];
  ggml_tensor* rows = ggml_view_4d(ctx_, out, d_head, n_kv, n_group, n_query, out->nb[1],
                                   out->nb[2], out->nb[2] * static_cast<size_t>(n_group), 0);
  rows = ggml_cont(ctx_, ggml_permute(ctx_, rows, 0, 2, 1, 3));
  return ggml_reshape_2d(ctx_, rows, d_head * n_kv * n_group, n_query);
}

ggml_tensor* GgmlGraph::attend(ggml_tensor* q, float scale) {
  const model::ModelParams& p = params();
  const kv::LiveKv& kv = *step_->sequences.front().kv;
  const bool windowed = p.windowed[layer_];
  const int64_t n_query = q->ne[2];
  const bool tiled = step_->numeric_class == NumericClass::kPrefill && !reference_numerics_ &&
                     kv.type(kv::Part::kKey) == kv::LiveType::kF16;
  // Few queries would be padded to 64 rows in every head: let the heads be rows of one tile.
  const bool merged = tiled && n_query < kAttentionRowsMin && p.n_head > p.n_head_kv;
  const uint32_t n_repeat = merged ? p.n_head / p.n_head_kv : 1;
  q = merged ? heads_to_rows(q) : ggml_permute(ctx_, q, 0, 2, 1, 3);  // [head, row, d_head]
  const int64_t n_row = n_query * n_repeat;
  const int64_t n_row_padded = tiled ? std::max<int64_t>(n_row, kAttentionRowsMin) : n_row;
  const Mask m = mask(windowed, static_cast<uint32_t>(n_row_padded), n_repeat);
  if (n_row_padded > n_row) {
    if (!merged) q = ggml_cont(ctx_, q);
    q = ggml_pad(ctx_, q, 0, static_cast<int>(n_row_padded - n_row), 0, 0);
  }

  auto view = [&](kv::Part part, uint32_t d_head) {
    const ggml_type type = kv.type(part) == kv::LiveType::kF16 ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
    ggml_tensor* t =
        ggml_new_tensor_3d(ctx_, type, d_head, p.n_head_kv, shape_.n_key_end - m.key_first);
    ggml_backend_tensor_alloc(kv_buffer_, t, kv.row(layer_, part, m.key_first));
    return ggml_permute(ctx_, t, 0, 2, 1, 3);
  };
  ggml_tensor* out =
      ggml_flash_attn_ext(ctx_, q, view(kv::Part::kKey, p.d_head_k),
                          view(kv::Part::kValue, p.d_head_v), m.tensor, scale, 0.0f, 0.0f);
  ggml_prec_set_acc(out, GGML_PREC_F32);
  if (merged) return rows_to_heads(out, n_query);
  const int64_t width = out->ne[0] * out->ne[1];
  return ggml_view_2d(ctx_, out, width, n_query, static_cast<size_t>(width) * sizeof(float), 0);
}

void GgmlGraph::set_inputs() {
  const auto n = n_token();
  std::vector<int32_t> row(n_padded_, static_cast<int32_t>(step_->positions.back()));
  std::copy(step_->positions.begin(), step_->positions.end(), row.begin());
  auto set = [](ggml_tensor* t, const void* from) {
    if (t != nullptr && t->data != nullptr) ggml_backend_tensor_set(t, from, 0, ggml_nbytes(t));
  };
  set(positions_, row.data());
  if (last_position_ != nullptr) set(last_position_, &row[n - 1]);
  if (tokens_ != nullptr) {
    row.assign(n_padded_, step_->tokens.back());
    std::copy(step_->tokens.begin(), step_->tokens.end(), row.begin());
    set(tokens_, row.data());
  }
  if (hidden_in_ != nullptr) {
    const size_t d_model = params().d_model;
    std::vector<float> rows(n_padded_ * d_model);
    for (uint32_t i = 0; i < n; ++i) {
      std::memcpy(&rows[i * d_model], step_->hidden->row(step_->positions[i]),
                  d_model * sizeof(float));
    }
    set(hidden_in_, rows.data());
  }
  set(freq_factors_[0], params().rope.freq_factors.data());
  set(freq_factors_[1], params().rope_windowed.freq_factors.data());
  for (const Mask& m : masks_) fill_mask(m);
}

// A query sees the keys up to its own position; in a windowed layer its own and n_window - 1 more.
void GgmlGraph::fill_mask(const Mask& m) const {
  constexpr kv::Half kHidden = 0xFC00;  // -inf
  const auto n_key = static_cast<size_t>(m.tensor->ne[0]);
  std::vector<kv::Half> values(n_key * static_cast<size_t>(m.tensor->ne[1]), kHidden);
  const size_t n_row = (m.last_only ? 1 : n_token()) * size_t{m.n_repeat};
  const uint32_t window = m.windowed ? params().n_window : 0;
  for (size_t row = 0; row < n_row; ++row) {
    const uint32_t pos = m.last_only ? step_->positions.back() : step_->positions[row / m.n_repeat];
    const uint32_t first = window != 0 && pos + 1 > window ? pos + 1 - window : 0;
    const size_t begin = first > m.key_first ? first - m.key_first : 0;
    std::fill(values.begin() + static_cast<ptrdiff_t>(row * n_key + begin),
              values.begin() + static_cast<ptrdiff_t>(row * n_key + pos - m.key_first + 1),
              kv::Half{0});
  }
  ggml_backend_tensor_set(m.tensor, values.data(), 0, ggml_nbytes(m.tensor));
}

}  // namespace headstart::exec
