// Proves that streamed text is whole UTF-8 and never shows a stop string. To add a case, add a
// TEST that pushes pieces and compares what comes out.
#include "exec/text_stream.h"

#include <gtest/gtest.h>

namespace headstart::exec {
namespace {

TEST(TextStream, HoldsBackAnIncompleteSequence) {
  TextStream s({});
  EXPECT_EQ(s.push("a\xE2\x82"), "a");
  EXPECT_EQ(s.push("\xAC!"), "\xE2\x82\xAC!");
  EXPECT_EQ(s.finish(), "");
}

TEST(TextStream, FlushesABrokenTailAsReplacement) {
  TextStream s({});
  EXPECT_EQ(s.push("x\xF0\x9F"), "x");
  EXPECT_EQ(s.finish(), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(TextStream, ReplacesOverlongAndSurrogateBytes) {
  TextStream s({});
  EXPECT_EQ(s.push("\xC0\xAFz"), "\xEF\xBF\xBD\xEF\xBF\xBDz");
  EXPECT_EQ(s.push("\xED\xA0\x80z"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
}

TEST(TextStream, StopAcrossPieces) {
  TextStream s({"END"});
  EXPECT_EQ(s.push("one E"), "one ");
  EXPECT_EQ(s.push("N"), "");
  EXPECT_FALSE(s.stopped());
  EXPECT_EQ(s.push("D two"), "");
  EXPECT_TRUE(s.stopped());
  EXPECT_EQ(s.finish(), "");
  EXPECT_EQ(s.text(), "one ");
}

TEST(TextStream, ReleasesAFalseStart) {
  TextStream s({"END"});
  EXPECT_EQ(s.push("E"), "");
  EXPECT_EQ(s.push("x"), "Ex");
}

TEST(TextStream, EarliestStopWins) {
  TextStream s({"bb", "abb"});
  EXPECT_EQ(s.push("xabb"), "x");
  EXPECT_TRUE(s.stopped());
}

TEST(TextStream, HeldStopPrefixComesOutAtTheEnd) {
  TextStream s({"\n\n"});
  EXPECT_EQ(s.push("line\n"), "line");
  EXPECT_EQ(s.finish(), "\n");
}

}  // namespace
}  // namespace headstart::exec
