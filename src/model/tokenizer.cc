#include "model/tokenizer.h"

#include <ggml-backend.h>
#include <llama.h>

#include <cstring>

#include "model/llama_log.h"

namespace headstart::model {
namespace {

// A token ends a paragraph with a blank line, a sentence with its mark or a single newline.
TextEnd classify(std::string_view text) {
  size_t n = text.size();
  while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t' || text[n - 1] == '\r')) --n;
  size_t newlines = 0;
  while (n > 0 && text[n - 1] == '\n') --n, ++newlines;
  if (newlines >= 2) return TextEnd::kParagraph;
  if (newlines == 1) return TextEnd::kSentence;
  const std::string_view rest = text.substr(0, n);
  for (std::string_view mark : {".", "!", "?", ":", ";", "。", "！", "？"}) {
    if (rest.ends_with(mark)) return TextEnd::kSentence;
  }
  return TextEnd::kNone;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::open(const std::filesystem::path& gguf) {
  quiet_libllama();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  try {
    llama_model* model = llama_model_load_from_file(gguf.c_str(), params);
    if (model != nullptr &&
        llama_vocab_type(llama_model_get_vocab(model)) != LLAMA_VOCAB_TYPE_NONE) {
      return std::unique_ptr<Tokenizer>(new Tokenizer(model));
    }
    if (model != nullptr) llama_model_free(model);
  } catch (const std::exception& e) {
    return Error{Code::kUnsupported, gguf.string() + ": " + e.what()};
  }
  return Error{Code::kUnsupported, gguf.string() + " has no vocabulary that libllama can read"};
}

Tokenizer::Tokenizer(llama_model* model) : model_(model), vocab_(llama_model_get_vocab(model)) {
  text_ends_.resize(static_cast<size_t>(n_vocab()));
  for (Token t = 0; t < n_vocab(); ++t) {
    const bool control = llama_vocab_is_control(vocab_, t) || llama_vocab_is_eog(vocab_, t);
    text_ends_[static_cast<size_t>(t)] = control ? TextEnd::kParagraph : classify(piece(t));
  }
}

Tokenizer::~Tokenizer() { llama_model_free(model_); }

std::vector<Token> Tokenizer::encode(std::string_view text, bool add_special,
                                     bool parse_special) const {
  HS_CHECK(text.size() <= kTextBytesMax, "a text within the stated limit");
  std::vector<Token> tokens(text.size() + 8);
  auto fill = [&] {
    return llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                          static_cast<int32_t>(tokens.size()), add_special, parse_special);
  };
  int32_t n = fill();
  if (n < 0) {  // more tokens than bytes: invalid UTF-8 becomes several tokens a byte
    tokens.resize(static_cast<size_t>(-int64_t{n}));
    n = fill();
  }
  HS_CHECK(n >= 0, "the second buffer is as large as the first call asked for");
  tokens.resize(static_cast<size_t>(n));
  // A template may write BOS itself; one is enough (parse_special made the second a token).
  const Token bos = llama_vocab_bos(vocab_);
  if (add_special && tokens.size() >= 2 && tokens[0] == bos && tokens[1] == bos) {
    tokens.erase(tokens.begin());
  }
  return tokens;
}

std::string Tokenizer::piece(Token token, bool special) const {
  if (token < 0 || token >= n_vocab()) return {};
  char small[64];
  int32_t n = llama_token_to_piece(vocab_, token, small, sizeof small, 0, special);
  if (n >= 0) return std::string(small, static_cast<size_t>(n));
  std::string large(static_cast<size_t>(-n), '\0');
  n = llama_token_to_piece(vocab_, token, large.data(), -n, 0, special);
  large.resize(static_cast<size_t>(std::max(n, 0)));
  return large;
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  for (Token t : tokens) text += piece(t);
  return text;
}

bool Tokenizer::is_end(Token token) const { return llama_vocab_is_eog(vocab_, token); }

int32_t Tokenizer::n_vocab() const { return llama_vocab_n_tokens(vocab_); }

TextEnd Tokenizer::text_end(Token token) const {
  return token >= 0 && token < n_vocab() ? text_ends_[static_cast<size_t>(token)] : TextEnd::kNone;
}

}  // namespace headstart::model
