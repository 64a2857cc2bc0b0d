// Prefill and decode speed of our executor against libllama from the same source.
#include "base/rounding.h"
#include "bench/model_benches.h"
#include "bench/sides.h"

namespace headstart::bench {
namespace {

constexpr uint32_t kContextMin = 8704;

// Steps both sides through the same tokens, turn about, and adds up their seconds: whatever else
// the machine does meets both alike.
class Race {
 public:
  static Result<std::unique_ptr<Race>> open(const std::filesystem::path& model,
                                            const BenchOptions& o) {
    std::unique_ptr<Race> race(new Race(model, o));
    uint32_t n_ctx = kContextMin;
    for (const uint32_t n : o.rows) n_ctx = std::max(n_ctx, pad_to(n + kBatch, kBatch));
    HS_ASSIGN_OR_RETURN(race->theirs_, Libllama::open(model, o.n_threads, n_ctx));
    HS_ASSIGN_OR_RETURN(const auto prefill, kernels::prefill_ops(o.operands));
    HS_ASSIGN_OR_RETURN(
        race->ours_,
        Ours::open(model, n_ctx,
                   {.n_threads = o.n_threads, .n_token_max = kBatch, .prefill = prefill}));
    return race;
  }

  Row run(const std::string& name, uint32_t n_prefix, uint32_t n_token, uint32_t n_step,
          uint32_t n_repeat) {
    const auto tokens = random_tokens(n_prefix + n_token, ours_->n_vocab());
    std::vector<double> values, references;
    theirs_->truncate(0);
    steps(std::span(tokens).first(n_prefix), 0, kBatch, false);
    for (uint32_t i = 0; i < n_repeat; ++i) {
      ours_s_ = theirs_s_ = 0;
      theirs_->truncate(n_prefix);
      steps(std::span(tokens).subspan(n_prefix), n_prefix, n_step, i % 2 == 1);
      values.push_back(n_token / ours_s_);
      references.push_back(n_token / theirs_s_);
    }
    return paired_row(name, model_, o_.n_threads, std::string("tok/s ") + time_kind(o_.n_threads),
                      values, references);
  }

 private:
  Race(const std::filesystem::path& model, const BenchOptions& o) : model_(model), o_(o) {}

  void steps(std::span<const Token> tokens, uint32_t pos, uint32_t n_step, bool theirs_first) {
    const auto numeric_class =
        n_step == 1 ? exec::NumericClass::kDecode : exec::NumericClass::kPrefill;
    for (uint32_t i = 0; i < tokens.size(); i += n_step) {
      const auto part = tokens.subspan(i, std::min<size_t>(n_step, tokens.size() - i));
      const bool last = n_step == 1 || i + part.size() == tokens.size();
      auto ours = [&] {
        ours_s_ +=
            measure_s(o_.n_threads, [&] { ours_->step(part, pos + i, numeric_class, last); });
      };
      if (!theirs_first) ours();
      theirs_s_ += measure_s(o_.n_threads, [&] { theirs_->step(part, pos + i, last); });
      if (theirs_first) ours();
    }
  }

  const std::filesystem::path model_;
  const BenchOptions& o_;
  std::unique_ptr<Libllama> theirs_;
  std::unique_ptr<Ours> ours_;
  double ours_s_ = 0, theirs_s_ = 0;
};

}  // namespace

Result<std::vector<Row>> bench_prefill(const BenchOptions& o) {
  std::vector<Row> rows;
  auto repeat = [&](uint32_t usual) { return o.n_repeat != 0 ? o.n_repeat : usual; };
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(const auto race, Race::open(path, o));
    for (const uint32_t n : o.rows_or({512, 2048, 8000})) {
      const uint32_t usual = n < 2048 ? 7 : n < 8000 ? 3 : 1;
      rows.push_back(
          race->run("prefill " + std::to_string(n) + " tokens, against " + libllama_name(), 0, n,
                    kBatch, repeat(usual)));
    }
    if (!o.rows.empty()) continue;
    rows.push_back(race->run("prefill 16 tokens after 2048, against " + libllama_name(), 2048, 16,
                             16, repeat(7)));
  }
  return rows;
}

Result<std::vector<Row>> bench_decode(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(const auto race, Race::open(path, o));
    for (const uint32_t n_prefix : o.rows_or({512, 8000})) {
      rows.push_back(race->run(
          "decode 64 tokens after " + std::to_string(n_prefix) + ", against " + libllama_name(),
          n_prefix, 64, 1, o.n_repeat != 0 ? o.n_repeat : 5));
    }
  }
  return rows;
}

}  // namespace headstart::bench
