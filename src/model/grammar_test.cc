// Proves that grammars which would exhaust libllama are refused quickly, and ordinary ones are not.
// To add one, add a row to a table.
#include "model/grammar.h"

#include <gtest/gtest.h>
#include <llama-grammar.h>

#include <string>

namespace headstart::model {
namespace {

std::string refusal(const std::string& gbnf) {
  const auto good = check_gbnf(gbnf, nullptr);
  return good.ok() ? "" : good.error().message;
}

std::string chain(int n, const char* body_of_two) {
  std::string text = "root ::= r0\n";
  for (int i = 0; i < n; ++i) {
    std::string body = body_of_two;
    const std::string next = "r" + std::to_string(i + 1);
    for (size_t at; (at = body.find('@')) != std::string::npos;) body.replace(at, 1, next);
    text += "r" + std::to_string(i) + " ::= " + body + "\n";
  }
  return text + "r" + std::to_string(n) + " ::= \"x\"\n";
}

TEST(Grammar, TakesOrdinaryOnes) {
  for (const std::string& gbnf : {
           std::string(R"(root ::= "a" [b-d]* ("e" | "f")? . {2,3} # comment)"),
           std::string("# first a comment\n\nroot ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\""),
           std::string(R"(root ::= "\"{5,3}" [{5,3}\]] "x"{3} "y"{2,})"),
           std::string("root ::= expr\nexpr ::= term ([-+*/] term)*\n"
                       "term ::= \"(\" expr \")\" | [0-9]+"),
           std::string("root ::= <[7]> \"x\""),
           std::string("root ::= (item? space)+\nitem ::= \"a\" space\nspace ::= | \" \""),
           std::string("root ::= (([a]*)*)*"),
           chain(1000, "@"),
       }) {
    EXPECT_EQ(refusal(gbnf), "") << gbnf.substr(0, 200);
  }
}

// What the converter makes of schemas must pass, whatever it looks like.
TEST(Grammar, TakesThoseOfSchemas) {
  for (const char* schema : {
           "{}",
           R"({"type":"object"})",
           R"({"type":"array","items":{"type":"number"},"minItems":2,"maxItems":40})",
           R"({"type":"string","pattern":"^(a|b)+[0-9]{3}$"})",
           R"({"type":"integer","minimum":-17,"maximum":4711})",
           R"({"anyOf":[{"type":"string","maxLength":300},{"enum":["a",1,null]}]})",
           R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"boolean"},
               "c":{"type":"string","format":"date-time"}},"required":["b"],
               "additionalProperties":{"type":"integer"}})",
           R"({"$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}}}},
               "$ref":"#/$defs/n"})",
       }) {
    const auto gbnf = gbnf_of_schema(schema);
    ASSERT_TRUE(gbnf.ok()) << gbnf.error().message;
    EXPECT_EQ(refusal(*gbnf), "") << *gbnf;
  }
  EXPECT_FALSE(gbnf_of_schema(R"({"type":"monster"})").ok());
  EXPECT_FALSE(gbnf_of_schema("no json").ok());
}

TEST(Grammar, SaysWhatIsWrong) {
  const struct {
    const char* gbnf;
    const char* why;
  } kWrong[] = {
      {"root ::=", ""},
      {"x ::= \"a\"", "no rule 'root'"},
      {"root ::= y", "no rule 'y'"},
      {"root ::= \"a", "does not parse"},
      {"root = \"a\"", "does not parse"},
      {"root ::= \"\\q\"", "does not parse"},
      {"root ::= (\"a\"", "does not parse"},
      {"root ::= *", "does not parse"},
      {"root ::= \"a\"{", "without a number"},
      {"root ::= <none>", "does not parse"},
  };
  for (const auto& wrong : kWrong) {
    const std::string message = refusal(wrong.gbnf);
    EXPECT_NE(message.find(wrong.why), std::string::npos) << wrong.gbnf << ": " << message;
    EXPECT_LT(message.size(), 300u);
  }
}

TEST(Grammar, RefusesWhatWouldNeverEnd) {
  const std::string many(3000, '(');
  for (const std::string& gbnf : {
           std::string("root ::= \"a\"{5,3}"),
           std::string("root ::= \"a\"{5, 3}"),
           std::string("root ::= \"a\"{999999999999}"),
           std::string("root ::= root \"a\" | \"b\""),
           std::string("root ::= x root \"a\"\nx ::= y\ny ::= \"\" | \"z\""),
           std::string("root ::= (\"\")* root"),
           std::string("root ::= y root\ny ::= z\nz ::= \"\""),
           std::string("root ::= x | \"b\"\nx ::= y root | y root x\ny ::= \"\" | \"c\""),
           "root ::= " + many + "\"a\"" + std::string(3000, ')'),
           "root ::= \"" + std::string(60'000, 'a') + "\"{2000}",
           "root ::= \"" + std::string(60'000, 'a') + "\"{0,2000}",
           chain(60, "@ | @"),
           chain(60, "@ \"a\" | @ \"b\""),
           chain(60, "(@ | \"\") @"),
           std::string("root ::= \"a\"\0\"b\"", 15),
           std::string(kGrammarBytesMax + 1, ' '),
       }) {
    EXPECT_NE(refusal(gbnf), "") << gbnf.substr(0, 100);
  }
  std::string wide = "root ::= \"x0\"";
  for (int i = 1; i < 4000; ++i) wide += " | \"x" + std::to_string(i) + "\"";
  EXPECT_NE(refusal(wide + "\n"), "");
  std::string repeated = "root ::= \"a\"";
  for (int i = 0; i < 300; ++i) repeated += " \"b\"{0,2000}";
  EXPECT_NE(refusal(repeated), "");
}

// The check unfolds a grammar as libllama does: what passes is no larger than it says.
TEST(Grammar, BoundsWhatLibllamaUnfolds) {
  for (const std::string& gbnf :
       {std::string("root ::= \"ab\"{1000} [a-c]{0,2000} (\"x\" | \"y\"){3,70}"),
        std::string("root ::= ((\"a\"{10}){10}){10}")}) {
    ASSERT_EQ(refusal(gbnf), "");
    llama_grammar_parser parser;
    ASSERT_TRUE(parser.parse(gbnf.c_str()));
    size_t n_element = 0;
    for (const auto& rule : parser.rules) n_element += rule.size();
    EXPECT_LT(n_element, kGrammarElementsMax);
    EXPECT_LT(parser.rules.size(), kGrammarRulesMax);
  }
}

}  // namespace
}  // namespace headstart::model
