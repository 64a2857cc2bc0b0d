#include "bench/documents.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace headstart::bench {

Result<std::string> documents(const model::Tokenizer& tokenizer, size_t n_token) {
  std::string text;
  for (const char* name : {"GPL-3", "Apache-2.0", "LGPL-2.1", "GFDL-1.3"}) {
    std::ifstream in(std::filesystem::path("/usr/share/common-licenses") / name);
    std::stringstream part;
    part << in.rdbuf();
    text += part.str();
  }
  auto tokens = tokenizer.encode(text, false, false);
  if (tokens.size() < n_token) {
    return Error{Code::kNotFound, "/usr/share/common-licenses has too little text for this bench"};
  }
  tokens.resize(n_token);
  return tokenizer.decode(tokens);
}

}  // namespace headstart::bench
