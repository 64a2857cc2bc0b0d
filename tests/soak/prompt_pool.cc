#include "tests/soak/prompt_pool.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace headstart::test {
namespace {

constexpr size_t kDocuments = 5;
constexpr const char* kTexts = "/usr/share/common-licenses";
constexpr const char* kQuestions[] = {
    "",
    "\nIn short:",
    "\n\nQuestion: who may copy this, and on what terms?\nAnswer:",
    "\nThe next paragraph says that",
    " and",
    "\n\nSummarise the text above in one sentence for a reader in a hurry. The summary is:"};

size_t below(std::mt19937_64& random, size_t n) { return random() % n; }

// The texts in the order of their names; links to them are left out.
std::vector<std::string> read_texts() {
  std::vector<std::filesystem::path> files;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(kTexts, missing)) {
    if (!entry.is_symlink()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> texts;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return texts;
}

}  // namespace

exec::CompletionRequest request_for(const Prompt& prompt) {
  exec::CompletionRequest r;
  r.tokens = prompt.tokens;
  r.n_predict = prompt.n_predict;
  r.sampling = prompt.sampling;
  r.reuse = store::ReuseMode::kOff;
  return r;
}

Result<std::unique_ptr<PromptPool>> PromptPool::open(const model::Tokenizer& tokenizer,
                                                     size_t n_document_token, uint64_t seed,
                                                     Answer answer) {
  std::unique_ptr<PromptPool> pool(new PromptPool);
  pool->seed_ = seed;
  pool->answer_ = std::move(answer);
  const std::vector<std::string> texts = read_texts();
  if (texts.empty()) return Error{Code::kNotFound, std::string(kTexts) + " holds no text"};
  std::mt19937_64 random(seed);
  while (pool->documents_.size() < kDocuments) {
    const std::string& text = texts[below(random, texts.size())];
    const size_t first = text.size() < 4000 ? 0 : below(random, text.size() - 4000);
    auto tokens = tokenizer.encode(text.substr(first, 4000), true, false);
    tokens.resize(std::min(tokens.size(), n_document_token));
    pool->documents_.push_back(std::move(tokens));
  }
  for (const char* question : kQuestions) {
    pool->questions_.push_back(tokenizer.encode(question, false, false));
  }
  return pool;
}

const Prompt& PromptPool::add() {
  std::mt19937_64 random(seed_ * 1'000'003 + prompts_.size());
  Prompt p;
  const bool follow_up = below(random, 3) == 0;
  const size_t base = prompts_.size() - std::min(prompts_.size(), 1 + below(random, 5));
  const auto& document = documents_[below(random, documents_.size())];
  const auto& question = questions_[below(random, questions_.size())];
  const size_t n_shared = 1 + below(random, document.size());
  if (follow_up && base < prompts_.size() && !prompts_[base].want.tokens.empty()) {
    p.tokens = prompts_[base].tokens;
    const auto& said = prompts_[base].want.tokens;
    p.tokens.insert(p.tokens.end(), said.begin(), said.end());
  } else {
    p.tokens.assign(document.begin(), document.begin() + static_cast<ptrdiff_t>(n_shared));
  }
  p.tokens.insert(p.tokens.end(), question.begin(), question.end());
  p.n_predict = static_cast<uint32_t>(below(random, 7));
  p.tokens.resize(std::min<size_t>(p.tokens.size(), kTokensMax - p.n_predict));
  // Sampling shows small differences that greedy answers hide.
  if (below(random, 3) == 0) p.sampling.temperature = 1.0f;
  p.sampling.seed = static_cast<uint32_t>(prompts_.size());
  if (answer_) p.want = answer_(request_for(p));
  return prompts_.emplace_back(std::move(p));
}

}  // namespace headstart::test
