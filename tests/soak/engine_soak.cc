// Proves that reuse stays right, bounded and clean over time: the real engine with a store that is
// too small, while files are damaged, requests cancelled, engines restarted, and another process
// and a second engine write to the same folder.
//
//   engine_soak smollm2|tiny SECONDS [SEED [THREADS]]   seed 0: a random one, printed
//   engine_soak peer ...                                the other process, started by the first
//
// After every request: an answer equals that of a run without reuse (where K,V were only equal up
// to rounding, most answers do), RAM and disk are within their budgets. At each restart: nothing
// temporary is left. At the end: memory has stopped growing, a file of somebody else is untouched.
// To add a fault, give it a place in Soak::disturb(); to add a promise, in judge() or bounds().
#include <signal.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/disk.h"
#include "store/disk_tier.h"
#include "tests/soak/chunk_folder.h"
#include "tests/soak/prompt_pool.h"
#include "tests/support/models.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_gguf.h"

extern char** environ;

namespace headstart::test {
namespace {

using exec::Completion;
using exec::CompletionRequest;
using exec::Engine;
using exec::EngineOptions;
using store::ReuseMode;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

// Budgets in documents; the prompts are made of five, with many endings.
constexpr double kDiskDocuments[] = {1.3, 2.3};
constexpr double kRamDocuments[] = {0, 0.5, 1};
constexpr size_t kPoolMax = 150;
// By which resident memory may differ between the second and the last quarter of the run: what
// malloc keeps when models are opened and closed.
constexpr int64_t kRssGrowthMax = int64_t{32} << 20;

struct Subject {
  fs::path gguf;
  size_t n_document_token = 0;
  uint64_t bytes_per_token = 0;  // of K,V, all layers
  uint32_t n_threads = 1;        // ggml's waiting threads spin, and tests run side by side
  uint64_t budget(double n_document) const {
    return static_cast<uint64_t>(n_document * static_cast<double>(n_document_token)) *
           bytes_per_token;
  }
  uint64_t chunk_bytes_max() const { return kv::kChunkTokensMax * bytes_per_token + 8192; }
};

uint64_t rss_bytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

EngineOptions options_for(const fs::path& gguf, uint32_t n_threads) {
  EngineOptions o;
  o.model_path = gguf;
  o.n_ctx = PromptPool::kTokensMax;
  o.n_threads = n_threads;
  o.reuse = ReuseMode::kOff;
  return o;
}

std::unique_ptr<Engine> open(const EngineOptions& options) {
  auto engine = Engine::open(options);
  HS_CHECK(engine.ok(), engine.error().message.c_str());
  return *std::move(engine);
}

// One request and how it is disturbed.
struct Ask {
  const Prompt* prompt = nullptr;
  ReuseMode mode = ReuseMode::kStrict;
  std::string salt;
  // Cancelled after this many slices, after this many pieces of text, or after this time.
  std::optional<uint32_t> n_slice, n_piece;
  std::optional<std::chrono::milliseconds> delay;
  bool may_be_cancelled() const { return n_slice || n_piece || delay; }
};

struct Outcome {
  Result<Completion> completion = Error{Code::kCancelled, "not run"};
  std::string delivered;
};

Outcome run(Engine& engine, const Ask& ask) {
  Outcome out;
  std::stop_source stop;
  CompletionRequest r = request_for(*ask.prompt);
  r.reuse = ask.mode;
  r.salt = ask.salt;
  r.cancel = stop.get_token();
  uint32_t n_slice = 0, n_piece = 0;
  r.progress = [&](std::string_view phase, double) {
    // The first report is of what is reused.
    if (ask.n_slice && phase == "prefill" && ++n_slice > *ask.n_slice + 1) stop.request_stop();
  };
  r.on_text = [&](std::string_view piece) {
    out.delivered += piece;
    return !ask.n_piece || ++n_piece <= *ask.n_piece;
  };
  std::jthread hurry;
  if (ask.delay) {
    hurry = std::jthread([&stop, end = Clock::now() + *ask.delay](std::stop_token answered) {
      while (Clock::now() < end && !answered.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      stop.request_stop();
    });
  }
  out.completion = engine.complete(r);
  return out;
}

// Another process over the same folder. Ends by itself or is killed; what it had begun to write is
// for the others to sweep.
class Peer {
 public:
  void start(std::vector<std::string> words) {
    words.insert(words.begin(), {"engine_soak", "peer"});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int error =
        ::posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ);
    HS_CHECK(error == 0, std::strerror(error));
  }
  ~Peer() { end(); }
  bool lives() const { return pid_ > 0; }
  void end() {
    if (!lives()) return;
    ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
  }
  // False where it ended by itself and not well.
  bool check() {
    int status = 0;
    if (!lives() || ::waitpid(pid_, &status, WNOHANG) != pid_) return true;
    pid_ = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = 0;
};

class Soak {
 public:
  Soak(Subject subject, double seconds, uint64_t seed);
  int run();

 private:
  size_t below(size_t n) { return random_() % n; }
  bool one_in(size_t n) { return below(n) == 0; }
  double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool alone() const { return !peer_.lives() && beside_ == nullptr; }
  void broken(const std::string& what);

  std::unique_ptr<Engine> open_engine();
  void close(std::unique_ptr<Engine>& engine);
  Ask next_ask();
  void disturb();
  void restart();
  void step();
  void settle();
  void judge(const Ask& ask, const Outcome& outcome);
  void judge_answer(const Ask& ask, const Completion& got, const std::string& delivered);
  void bounds(bool written);
  void disk_bound(bool written);
  void finish();
  void judge_memory();
  void print_summary() const;

  const Subject subject_;
  const double seconds_;
  const uint64_t seed_;
  std::mt19937_64 random_;
  const Clock::time_point start_ = Clock::now();
  TempDir dir_;
  const fs::path folder_ = dir_ / "kv", foreign_ = folder_ / "notes.txt";
  std::unique_ptr<Engine> cold_, engine_, beside_;
  uint64_t disk_budget_ = 0, ram_budget_ = 0;
  std::unique_ptr<PromptPool> pool_;
  Peer peer_;
  std::vector<std::pair<double, int64_t>> rss_;  // seconds since the start, bytes
  std::vector<std::string> problems_;
  uint64_t n_request_ = 0, n_answer_ = 0, n_cancelled_ = 0, n_reused_ = 0;
  uint64_t n_rounded_ = 0, n_rounded_differs_ = 0;
  uint64_t n_restart_ = 0, n_peer_ = 0, n_killed_ = 0, n_beside_ = 0, n_damage_ = 0;
  uint64_t n_corrupt_ = 0, n_evicted_ = 0;  // as the closed engines' tiers counted
  uint64_t shared_bytes_max_ = 0;
};

void Soak::broken(const std::string& what) {
  problems_.push_back("request " + std::to_string(n_request_) + ": " + what);
}

Soak::Soak(Subject subject, double seconds, uint64_t seed)
    : subject_(std::move(subject)), seconds_(seconds), seed_(seed), random_(seed) {
  fs::create_directories(folder_);
  std::ofstream(foreign_) << "not ours";
  cold_ = open(options_for(subject_.gguf, subject_.n_threads));
  auto answer_of = [this](const CompletionRequest& request) {
    auto answer = cold_->complete(request);
    HS_CHECK(answer.ok(), answer.error().message.c_str());
    return *std::move(answer);
  };
  auto pool = PromptPool::open(cold_->tokenizer(), subject_.n_document_token, seed_, answer_of);
  HS_CHECK(pool.ok(), pool.error().message.c_str());
  pool_ = *std::move(pool);
  restart();
}

std::unique_ptr<Engine> Soak::open_engine() {
  constexpr uint32_t kBatches[] = {48, 128, 512};
  EngineOptions o = options_for(subject_.gguf, subject_.n_threads);
  o.n_batch = kBatches[below(std::size(kBatches))];
  o.cache_dir = folder_;
  o.disk_budget_bytes = disk_budget_;
  o.ram_budget_bytes = ram_budget_;
  o.reuse = ReuseMode::kExact;
  return open(o);
}

void Soak::close(std::unique_ptr<Engine>& engine) {
  if (engine == nullptr) return;
  for (const auto& [name, tier] : engine->stats().store.tiers) {
    n_corrupt_ += tier.n_corrupt;
    n_evicted_ += tier.n_evicted;
  }
  engine = nullptr;
}

Ask Soak::next_ask() {
  const bool fresh = pool_->size() < 8 || (pool_->size() < kPoolMax && one_in(12));
  Ask ask;
  ask.prompt = fresh ? &pool_->add() : &pool_->at(below(pool_->size()));
  ask.mode = one_in(12) ? ReuseMode::kOff : one_in(2) ? ReuseMode::kExact : ReuseMode::kStrict;
  if (one_in(10)) ask.salt = "another principal";
  if (one_in(7)) {
    switch (below(3)) {
      case 0: ask.n_slice = below(3); break;
      case 1: ask.n_piece = below(4); break;
      case 2: ask.delay = std::chrono::milliseconds(below(120)); break;
    }
  }
  return ask;
}

void Soak::disturb() {
  const bool was_alone = alone();
  if (one_in(9)) n_damage_ += damage_one(folder_, random_);
  if (one_in(50)) restart();
  if (peer_.lives()) {
    if (!peer_.check()) broken("the other process failed");
    if (one_in(12)) {
      peer_.end();
      ++n_killed_;
    }
  } else if (one_in(60)) {
    peer_.start({subject_.gguf.string(), folder_.string(), std::to_string(disk_budget_),
                 std::to_string(1 + below(20)), std::to_string(seed_),
                 std::to_string(subject_.n_document_token)});
    ++n_peer_;
  }
  if (beside_ != nullptr) {
    if (one_in(12)) close(beside_);
  } else if (one_in(60)) {
    beside_ = open_engine();
    ++n_beside_;
  }
  if (!was_alone && alone()) settle();
}

// With other budgets, and damage while nobody looks.
void Soak::restart() {
  n_restart_ += engine_ != nullptr;
  close(engine_);
  for (size_t n = below(3); n > 0; --n) n_damage_ += damage_one(folder_, random_);
  disk_budget_ = subject_.budget(kDiskDocuments[below(std::size(kDiskDocuments))]);
  ram_budget_ = subject_.budget(kRamDocuments[below(std::size(kRamDocuments))]);
  engine_ = open_engine();
  if (!alone()) return;
  if (n_temp_file(folder_) > 0) broken("temporary files outlive a restart");
  disk_bound(true);
}

// Once nobody else writes any more, the next look at the folder brings it within the budget.
void Soak::settle() {
  engine_->flush_store();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));  // until a look is due again
  Ask ask;
  ask.prompt = &pool_->at(0);
  judge(ask, test::run(*engine_, ask));
  bounds(true);
}

void Soak::step() {
  disturb();
  const Ask ask = next_ask();
  if (beside_ == nullptr) {
    judge(ask, test::run(*engine_, ask));
  } else {
    const Ask other = next_ask();
    Outcome outcome, other_outcome;
    {
      std::jthread thread([&] { other_outcome = test::run(*beside_, other); });
      outcome = test::run(*engine_, ask);
    }
    judge(ask, outcome);
    judge(other, other_outcome);
  }
  const bool written = one_in(8);
  if (written) engine_->flush_store();
  bounds(written);
}

void Soak::judge(const Ask& ask, const Outcome& outcome) {
  ++n_request_;
  if (outcome.completion.ok()) return judge_answer(ask, *outcome.completion, outcome.delivered);
  const Error& error = outcome.completion.error();
  if (error.code != Code::kCancelled || !ask.may_be_cancelled()) return broken(error.message);
  ++n_cancelled_;
  if (ask.mode != ReuseMode::kExact && !ask.prompt->want.text.starts_with(outcome.delivered)) {
    broken("a cancelled answer began with \"" + outcome.delivered + "\" instead of \"" +
           ask.prompt->want.text + "\"");
  }
}

void Soak::judge_answer(const Ask& ask, const Completion& got, const std::string& delivered) {
  const Completion& want = ask.prompt->want;
  ++n_answer_;
  n_reused_ += got.n_cached > 0;
  if (got.text != delivered) broken("the text delivered is not the answer's");
  if (got.n_prompt != ask.prompt->tokens.size() || got.n_cached >= got.n_prompt) {
    broken("counts of tokens are wrong");
  }
  if (ask.mode == ReuseMode::kOff && got.n_cached > 0) broken("reuse in mode off");
  if (ask.mode == ReuseMode::kStrict && got.n_cached_rounded > 0) broken("rounded in mode strict");
  const bool same = got.tokens == want.tokens && got.text == want.text && got.finish == want.finish;
  if (got.n_cached_rounded > 0) {
    ++n_rounded_;
    n_rounded_differs_ += !same;
  } else if (!same) {
    broken("an answer differs after reuse of " + std::to_string(got.n_cached) + " of " +
           std::to_string(got.n_prompt) + " tokens: \"" + got.text + "\" instead of \"" +
           want.text + "\"");
  }
}

// `written`: nothing waits to be stored.
void Soak::bounds(bool written) {
  for (const Engine* engine : {engine_.get(), beside_.get()}) {
    if (engine == nullptr) continue;
    for (const auto& [name, tier] : engine->stats().store.tiers) {
      if (tier.size_bytes > tier.budget_bytes) broken("the budget of " + name + " is exceeded");
    }
  }
  disk_bound(written);
  if (alone() && written) rss_.emplace_back(elapsed_s(), rss_bytes());
}

// While a chunk is written anew with more strict tokens, the old one still stands beside it. What
// others write is seen at the next look.
void Soak::disk_bound(bool written) {
  uint64_t limit = disk_budget_ + fs::file_size(foreign_);
  if (!alone()) {
    limit += 2 * subject_.budget(kDiskDocuments[1]);
  } else if (!written) {
    limit += subject_.chunk_bytes_max();
  }
  uint64_t bytes = folder_bytes(folder_);
  if (!alone()) shared_bytes_max_ = std::max(shared_bytes_max_, bytes);
  for (int again = 0; again < 3 && bytes > limit; ++again) bytes = folder_bytes(folder_);
  if (bytes > limit) {
    broken("the folder takes " + std::to_string(bytes) + " bytes, more than " +
           std::to_string(limit));
  }
}

void Soak::finish() {
  const bool shared = !alone();
  peer_.end();
  close(beside_);
  if (shared) settle();
  restart();  // sweeps
  close(engine_);
  PosixDisk disk;
  SystemClock clock;
  auto tier = store::DiskTier::open(folder_, disk_budget_, disk, clock);
  HS_CHECK(tier.ok(), tier.error().message.c_str());
  for (int pass = 0; pass < 2; ++pass) {  // the first drops what was damaged and never read
    const auto report = (*tier)->verify();
    if (!report.ok() || (pass == 1 && report->n_corrupt > 0)) broken("damage outlives verify()");
  }
  std::string text;
  std::getline(std::ifstream(foreign_), text);
  if (text != "not ours") broken("a file of somebody else was touched");
  if (n_rounded_differs_ * 3 > n_rounded_ + 10) broken("too many rounded answers differ");
  if (n_reused_ * 4 < n_answer_ || n_evicted_ == 0 || n_corrupt_ == 0) {
    broken("too little was reused, evicted or damaged to prove anything");
  }
  judge_memory();
}

// The medians of the second and the last quarter: by then every prompt length was seen.
void Soak::judge_memory() {
  auto median = [this](double first_s, double end_s) {
    std::vector<int64_t> values;
    for (const auto& [when_s, bytes] : rss_) {
      if (when_s >= first_s && when_s < end_s) values.push_back(bytes);
    }
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
  };
  const double whole_s = elapsed_s();
  const int64_t early = median(whole_s / 4, whole_s / 2), late = median(whole_s * 3 / 4, whole_s);
  std::printf("resident memory: %lld MiB in the second quarter, %lld MiB in the last\n",
              static_cast<long long>(early >> 20), static_cast<long long>(late >> 20));
  if (early > 0 && late > early + kRssGrowthMax) broken("memory grows");
}

void Soak::print_summary() const {
  const auto n = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "%llu requests on %zu prompts in %.0f s: %llu answers, %llu of them with reuse, "
      "%llu cancelled\n",
      n(n_request_), pool_->size(), elapsed_s(), n(n_answer_), n(n_reused_), n(n_cancelled_));
  std::printf("%llu answers from rounded K,V, of which %llu differ\n", n(n_rounded_),
              n(n_rounded_differs_));
  std::printf("%llu restarts, %llu files damaged (%llu found), %llu chunks evicted\n",
              n(n_restart_), n(n_damage_), n(n_corrupt_), n(n_evicted_));
  std::printf(
      "%llu other processes (%llu killed), %llu engines beside; the shared folder took at "
      "most %.1f budgets\n",
      n(n_peer_), n(n_killed_), n(n_beside_),
      static_cast<double>(shared_bytes_max_) /
          static_cast<double>(subject_.budget(kDiskDocuments[0])));
}

int Soak::run() {
  while (elapsed_s() < seconds_ && problems_.empty()) step();
  if (problems_.empty()) finish();
  print_summary();
  for (const std::string& problem : problems_) std::printf("BROKEN %s\n", problem.c_str());
  std::printf("%s (seed %llu)\n", problems_.empty() ? "nothing broke" : "broken",
              static_cast<unsigned long long>(seed_));
  return problems_.empty() ? 0 : 1;
}

int run_peer(const std::vector<std::string>& words) {
  EngineOptions o = options_for(words.at(0), 1);
  o.cache_dir = words.at(1);
  o.disk_budget_bytes = std::stoull(words.at(2));
  o.reuse = ReuseMode::kExact;
  const auto engine = open(o);
  const auto pool =
      PromptPool::open(engine->tokenizer(), std::stoull(words.at(5)), std::stoull(words.at(4)), {});
  HS_CHECK(pool.ok(), pool.error().message.c_str());
  std::mt19937_64 random(std::stoull(words.at(3)));
  for (uint64_t n = std::stoull(words.at(3)); n > 0; --n) {
    Ask ask;
    const size_t i = random() % 24;
    while ((*pool)->size() <= i) (*pool)->add();
    ask.prompt = &(*pool)->at(i);
    ask.mode = random() % 3 == 0 ? ReuseMode::kExact : ReuseMode::kStrict;
    if (!run(*engine, ask).completion.ok()) return 1;
  }
  return 0;
}

int run_soak(const std::string& model, double seconds, uint64_t seed, uint32_t n_threads) {
  TempDir dir;
  Subject subject;
  if (model == "tiny") {
    const TinyModel tiny = tiny_model("llama");
    subject = {.gguf = dir / "tiny.gguf",
               .n_document_token = 400,
               .bytes_per_token = uint64_t{tiny.n_layer} * tiny.n_head_kv * tiny.d_head * 4};
    write_tiny_gguf(tiny, subject.gguf);
  } else {
    const auto path = model_path(RealModel::kSmolLm2);
    HS_CHECK(path.ok(), path.error().message.c_str());
    subject = {
        .gguf = *path, .n_document_token = 120, .bytes_per_token = uint64_t{30} * 3 * 64 * 4};
  }
  subject.n_threads = n_threads;
  return Soak(subject, seconds, seed).run();
}

}  // namespace
}  // namespace headstart::test

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  spdlog::set_level(spdlog::level::err);  // damage is warned of, and wanted here
  if (words.size() == 7 && words[0] == "peer") {
    return headstart::test::run_peer({words.begin() + 1, words.end()});
  }
  if (words.size() < 2) {
    std::fprintf(stderr, "engine_soak smollm2|tiny SECONDS [SEED [THREADS]]\n");
    return 2;
  }
  uint64_t seed = words.size() > 2 ? std::stoull(words[2]) : 0;
  if (seed == 0) seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  const auto n_threads = static_cast<uint32_t>(words.size() > 3 ? std::stoul(words[3]) : 1);
  return headstart::test::run_soak(words[0], std::stod(words[1]), seed, n_threads);
}
