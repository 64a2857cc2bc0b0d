#include "exec/ggml_executor.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <cstring>
#include <set>

#include "base/log.h"
#include "exec/ggml_graph.h"

namespace headstart::exec {
namespace {

// Raised whenever a change of ours changes the bits of K,V.
constexpr int kRevision = 1;

struct ContextDeleter {
  void operator()(ggml_context* c) const { ggml_free(c); }
};
using Context = std::unique_ptr<ggml_context, ContextDeleter>;

struct BufferDeleter {
  void operator()(ggml_backend_buffer* b) const { ggml_backend_buffer_free(b); }
};
using Buffer = std::unique_ptr<ggml_backend_buffer, BufferDeleter>;

}  // namespace

struct GgmlExecutor::Impl {
  const model::Model& model;
  RopeTables& tables;
  GgmlExecutorOptions options;
  ggml_threadpool* threadpool = nullptr;
  ggml_backend_t backend = nullptr;
  ggml_gallocr_t allocator = nullptr;
  std::vector<std::byte> arena;  // metadata of one graph, reused for every step
  // The newest graph, kept because the next token usually needs the same one. Destroyed in reverse.
  Buffer kv_buffer;
  Context context;
  std::unique_ptr<GgmlGraph> newest;
  uint32_t grain = 1;
  const std::stop_token* cancel = nullptr;

  Impl(const model::Model& m, RopeTables& t, const GgmlExecutorOptions& o)
      : model(m), tables(t), options(o) {}
  ~Impl() {
    if (allocator != nullptr) ggml_gallocr_free(allocator);
    if (backend != nullptr) ggml_backend_free(backend);
    if (threadpool != nullptr) ggml_threadpool_free(threadpool);
  }

  Result<void> start();
  Result<void> prepare(const LayerStep& step);
  Result<void> compute(ggml_cgraph* graph);
  bool multiplies_invariantly(ggml_tensor* weight);
  uint32_t probe_grain();
};

Result<void> GgmlExecutor::Impl::start() {
  ggml_threadpool_params params =
      ggml_threadpool_params_default(static_cast<int>(options.n_threads));
  threadpool = ggml_threadpool_new(&params);
  backend = ggml_backend_cpu_init();
  if (threadpool == nullptr || backend == nullptr) {
    return Error{Code::kExhausted, "no memory for the compute threads; use fewer with -t"};
  }
  ggml_backend_cpu_set_n_threads(backend, static_cast<int>(options.n_threads));
  ggml_backend_cpu_set_threadpool(backend, threadpool);
  auto stop_asked = [](void* self) {
    const auto* token = static_cast<Impl*>(self)->cancel;
    return token != nullptr && token->stop_requested();
  };
  ggml_backend_cpu_set_abort_callback(backend, stop_asked, this);
  allocator = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
  const size_t n_node = GgmlGraph::graph_nodes(model.params().n_layer);
  arena.resize(ggml_tensor_overhead() * n_node + ggml_graph_overhead_custom(n_node, false));
  grain = probe_grain();
  return {};
}

// Makes `newest` the allocated graph of this step, its inputs set.
Result<void> GgmlExecutor::Impl::prepare(const LayerStep& step) {
  if (newest != nullptr && newest->fits(step)) {
    newest->bind(step);
    newest->set_inputs();
    return {};
  }
  newest.reset();
  context.reset(ggml_init({arena.size(), arena.data(), /*no_alloc=*/true}));
  const auto kv_memory = step.sequences.front().kv->mapping();
  kv_buffer.reset(ggml_backend_cpu_buffer_from_ptr(kv_memory.data(), kv_memory.size()));
  auto built = std::make_unique<GgmlGraph>(context.get(), model, tables, step, kv_buffer.get(),
                                           options.reference_numerics);
  ggml_cgraph* nodes = built->build();
  // alloc_graph alone keeps an old plan where node counts and sizes agree, whatever the topology:
  // the range [5, 10) of gemma3 would get the memory plan of [10, 15).
  if (!ggml_gallocr_reserve(allocator, nodes) || !ggml_gallocr_alloc_graph(allocator, nodes)) {
    return Error{Code::kExhausted, "no memory to compute; use a smaller batch or context"};
  }
  built->set_inputs();
  newest = std::move(built);
  return {};
}

Result<void> GgmlExecutor::Impl::compute(ggml_cgraph* graph) {
  switch (ggml_backend_graph_compute(backend, graph)) {
    case GGML_STATUS_SUCCESS: return {};
    case GGML_STATUS_ABORTED: return Error{Code::kCancelled, "cancelled"};
    case GGML_STATUS_ALLOC_FAILED:
      return Error{Code::kExhausted, "no memory to compute; use a smaller batch or context"};
    default: break;
  }
  HS_CHECK(false, "ggml could not compute the graph");
  return {};
}

// Multiplies 64 columns at once and the same columns in the smallest padded batch; same bits?
bool GgmlExecutor::Impl::multiplies_invariantly(ggml_tensor* weight) {
  constexpr int64_t kColumns = 64;
  ggml_init_params params{arena.size(), arena.data(), /*no_alloc=*/true};
  Context ctx(ggml_init(params));
  ggml_tensor* all = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, weight->ne[0], kColumns);
  ggml_set_input(all);
  ggml_tensor* some = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, weight->ne[0], kTokenPad);
  ggml_set_input(some);
  ggml_tensor* of_all = ggml_mul_mat(ctx.get(), weight, all);
  ggml_tensor* of_some = ggml_mul_mat(ctx.get(), weight, some);
  ggml_set_output(of_all);
  ggml_set_output(of_some);
  ggml_cgraph* graph = ggml_new_graph_custom(ctx.get(), 16, false);
  ggml_build_forward_expand(graph, of_all);
  ggml_build_forward_expand(graph, of_some);
  if (!ggml_gallocr_alloc_graph(allocator, graph)) return false;

  std::vector<float> x(static_cast<size_t>(weight->ne[0] * kColumns));
  uint32_t state = 1;
  for (float& value : x) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  const size_t first = static_cast<size_t>(weight->ne[0]) * (kColumns - 2 * kTokenPad - 1);
  ggml_backend_tensor_set(all, x.data(), 0, ggml_nbytes(all));
  ggml_backend_tensor_set(some, x.data() + first, 0, ggml_nbytes(some));
  if (!compute(graph).ok()) return false;
  std::vector<float> a(static_cast<size_t>(weight->ne[1]) * kTokenPad), b(a.size());
  ggml_backend_tensor_get(of_all, a.data(),
                          static_cast<size_t>(kColumns - 2 * kTokenPad - 1) * of_all->nb[1],
                          a.size() * sizeof(float));
  ggml_backend_tensor_get(of_some, b.data(), 0, b.size() * sizeof(float));
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

uint32_t GgmlExecutor::Impl::probe_grain() {
  std::set<std::tuple<ggml_type, ggml_backend_buffer_type_t, int64_t>> seen;
  for (uint32_t il = 0; il < model.params().n_layer; ++il) {
    const model::LayerWeights& w = model.layer(il);
    for (ggml_tensor* t : {w.wq, w.wk, w.wv, w.wo, w.gate, w.up, w.down}) {
      if (!seen.emplace(t->type, ggml_backend_buffer_get_type(t->buffer), t->ne[0]).second)
        continue;
      if (multiplies_invariantly(t)) continue;
      spdlog::info("{} depends on the batch: prompts are reused in blocks of {} tokens", t->name,
                   options.n_token_max);
      return options.n_token_max;
    }
  }
  return 1;
}

Result<std::unique_ptr<GgmlExecutor>> GgmlExecutor::open(const model::Model& model,
                                                         RopeTables& tables,
                                                         const GgmlExecutorOptions& options) {
  auto impl = std::make_unique<Impl>(model, tables, options);
  HS_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<GgmlExecutor>(new GgmlExecutor(std::move(impl)));
}

GgmlExecutor::GgmlExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgmlExecutor::~GgmlExecutor() = default;

std::string GgmlExecutor::identity() const {
  return "ggml-cpu/" + std::to_string(kRevision) + "/" HEADSTART_GGML_KEY "/" +
         kernels::target_name() + "/grain" + std::to_string(impl_->grain) +
         (impl_->options.reference_numerics ? "/reference" : "");
}

uint32_t GgmlExecutor::grain() const { return impl_->grain; }
uint32_t GgmlExecutor::n_token_max() const { return impl_->options.n_token_max; }

Result<void> GgmlExecutor::run(const LayerStep& step) {
  Impl& s = *impl_;
  HS_CHECK(!step.positions.empty() && step.positions.size() <= s.options.n_token_max,
           "a step has 1 to n_token_max tokens");
  HS_CHECK(step.layer_first < step.layer_end && step.layer_end <= s.model.params().n_layer,
           "a step's layers");
  HS_CHECK(step.sequences.size() == 1, "a step has one sequence");
  HS_CHECK(step.numeric_class == NumericClass::kPrefill || step.positions.size() == 1,
           "decode steps have one token");
  s.tables.reserve(step.positions.back() + 1);
  s.cancel = &step.cancel;

  HS_RETURN_IF_ERROR(s.prepare(step));
  HS_RETURN_IF_ERROR(s.compute(s.newest->nodes()));
  const GgmlGraph& graph = *s.newest;

  if (step.logits != nullptr && graph.logits() != nullptr) {
    const size_t n_row = step.want_logits == WantLogits::kAll ? step.positions.size() : 1;
    step.logits->resize(n_row * s.model.params().n_vocab);
    ggml_backend_tensor_get(graph.logits(), step.logits->data(), 0,
                            step.logits->size() * sizeof(float));
  }
  if (graph.hidden_out() != nullptr) {
    for (size_t i = 0; i < step.positions.size(); ++i) {
      const size_t bytes = graph.hidden_out()->nb[1];
      ggml_backend_tensor_get(graph.hidden_out(), step.hidden->row(step.positions[i]), i * bytes,
                              bytes);
    }
  }
  return {};
}

}  // namespace headstart::exec
