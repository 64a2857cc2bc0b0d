// Products and attention of prefill, each alone: how near they come to the multiply-adds that this
// core does in registers, and attention against ggml's.
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>

#include "bench/model_benches.h"
#include "exec/kv_shape.h"
#include "exec/native_products.h"
#include "kernels/layer_ops.h"
#include "kernels/peak.h"
#include "kernels/rope.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kBatch = 512;
constexpr uint32_t kTokens = 8000;
constexpr uint64_t kPeakRounds = 1 << 18;  // some milliseconds
// Of the largest value that both attentions give: their operands are rounded differently.
constexpr float kAlike = 0.02f;

// Operations and the seconds that they took.
struct Work {
  double n_operation = 0;
  double s = 0;
  double gflop_s() const { return n_operation / s * 1e-9; }
};

float noise(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1;
}

// ggml's flash attention of one step's queries over the same K,V, in a graph of its own.
class GgmlAttention {
 public:
  GgmlAttention(const model::ModelParams& p, uint32_t n_threads, uint32_t n_token)
      : p_(p), n_threads_(n_threads), mask_(size_t{pad_kv(n_token)} * kBatch) {
    ggml_threadpool_params params =
        ggml_threadpool_params_default(static_cast<int>(std::max(1u, n_threads)));
    pool_ = ggml_threadpool_new(&params);
    HS_CHECK(pool_ != nullptr, "threads for ggml");
  }
  ~GgmlAttention() { ggml_threadpool_free(pool_); }

  // q [n_query][n_head, d_head_k] f32, K and V of one layer; what comes out is [n_query][n_head,
  // d_head_v]. Only what ggml computes is timed.
  double run_s(float* q, const kv::LiveKv& kv, uint32_t pos, uint32_t n_query) {
    const uint32_t n_kv = pad_kv(pos + n_query);
    fill_mask(pos, n_query, n_kv);
    ggml_init_params params{ggml_tensor_overhead() * 16 + ggml_graph_overhead(), nullptr, true};
    ggml_context* ctx = ggml_init(params);
    ggml_tensor* queries = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, p_.d_head_k, p_.n_head, n_query);
    queries->data = q;
    ggml_tensor* mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n_kv, n_query);
    mask->data = mask_.data();
    ggml_tensor* keys = rows(ctx, kv, kv::Part::kKey, p_.d_head_k, n_kv);
    ggml_tensor* values = rows(ctx, kv, kv::Part::kValue, p_.d_head_v, n_kv);
    ggml_tensor* out = ggml_flash_attn_ext(ctx, ggml_permute(ctx, queries, 0, 2, 1, 3), keys,
                                           values, mask, p_.attention_scale, 0, 0);
    out_.resize(static_cast<size_t>(ggml_nelements(out)));
    out->data = out_.data();
    ggml_cgraph* graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_cplan plan = ggml_graph_plan(graph, static_cast<int>(n_threads_), pool_);
    work_.resize(plan.work_size);
    plan.work_data = work_.data();
    const double s = measure_s(n_threads_, [&] {
      HS_CHECK(ggml_graph_compute(graph, &plan) == GGML_STATUS_SUCCESS, "ggml computes");
    });
    ggml_free(ctx);
    return s;
  }
  const std::vector<float>& out() const { return out_; }

 private:
  static uint32_t pad_kv(uint32_t n) { return (n + 255) / 256 * 256; }

  // As libllama has it: heads outside positions.
  static ggml_tensor* rows(ggml_context* ctx, const kv::LiveKv& kv, kv::Part part, uint32_t d_head,
                           uint32_t n_kv) {
    ggml_tensor* t = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, d_head, kv.shape().n_head_kv, n_kv);
    t->data = kv.row(0, part, 0);
    return ggml_permute(ctx, t, 0, 2, 1, 3);
  }

  void fill_mask(uint32_t pos, uint32_t n_query, uint32_t n_kv) {
    const ggml_fp16_t seen = ggml_fp32_to_fp16(0), hidden = ggml_fp32_to_fp16(-INFINITY);
    for (uint32_t i = 0; i < n_query; ++i) {
      ggml_fp16_t* row = mask_.data() + size_t{i} * n_kv;
      std::fill_n(row, pos + i + 1, seen);
      std::fill(row + pos + i + 1, row + n_kv, hidden);
    }
  }

  const model::ModelParams& p_;
  uint32_t n_threads_;
  ggml_threadpool* pool_ = nullptr;
  std::vector<ggml_fp16_t> mask_;  // [n_query, n_kv]
  std::vector<float> out_;
  std::vector<uint8_t> work_;
};

class Measurement {
 public:
  static Result<std::unique_ptr<Measurement>> open(const std::filesystem::path& path,
                                                   const BenchOptions& o, uint32_t n_token) {
    std::unique_ptr<Measurement> m(new Measurement(path, o, n_token));
    HS_ASSIGN_OR_RETURN(m->model_, model::Model::open(path));
    HS_ASSIGN_OR_RETURN(m->weights_, exec::native_weights(*m->model_));
    kv::KvShape shape = exec::kv_shape_of(m->model_->params());
    shape.n_layer = 1;
    HS_ASSIGN_OR_RETURN(m->kv_, kv::LiveKv::open(shape, kv::LiveType::kF16, kv::LiveType::kF16,
                                                 (n_token + kBatch) / 256 * 256));
    m->fill();
    return m;
  }

  Result<std::vector<Row>> run(uint32_t n_repeat) {
    std::vector<double> products, attention, ours, theirs;
    std::vector<double> products_peak, attention_peak;
    for (uint32_t i = 0; i < n_repeat; ++i) {
      const auto [gemm, gemm_peak] = measure_products();
      products.push_back(gemm.gflop_s());
      products_peak.push_back(gemm_peak.gflop_s());
      HS_ASSIGN_OR_RETURN(const Attentions a, measure_attention(i % 2 == 1));
      attention.push_back(a.ours.gflop_s());
      attention_peak.push_back(a.peak.gflop_s());
      ours.push_back(a.ours.gflop_s());
      theirs.push_back(a.theirs.gflop_s());
    }
    const std::string tile = std::string(", ") + products_.tile().name;
    const std::string peak = tile + ", against its multiply-adds in registers";
    const std::string tokens = std::to_string(n_token_) + " tokens";
    return std::vector<Row>{
        row("products of " + std::to_string(n_row()) + " rows" + peak, products, products_peak),
        row("attention over " + tokens + peak, attention, attention_peak),
        row("attention over " + tokens + tile + ", against ggml's flash attention", ours, theirs)};
  }

 private:
  struct Attentions {
    Work ours, theirs, peak;
  };

  Measurement(const std::filesystem::path& path, const BenchOptions& o, uint32_t n_token)
      : path_(path),
        n_threads_(o.n_threads),
        n_token_(n_token),
        products_({&kernels::tile_ops(), &kernels::tile_ops()}, o.n_threads, 0) {}

  const model::ModelParams& params() const { return model_->params(); }
  uint32_t n_row() const { return std::min(kBatch, n_token_); }
  Row row(const std::string& name, const std::vector<double>& values,
          const std::vector<double>& references) const {
    return paired_row(name, path_, n_threads_, std::string("GFLOP/s ") + time_kind(n_threads_),
                      values, references);
  }

  void fill();
  void add_peak(Work& work);
  std::pair<Work, Work> measure_products();
  double multiply_layer(const exec::NativeLayerWeights& w);
  Result<Attentions> measure_attention(bool theirs_first);
  Work attend(uint32_t pos, uint32_t n_query);
  bool alike(const GgmlAttention& ggml, uint32_t n_query);

  std::filesystem::path path_;
  uint32_t n_threads_, n_token_;
  std::unique_ptr<model::Model> model_;
  exec::NativeWeights weights_;
  std::unique_ptr<kv::LiveKv> kv_;  // one layer of it
  exec::NativeProducts products_;
  exec::ProductRows x_, ff_in_, attended_, ff_;
  std::vector<float> q_;    // [n_row, n_head * d_head_k]
  std::vector<float> out_;  // of the widest product
};

// Noise everywhere: how long it takes does not depend on the values.
void Measurement::fill() {
  const model::ModelParams& p = params();
  uint32_t state = 1;
  std::vector<float> row(std::max({size_t{p.d_model}, size_t{p.n_ff}, size_t{p.n_head} * p.d_head_k,
                                   size_t{p.n_head} * p.d_head_v}));
  const size_t n_attended = size_t{p.n_head} * p.d_head_v;
  x_.resize(n_row(), p.d_model, products_.row_bytes(p.d_model));
  ff_in_.resize(n_row(), p.n_ff, products_.row_bytes(p.n_ff));
  attended_.resize(n_row(), n_attended, products_.row_bytes(n_attended));
  ff_.resize(n_row(), p.n_ff, products_.row_bytes(p.n_ff));
  for (exec::ProductRows* rows : {&x_, &ff_in_, &attended_}) {
    for (uint32_t i = 0; i < n_row(); ++i) {
      for (float& v : row) v = noise(state);
      products_.to_input(row.data(), rows->n_value(), rows->row(i));
    }
  }
  q_.resize(size_t{n_row()} * p.n_head * p.d_head_k);
  for (float& v : q_) v = noise(state);
  out_.resize(size_t{n_row()} * row.size() + size_t{n_row()} * 2 * p.n_head_kv * p.d_head_k);
  std::vector<kv::Half> half;
  for (const kv::Part part : {kv::Part::kKey, kv::Part::kValue}) {
    const size_t n = size_t{p.n_head_kv} * (part == kv::Part::kKey ? p.d_head_k : p.d_head_v);
    half.resize(n);
    for (uint32_t pos = 0; pos < kv_->n_ctx(); ++pos) {
      for (size_t i = 0; i < n; ++i) row[i] = noise(state);
      kernels::to_half({row.data(), n}, half.data());
      kv_->write(0, part, pos, half);
    }
  }
}

void Measurement::add_peak(Work& work) {
  std::vector<uint64_t> n_operation(n_threads_);
  work.s += measure_s(n_threads_, [&] {
    products_.pool().run(n_threads_, [&](uint32_t item, uint32_t) {
      n_operation[item] = kernels::multiply_in_registers(products_.tile(), kPeakRounds);
    });
  });
  for (const uint64_t n : n_operation) work.n_operation += static_cast<double>(n);
}

// All matrices of a layer as prefill takes them; returns the operations.
double Measurement::multiply_layer(const exec::NativeLayerWeights& w) {
  const exec::RowRange all{0, n_row()};
  float* const k = out_.data();
  float* const v = k + size_t{n_row()} * w.wk.n_row;
  products_.multiply(x_, all, {{&w.wk, k}, {&w.wv, v}});
  products_.multiply(x_, all, {{&w.wq, out_.data()}});
  products_.multiply(attended_, all, {{&w.wo, out_.data()}});
  products_.multiply_gated(x_, all, w, params().activation, ff_);
  products_.multiply(ff_in_, all, {{&w.down, out_.data()}});
  double n_weight = 0;
  for (const kernels::WeightMatrix* m : {&w.wq, &w.wk, &w.wv, &w.wo, &w.gate, &w.up, &w.down}) {
    n_weight += static_cast<double>(m->n_row) * m->n_col;
  }
  return 2 * n_weight * n_row();
}

std::pair<Work, Work> Measurement::measure_products() {
  Work work, peak;
  for (const exec::NativeLayerWeights& w : weights_.layers) {
    add_peak(peak);
    work.s += measure_s(n_threads_, [&] { work.n_operation += multiply_layer(w); });
  }
  return {work, peak};
}

Work Measurement::attend(uint32_t pos, uint32_t n_query) {
  const model::ModelParams& p = params();
  std::vector<uint32_t> positions(n_query);
  for (uint32_t i = 0; i < n_query; ++i) positions[i] = pos + i;
  kernels::Attention shape;
  shape.n_group = p.n_head / p.n_head_kv;
  shape.d_head_k = p.d_head_k;
  shape.d_head_v = p.d_head_v;
  shape.scale = p.attention_scale;
  shape.q = q_.data();
  shape.q_stride = size_t{p.n_head} * p.d_head_k;
  Work work;
  for (const uint32_t position : positions) {
    work.n_operation += 2.0 * (position + 1) * p.n_head * (p.d_head_k + p.d_head_v);
  }
  work.s = measure_s(n_threads_, [&] {
    const exec::SequenceRows sequence{n_query, kv_.get()};
    products_.attend({shape, {&sequence, 1}, 0, positions, nullptr}, {0, n_query}, attended_);
  });
  return work;
}

// Both attend step by step, turn about; the operations are those that causal attention needs.
Result<Measurement::Attentions> Measurement::measure_attention(bool theirs_first) {
  GgmlAttention ggml(params(), n_threads_, n_token_);
  Attentions a;
  for (uint32_t pos = 0; pos < n_token_; pos += kBatch) {
    const uint32_t n_query = std::min(kBatch, n_token_ - pos);
    if (theirs_first) a.theirs.s += ggml.run_s(q_.data(), *kv_, pos, n_query);
    add_peak(a.peak);
    const Work work = attend(pos, n_query);
    if (!theirs_first) a.theirs.s += ggml.run_s(q_.data(), *kv_, pos, n_query);
    a.ours.s += work.s;
    a.ours.n_operation += work.n_operation;
    a.theirs.n_operation += work.n_operation;
    if (!alike(ggml, n_query)) {
      return Error{Code::kCorrupt, "the two attentions differ: one of them is wrong"};
    }
  }
  return a;
}

// Of the last query; rows of a bf16 tile are its operands and not looked at.
bool Measurement::alike(const GgmlAttention& ggml, uint32_t n_query) {
  if (products_.row_bytes(1) != sizeof(float)) return true;
  const size_t n = attended_.n_value();
  const float* const ours = attended_.floats(n_query - 1);
  const float* const theirs = ggml.out().data() + (n_query - 1) * n;
  float difference = 0, largest = 0;
  for (size_t i = 0; i < n; ++i) {
    difference = std::max(difference, std::fabs(ours[i] - theirs[i]));
    largest = std::max(largest, std::fabs(theirs[i]));
  }
  return difference <= kAlike * largest;
}

}  // namespace

Result<std::vector<Row>> bench_attention(const BenchOptions& o) {
  if (kernels::multiply_in_registers(kernels::tile_ops(), 1) == 0) {
    return Error{Code::kUnsupported,
                 std::string("nothing is known of the peak of ") + kernels::tile_ops().name};
  }
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    for (const uint32_t n_token : o.rows_or({kTokens})) {
      HS_ASSIGN_OR_RETURN(const auto measurement, Measurement::open(path, o, n_token));
      HS_ASSIGN_OR_RETURN(const auto found, measurement->run(o.n_repeat != 0 ? o.n_repeat : 3));
      rows.insert(rows.end(), found.begin(), found.end());
    }
  }
  return rows;
}

}  // namespace headstart::bench
