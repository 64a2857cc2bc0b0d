// model/grammar.h: GBNF grammars, checked before libllama's sampler sees them.
//
// libllama trusts a grammar: some make its parser or its sampler run without end, or end the
// process ("x"{5,3}, rules that begin with each other twice, …). check_gbnf() bounds what a grammar
// unfolds to before anything unfolds it.
//
//   threads  pure
//   source   llama-grammar.h; https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"

struct llama_vocab;

namespace headstart::model {

inline constexpr size_t kGrammarBytesMax = size_t{1} << 20;
inline constexpr size_t kGrammarGroupsMax = 512;          // parentheses in parentheses
inline constexpr size_t kGrammarElementsMax = 1'000'000;  // after repetitions are written out
inline constexpr size_t kGrammarRulesMax = size_t{1} << 18;

// What generated text must keep to.
struct GrammarOptions {
  std::string gbnf;  // its start is `root`; empty: no grammar
  // A lazy grammar sleeps until the text holds a match of a pattern, or a trigger token, and then
  // begins with what matched.
  bool lazy = false;
  std::vector<std::string> trigger_patterns;  // ECMAScript regular expressions
  std::vector<Token> trigger_tokens;
  std::vector<Token> prefill;  // what the template wrote of the answer; the grammar covers it
  // Between these a lazy grammar takes no notice of triggers. Empty: the model does not think.
  std::vector<Token> thinking_start;
  std::vector<std::vector<Token>> thinking_ends;

  bool empty() const { return gbnf.empty(); }
};

// Errors: kInvalidArgument, saying where it does not parse or what it has too much of. `vocab` may
// be null where the grammar names no token.
Result<void> check_gbnf(const std::string& gbnf, const llama_vocab* vocab);

// A grammar for the JSON texts that a schema allows; "{}" allows any object. Errors:
// kInvalidArgument (no JSON, not a schema, a keyword that has no grammar).
Result<std::string> gbnf_of_schema(const std::string& json_schema);

}  // namespace headstart::model
