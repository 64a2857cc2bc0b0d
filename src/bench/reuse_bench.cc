// Reuse against the own cold run, the store's cost on a cold run, and the speed of loading.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/documents.h"
#include "bench/model_benches.h"
#include "bench/scratch_dir.h"
#include "exec/engine.h"
#include "exec/kv_loader.h"
#include "exec/kv_shape.h"
#include "model/fingerprint.h"
#include "model/model.h"
#include "store/disk_tier.h"

namespace headstart::bench {
namespace fs = std::filesystem;
namespace {

constexpr const char* kQuestionA = "\n\nQuestion: May I sell copies of the program?\nAnswer:";
constexpr const char* kQuestionB = "\n\nQuestion: Who provides a warranty, if anybody?\nAnswer:";

Result<std::unique_ptr<exec::Engine>> open_engine(const fs::path& model, const BenchOptions& o,
                                                  const std::optional<fs::path>& cache) {
  exec::EngineOptions e;
  e.model_path = model;
  e.n_threads = o.n_threads;
  e.operands = o.operands;
  e.cache_dir = cache;
  e.ram_budget_bytes = cache ? uint64_t{1} << 30 : 0;
  e.reuse = cache ? store::ReuseMode::kExact : store::ReuseMode::kOff;
  return exec::Engine::open(e);
}

Result<double> ttft_ms(exec::Engine& engine, const std::string& prompt,
                       const std::string& salt = {}) {
  exec::CompletionRequest r;
  r.tokens = engine.tokenizer().encode(prompt, true, false);
  r.n_predict = 4;
  r.salt = salt;
  HS_ASSIGN_OR_RETURN(const exec::Completion c, engine.complete(r));
  return c.ttft_ms;
}

// The same through the program itself, in a process of its own.
Result<double> ttft_ms_new_process(const fs::path& model, const BenchOptions& o,
                                   const fs::path& cache, const fs::path& prompt_file) {
  const std::string command =
      fmt::format("'{}' run --json -n 4 -m '{}' -t {} --cache-dir '{}' -f '{}'",
                  fs::read_symlink("/proc/self/exe").string(), model.string(), o.n_threads,
                  cache.string(), prompt_file.string());
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return Error{Code::kIo, "cannot start another process"};
  std::string out;
  std::array<char, 4096> block;
  while (const size_t n = std::fread(block.data(), 1, block.size(), pipe))
    out.append(block.data(), n);
  if (::pclose(pipe) != 0) return Error{Code::kIo, "headstart run failed in a new process"};
  return nlohmann::json::parse(out).at("ttft_ms").get<double>();
}

void drop_page_cache(const fs::path& dir) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

class ReuseRun {
 public:
  ReuseRun(const fs::path& model, const BenchOptions& o) : model_(model), o_(o) {}

  Result<std::vector<Row>> run(uint32_t n_repeat) {
    for (uint32_t i = 0; i < n_repeat; ++i) HS_RETURN_IF_ERROR(round());
    std::vector<Row> rows;
    for (size_t i = 0; i < kCases.size(); ++i) {
      rows.push_back(paired_row(std::string(kCases[i]) + ", against own cold run", model_,
                                o_.n_threads, "ms ttft", warm_ms_[i], cold_ms_));
    }
    return rows;
  }

 private:
  static constexpr std::array<const char*, 5> kCases = {
      "4k documents, other question, same process", "identical prompt again, same process",
      "4k documents, other question, new process", "identical prompt again, new process",
      "4k documents, other question, new process, cold page cache"};

  Result<void> round() {
    ScratchDir dir;
    HS_ASSIGN_OR_RETURN(const auto engine, open_engine(model_, o_, dir.path() / "kv"));
    HS_ASSIGN_OR_RETURN(const std::string text, documents(engine->tokenizer(), 4000));
    HS_ASSIGN_OR_RETURN(const double cold, ttft_ms(*engine, text + kQuestionA));
    cold_ms_.push_back(cold);
    engine->flush_store();
    HS_ASSIGN_OR_RETURN(const double other, ttft_ms(*engine, text + kQuestionB));
    HS_ASSIGN_OR_RETURN(const double same, ttft_ms(*engine, text + kQuestionA));
    engine->flush_store();
    const fs::path prompt = dir.path() / "prompt.txt";
    auto in_new_process = [&](const char* question) {
      std::ofstream(prompt) << text << question;
      return ttft_ms_new_process(model_, o_, dir.path() / "kv", prompt);
    };
    HS_ASSIGN_OR_RETURN(const double new_other,
                        in_new_process("\n\nQuestion: What is the source code?\nAnswer:"));
    HS_ASSIGN_OR_RETURN(const double new_same, in_new_process(kQuestionA));
    drop_page_cache(dir.path() / "kv");
    HS_ASSIGN_OR_RETURN(const double cold_cache,
                        in_new_process("\n\nQuestion: What is a patent?\nAnswer:"));
    const double all[] = {other, same, new_other, new_same, cold_cache};
    for (size_t i = 0; i < kCases.size(); ++i) warm_ms_[i].push_back(all[i]);
    return {};
  }

  const fs::path model_;
  const BenchOptions& o_;
  std::vector<double> cold_ms_;
  std::array<std::vector<double>, kCases.size()> warm_ms_;
};

}  // namespace

Result<std::vector<Row>> bench_reuse(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    HS_ASSIGN_OR_RETURN(const auto found, ReuseRun(path, o).run(o.n_repeat != 0 ? o.n_repeat : 1));
    rows.insert(rows.end(), found.begin(), found.end());
  }
  return rows;
}

Result<std::vector<Row>> bench_store(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    ScratchDir dir;
    HS_ASSIGN_OR_RETURN(const auto with, open_engine(path, o, dir.path() / "kv"));
    HS_ASSIGN_OR_RETURN(const auto without, open_engine(path, o, std::nullopt));
    HS_ASSIGN_OR_RETURN(const std::string text, documents(with->tokenizer(), 2048));
    std::vector<double> values, references;
    const uint32_t n_repeat = o.n_repeat != 0 ? o.n_repeat : 5;
    for (uint32_t i = 0; i < n_repeat; ++i) {
      Result<void> done;
      // A salt of its own makes every run cold. What the background thread does counts as well.
      auto run = [&](exec::Engine& engine) {
        return measure_s(o.n_threads, [&] {
          const auto ttft = ttft_ms(engine, text, "run " + std::to_string(i));
          engine.flush_store();
          if (!ttft.ok()) done = ttft.error();
        });
      };
      const double first = run(i % 2 == 0 ? *with : *without);
      const double second = run(i % 2 == 0 ? *without : *with);
      HS_RETURN_IF_ERROR(done);
      values.push_back(i % 2 == 0 ? first : second);
      references.push_back(i % 2 == 0 ? second : first);
    }
    rows.push_back(paired_row("cold 2048 tokens, store on, against --no-cache", path, o.n_threads,
                              std::string("s ") + time_kind(o.n_threads), values, references));
  }
  return rows;
}

Result<std::vector<Row>> bench_load(const BenchOptions& o) {
  std::vector<Row> rows;
  for (const auto& path : o.models) {
    ScratchDir dir;
    std::vector<Token> tokens;
    HS_ASSIGN_OR_RETURN(const Digest fingerprint, model::fingerprint(path, {}));
    {
      HS_ASSIGN_OR_RETURN(const auto engine, open_engine(path, o, dir.path() / "kv"));
      HS_ASSIGN_OR_RETURN(const std::string text, documents(engine->tokenizer(), 2048));
      tokens = engine->tokenizer().encode(text, true, false);
      HS_ASSIGN_OR_RETURN([[maybe_unused]] const double cold, ttft_ms(*engine, text));
    }  // flushed
    PosixDisk disk;
    SystemClock clock;
    HS_ASSIGN_OR_RETURN(auto tier,
                        store::DiskTier::open(dir.path() / "kv", uint64_t{4} << 30, disk, clock));
    std::vector<std::unique_ptr<store::Tier>> tiers;
    tiers.push_back(std::move(tier));
    store::Store store(std::move(tiers), uint64_t{1} << 20);
    HS_ASSIGN_OR_RETURN(const auto model, model::Model::open(path));
    const model::ModelParams& p = model->params();
    const kv::KvShape shape = exec::kv_shape_of(p);
    HS_ASSIGN_OR_RETURN(const auto kv,
                        kv::LiveKv::open(shape, kv::LiveType::kF16, kv::LiveType::kF16, 4096));
    exec::RopeTables tables(p);
    tables.reserve(4096);
    kv::Capture capture(shape, kv::kChunkTokensMax);
    const auto match = store.match({fingerprint, {}, shape, "", tokens, store::ReuseMode::kExact});
    const exec::LoadTarget target{&p, &tables, fingerprint, kv.get()};
    const uint64_t bytes = match.n_token * shape.bytes_per_token();
    if (match.n_token < 1024) return Error{Code::kNotFound, "the bench found too little to load"};
    std::vector<std::byte> from(bytes), to(bytes);
    std::vector<double> values, references;
    for (uint32_t i = 0; i < (o.n_repeat != 0 ? o.n_repeat : 9); ++i) {
      uint32_t n_present = 0;
      const double load_s = measure_s(1, [&] {
        n_present = exec::load_prefix(store, match, match.n_token, target, capture).n_token;
      });
      HS_CHECK(n_present == match.n_token, "every chunk loads");
      const double copy_s = measure_s(1, [&] { std::memcpy(to.data(), from.data(), bytes); });
      values.push_back(static_cast<double>(bytes) / load_s * 1e-9);
      references.push_back(static_cast<double>(bytes) / copy_s * 1e-9);
    }
    rows.push_back(paired_row("chunk load into the live cache, against memcpy", path, 1, "GB/s cpu",
                              values, references));
  }
  return rows;
}

}  // namespace headstart::bench
