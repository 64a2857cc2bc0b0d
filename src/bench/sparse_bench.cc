// Block-sparse prefill against dense on the same text: time of attention and of all, key blocks,
// distance of the logits.
#include "bench/divergence.h"
#include "bench/documents.h"
#include "bench/model_benches.h"
#include "exec/executor_choice.h"
#include "exec/kv_shape.h"
#include "model/tokenizer.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kTokens = 8000;
constexpr uint32_t kBatch = 512;
constexpr uint32_t kRows = 300;  // of the last positions
constexpr float kShare = 0.98f;
constexpr double kKlAllowed = 0.005;

// One executor with its own live cache.
class Side {
 public:
  static Result<std::unique_ptr<Side>> open(model::Model& model, exec::RopeTables& tables,
                                            uint32_t n_threads, float share) {
    std::unique_ptr<Side> side(new Side);
    side->n_layer_ = model.params().n_layer;
    HS_ASSIGN_OR_RETURN(side->executor_, exec::open_executor(model, tables,
                                                             {.n_threads = n_threads,
                                                              .n_token_max = kBatch,
                                                              .kernels = exec::Kernels::kNative,
                                                              .sparse_attention = share}));
    HS_ASSIGN_OR_RETURN(side->kv_,
                        kv::LiveKv::open(exec::kv_shape_of(model.params()), kv::LiveType::kF16,
                                         kv::LiveType::kF16, (kTokens + kBatch) / kBatch * kBatch));
    return side;
  }

  Result<void> step(std::span<const Token> tokens, uint32_t pos, bool last) {
    std::vector<uint32_t> positions(tokens.size());
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = pos + static_cast<uint32_t>(i);
    exec::LayerStep s;
    s.layer_end = n_layer_;
    s.tokens = tokens;
    s.positions = positions;
    s.sequences = {{static_cast<uint32_t>(tokens.size()), kv_.get()}};
    s.want_logits = last ? exec::WantLogits::kAll : exec::WantLogits::kNone;
    s.logits = &logits_;
    s.attention = &report_;
    return executor_->run(s);
  }

  const exec::AttentionReport& report() const { return report_; }
  // [kRows, n_vocab]
  std::span<const float> last_logits(size_t n_vocab) const {
    return std::span(logits_).last(kRows * n_vocab);
  }

 private:
  Side() = default;
  uint32_t n_layer_ = 0;
  std::unique_ptr<exec::LayerExecutor> executor_;
  std::unique_ptr<kv::LiveKv> kv_;
  std::vector<float> logits_;
  exec::AttentionReport report_;
};

// Prose of the benchmark data, else licences.
Result<std::vector<Token>> prose(const std::filesystem::path& data,
                                 const std::filesystem::path& model) {
  const std::filesystem::path licences = "/usr/share/common-licenses";
  const std::filesystem::path files[] = {data / "frankenstein.txt", licences / "GPL-3",
                                         licences / "GFDL-1.3", licences / "GPL-2"};
  HS_ASSIGN_OR_RETURN(const auto tokenizer, model::Tokenizer::open(model));
  return tokens_of(files, *tokenizer, kTokens);
}

struct Comparison {
  double dense_s = 0, sparse_s = 0;
  double dense_attention_s = 0, sparse_attention_s = 0;
  double n_active = 0, n_causal = 0;
  double kl = 0;
};

// Both compute each step, turn about: whatever else the machine does meets both alike.
Result<Comparison> compare(const std::filesystem::path& path, const BenchOptions& o) {
  HS_ASSIGN_OR_RETURN(const auto model, model::Model::open(path));
  HS_ASSIGN_OR_RETURN(const auto tokens, prose(o.data, path));
  exec::RopeTables tables(model->params());
  HS_ASSIGN_OR_RETURN(const auto dense, Side::open(*model, tables, o.n_threads, 0));
  HS_ASSIGN_OR_RETURN(const auto sparse, Side::open(*model, tables, o.n_threads, kShare));
  Comparison c;
  Result<void> done;
  auto timed = [&](Side& side, uint32_t pos, double& total_s) {
    const auto part = std::span(tokens).subspan(pos, std::min(kBatch, kTokens - pos));
    const bool last = pos + kBatch >= kTokens;
    total_s += measure_s(o.n_threads, [&] {
      if (done.ok()) done = side.step(part, pos, last);
    });
  };
  for (uint32_t pos = 0; pos < kTokens; pos += kBatch) {
    const bool dense_first = pos / kBatch % 2 == 0;
    if (dense_first) timed(*dense, pos, c.dense_s);
    timed(*sparse, pos, c.sparse_s);
    if (!dense_first) timed(*dense, pos, c.dense_s);
  }
  HS_RETURN_IF_ERROR(done);
  c.dense_attention_s = dense->report().cpu_s;
  c.sparse_attention_s = sparse->report().cpu_s;
  for (const exec::AttentionActivity& a : sparse->report().activity) {
    c.n_active += a.n_active;
    c.n_causal += a.n_causal;
  }
  const size_t n_vocab = model->params().n_vocab;
  c.kl = mean_kl(dense->last_logits(n_vocab), sparse->last_logits(n_vocab), n_vocab);
  return c;
}

struct Samples {
  std::vector<double> values, references;
  void add(double value, double reference) {
    values.push_back(value);
    references.push_back(reference);
  }
};

}  // namespace

Result<std::vector<Row>> bench_sparse(const BenchOptions& o) {
  std::vector<Row> rows;
  const std::string tokens = std::to_string(kTokens) + " tokens";
  for (const auto& path : o.models) {
    Samples attention, prefill, blocks, kl;
    for (uint32_t i = 0; i < std::max(1u, o.n_repeat); ++i) {
      HS_ASSIGN_OR_RETURN(const Comparison c, compare(path, o));
      attention.add(kTokens / c.sparse_attention_s, kTokens / c.dense_attention_s);
      prefill.add(kTokens / c.sparse_s, kTokens / c.dense_s);
      blocks.add(c.n_active, c.n_causal);
      kl.add(c.kl, kKlAllowed);
    }
    auto row = [&](const std::string& name, const std::string& unit, const Samples& samples) {
      rows.push_back(paired_row(name, path, o.n_threads, unit, samples.values, samples.references));
    };
    row("attention, " + tokens + ", mass .98, against dense", "tok/s cpu", attention);
    row("prefill, " + tokens + ", mass .98, against dense",
        std::string("tok/s ") + time_kind(o.n_threads), prefill);
    row("key blocks that hold .98 of the mass, against all seen", "blocks", blocks);
    row("KL to dense, last 300 positions, against what is allowed", "nats", kl);
  }
  return rows;
}

}  // namespace headstart::bench
