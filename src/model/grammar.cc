#include "model/grammar.h"

#include <json-schema-to-grammar.h>
#include <llama-grammar.h>
#include <llama.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <memory>
#include <optional>

namespace headstart::model {
namespace {

constexpr uint64_t kRepetitionMax = 2000;  // libllama's own: more of them become "any number"
constexpr size_t kErrorBytesMax = 120;     // libllama quotes all the rest of the grammar

Error refusal(const std::string& what) {
  return Error{Code::kInvalidArgument, "the grammar " + what};
}

// Reads a grammar's text as libllama does and adds up what it will unfold to.
class Unfolding {
 public:
  explicit Unfolding(std::string_view text) : text_(text) {}

  Result<void> check() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '[') {
        item(quoted(c == '"' ? '"' : ']'));
      } else if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '<') {
        at_ = std::min(text_.find('>', at_), text_.size() - 1) + 1;
        item(1);
      } else if (c == '{') {
        HS_RETURN_IF_ERROR(repetition());
      } else {
        HS_RETURN_IF_ERROR(other(c));
      }
      if (n_element_ > kGrammarElementsMax || n_rule_ > kGrammarRulesMax) {
        return refusal("repeats too much; lower its repetitions");
      }
    }
    return {};
  }

 private:
  void item(uint64_t n) {
    n_item_ = n;
    n_element_ += n;
  }

  // The elements of a literal or of a class: no more than it has bytes.
  uint64_t quoted(char end) {
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != end) at_ += text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_ + 1, text_.size());
    return at_ - begin;
  }

  Result<void> other(char c) {
    ++at_;
    if (c == '(') {
      ++n_rule_;
      if (++n_group_ > kGrammarGroupsMax) return refusal("has too many groups in groups");
    } else if (c == ')') {
      n_group_ -= n_group_ > 0 ? 1 : 0;
      item(1);
    } else if (c == '*' || c == '+' || c == '?') {
      repeat(1, 1);
    } else if (c == '=') {
      ++n_rule_;
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-') {
      item(1);
    }
    return {};
  }

  void repeat(uint64_t n_time, uint64_t n_rule) {
    n_item_ = std::min(n_item_ * (n_time + 1), uint64_t{2 * kGrammarElementsMax});
    n_element_ += n_item_;
    n_rule_ += n_rule;
  }

  // {m}, {m,} and {m,n}. libllama counts n - m without looking whether it is negative.
  Result<void> repetition() {
    ++at_;
    const auto min = number();
    uint64_t max = min.value_or(0);
    skip_space();
    if (at_ < text_.size() && text_[at_] == ',') {
      ++at_;
      max = number().value_or(min.value_or(0));
    }
    if (!min) return refusal("has a '{' without a number");
    if (max < *min) return refusal("has a repetition whose end is below its start");
    if (*min > kRepetitionMax) return refusal("repeats more than 2000 times");
    max = std::min(max, std::max(*min, kRepetitionMax));
    repeat(max, max - *min + 1);
    return {};
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  std::optional<uint64_t> number() {
    skip_space();
    const size_t begin = at_;
    uint64_t value = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(text_[at_] - '0'), 1 << 30);
      ++at_;
    }
    return at_ > begin ? std::optional(value) : std::nullopt;
  }

  const std::string_view text_;
  size_t at_ = 0;
  size_t n_group_ = 0;
  uint64_t n_item_ = 0, n_element_ = 0, n_rule_ = 0;
};

// What may come first in each rule, and how much libllama goes through to find it. It remembers no
// rule that it has seen, so a few can take it for ever: r1 ::= r2 | r2, r2 ::= r3 | r3, …
//
// A rule that comes first in itself with something after it is pushed on its stacks without end.
// One that is its own last element, x ::= y x with an empty y, is not: the stack stays the same,
// and libllama looks at equal stacks once. The grammars of the chat library have such rules.
class FirstElements {
 public:
  explicit FirstElements(const llama_grammar_rules& rules)
      : rules_(rules), nullable_(rules.size(), 1), nodes_(rules.size()) {}

  Result<void> check() {
    find_nullable();
    double total = 0;
    for (size_t i = 0; i < rules_.size(); ++i) {
      if (nodes_[i].order == 0) HS_RETURN_IF_ERROR(visit(i, 0));
      total += nodes_[i].cost;
      if (nodes_[i].cost > kCostMax || total > kTotalMax) {
        return refusal("has a rule that begins in too many ways; simplify it");
      }
    }
    for (size_t i = 0; i < rules_.size(); ++i) {
      for (const First& first : firsts(i)) {
        if (!first.last && nodes_[first.rule].cycle == nodes_[i].cycle) {
          return refusal("has a rule that begins with itself");
        }
      }
    }
    return {};
  }

 private:
  // The first: at each token libllama looks at the whole vocabulary once for each way to go on,
  // some milliseconds each time.
  static constexpr double kCostMax = 1 << 10, kTotalMax = 1 << 24;
  static constexpr uint32_t kDepthMax = 4096;

  // By Tarjan's algorithm: rules of one cycle get one number.
  struct Node {
    double cost = 0;
    uint32_t order = 0;  // of the first visit, from 1
    uint32_t low = 0;    // the earliest that it leads back to
    uint32_t cycle = 0;  // 0: still open
  };
  struct First {
    uint32_t rule;
    bool last;  // of its alternative
  };

  static bool ends(const llama_grammar_element& e) {
    return e.type == LLAMA_GRETYPE_END || e.type == LLAMA_GRETYPE_ALT;
  }

  bool is_nullable(const llama_grammar_rule& rule) const {
    bool all = true;  // of the elements of this alternative
    for (const auto& e : rule) {
      if (ends(e)) {
        if (all) return true;
        all = true;
      } else {
        all = all && e.type == LLAMA_GRETYPE_RULE_REF && nullable_[e.value];
      }
    }
    return false;
  }

  // Every rule counts as nullable until it is seen not to be, so that stopping early errs on the
  // safe side.
  void find_nullable() {
    constexpr int kPasses = 64;
    bool changed = true;
    for (int pass = 0; changed && pass < kPasses; ++pass) {
      changed = false;
      for (size_t n = rules_.size(), k = 0; k < n; ++k) {
        const size_t i = pass % 2 ? k : n - 1 - k;
        if (nullable_[i] && !is_nullable(rules_[i])) nullable_[i] = 0, changed = true;
      }
    }
  }

  // The rules that an alternative may begin with; `n_other` counts what else they begin with.
  std::vector<First> firsts(size_t i, double* n_other = nullptr) const {
    std::vector<First> out;
    bool at_start = true;
    for (size_t k = 0; k < rules_[i].size(); ++k) {
      const auto& e = rules_[i][k];
      const bool ref = e.type == LLAMA_GRETYPE_RULE_REF;
      if (at_start && ref) out.push_back({e.value, ends(rules_[i][k + 1])});
      if (at_start && !ref && n_other != nullptr) ++*n_other;
      at_start = ends(e) || (at_start && ref && nullable_[e.value]);
    }
    return out;
  }

  Result<void> visit(size_t i, uint32_t depth) {
    if (depth > kDepthMax) return refusal("has too many rules that begin with rules");
    Node& node = nodes_[i];
    node.order = node.low = ++n_order_;
    open_.push_back(i);
    double cost = 1;
    for (const First& first : firsts(i, &cost)) {
      Node& next = nodes_[first.rule];
      if (next.order == 0) {
        HS_RETURN_IF_ERROR(visit(first.rule, depth + 1));
        node.low = std::min(node.low, next.low);
      } else if (next.cycle == 0) {
        node.low = std::min(node.low, next.order);
      }
      cost += next.cost;
    }
    node.cost = std::min(cost, 2 * kTotalMax);
    if (node.low == node.order) close(i);
    return {};
  }

  void close(size_t root) {
    for (size_t i = root + 1; i != root; open_.pop_back()) {
      i = open_.back();
      nodes_[i].cycle = nodes_[root].order;
    }
  }

  const llama_grammar_rules& rules_;
  std::vector<char> nullable_;
  std::vector<Node> nodes_;
  std::vector<size_t> open_;
  uint32_t n_order_ = 0;
};

// Rule by rule with libllama's own parser, whose parse() would print the grammar to stderr.
Result<void> parse(const std::string& gbnf, llama_grammar_parser& parser) {
  const char* pos = gbnf.c_str();
  auto skip = [&] {
    while (std::isspace(static_cast<unsigned char>(*pos)) || *pos == '#') {
      if (*pos == '#') {
        while (*pos != '\0' && *pos != '\n') ++pos;
      } else {
        ++pos;
      }
    }
  };
  try {
    for (skip(); *pos != '\0'; skip()) pos = parser.parse_rule(pos);
  } catch (const std::exception& e) {
    return refusal("does not parse: " + std::string(e.what()).substr(0, kErrorBytesMax));
  }
  return {};
}

Result<void> check_references(const llama_grammar_parser& parser) {
  for (const auto& [name, id] : parser.symbol_ids) {
    if (id >= parser.rules.size() || parser.rules[id].empty()) {
      return refusal("has no rule '" + name.substr(0, kErrorBytesMax) + "'");
    }
  }
  if (!parser.symbol_ids.contains("root")) return refusal("has no rule 'root'");
  return {};
}

// libllama aborts over a grammar that no text can begin: root ::= "a"{0} root.
Result<void> check_beginning(const std::string& gbnf, const llama_vocab* vocab) {
  struct Free {
    void operator()(llama_grammar* g) const { llama_grammar_free_impl(g); }
  };
  const std::unique_ptr<llama_grammar, Free> grammar(
      llama_grammar_init_impl(vocab, gbnf.c_str(), "root", /*lazy=*/false, nullptr, 0, nullptr, 0));
  if (!grammar) return refusal("is refused by libllama");
  if (llama_grammar_get_stacks(grammar.get()).empty()) return refusal("allows no text");
  return {};
}

}  // namespace

Result<void> check_gbnf(const std::string& gbnf, const llama_vocab* vocab) {
  if (gbnf.size() > kGrammarBytesMax) return refusal("has more than a mebibyte");
  if (gbnf.find('\0') != std::string::npos) return refusal("holds a NUL");
  HS_RETURN_IF_ERROR(Unfolding(gbnf).check());
  llama_grammar_parser parser(vocab);
  HS_RETURN_IF_ERROR(parse(gbnf, parser));
  HS_RETURN_IF_ERROR(check_references(parser));
  HS_RETURN_IF_ERROR(FirstElements(parser.rules).check());
  return check_beginning(gbnf, vocab);
}

Result<std::string> gbnf_of_schema(const std::string& json_schema) {
  try {
    return json_schema_to_grammar(common_json::parse(json_schema));
  } catch (const std::exception& e) {
    return Error{Code::kInvalidArgument,
                 "the schema cannot be used: " + std::string(e.what()).substr(0, 500)};
  }
}

}  // namespace headstart::model
