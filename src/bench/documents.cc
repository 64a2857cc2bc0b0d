#include "bench/documents.h"

#include <fstream>

namespace headstart::bench {
namespace {

Result<std::vector<Token>> first_tokens(std::span<const std::filesystem::path> files,
                                        const model::Tokenizer& tokenizer, size_t n_token,
                                        bool add_special) {
  std::string text;
  for (const auto& file : files) {
    std::ifstream in(file);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  std::vector<Token> tokens = tokenizer.encode(text, add_special, false);
  if (tokens.size() < n_token) {
    return Error{Code::kNotFound,
                 files.front().parent_path().string() + " has too little text for this bench"};
  }
  tokens.resize(n_token);
  return tokens;
}

}  // namespace

Result<std::string> documents(const model::Tokenizer& tokenizer, size_t n_token) {
  const std::filesystem::path licences = "/usr/share/common-licenses";
  const std::filesystem::path files[] = {licences / "GPL-3", licences / "Apache-2.0",
                                         licences / "LGPL-2.1", licences / "GFDL-1.3"};
  HS_ASSIGN_OR_RETURN(const auto tokens, first_tokens(files, tokenizer, n_token, false));
  return tokenizer.decode(tokens);
}

Result<std::vector<Token>> tokens_of(std::span<const std::filesystem::path> files,
                                     const model::Tokenizer& tokenizer, size_t n_token) {
  return first_tokens(files, tokenizer, n_token, true);
}

}  // namespace headstart::bench
