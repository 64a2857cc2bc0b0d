// model/tokenizer.h: text to tokens and back, through libllama's vocabulary of the same GGUF.
//
//   threads  const methods may be called from any thread at once
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"

struct llama_model;
struct llama_vocab;

namespace headstart::model {

inline constexpr size_t kTextBytesMax = size_t{64} << 20;  // of one encode()

class Tokenizer {
 public:
  // Loads vocabulary and metadata only, no weights. Errors: kIo, kUnsupported.
  static Result<std::unique_ptr<Tokenizer>> open(const std::filesystem::path& gguf);
  ~Tokenizer();

  // `add_special` puts BOS (and what else the model asks for) in front, unless the text already
  // begins with it; `parse_special` reads <|…|> markers as single tokens (rendered templates).
  // CHECKs kTextBytesMax.
  std::vector<Token> encode(std::string_view text, bool add_special, bool parse_special) const;
  // The bytes of one token; may be a part of a UTF-8 sequence. Control tokens give nothing, unless
  // `special` asks for their markers.
  std::string piece(Token token, bool special = false) const;
  std::string decode(std::span<const Token> tokens) const;
  bool is_end(Token token) const;  // end of text or of turn
  int32_t n_vocab() const;
  TextEnd text_end(Token token) const;  // table made once
  const llama_model* handle() const { return model_; }
  const llama_vocab* vocab() const { return vocab_; }

 private:
  explicit Tokenizer(llama_model* model);
  llama_model* model_;
  const llama_vocab* vocab_;
  std::vector<TextEnd> text_ends_;  // [n_vocab]
};

}  // namespace headstart::model
