// kv/cuts: a cut is the last paragraph end among tokens 32 to 144, else the last sentence end
// there, else 128, and never depends on what follows the chunk's own first 144 tokens.
// To add a case: mark ends by chunk length in cut_of() and state the length expected.
#include "kv/cuts.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "kv/chunk_id.h"

namespace headstart::kv {
namespace {

std::optional<uint32_t> cut_of(const std::map<uint32_t, TextEnd>& end_at_length,
                               size_t n_known = kChunkTokensMax) {
  std::vector<TextEnd> ends(n_known, TextEnd::kNone);
  for (auto [length, end] : end_at_length) {
    if (length <= n_known) ends[length - 1] = end;
  }
  return first_cut(ends);
}

TEST(FirstCut, IsUnknownUntilAllTokensThatCouldMoveItAreKnown) {
  EXPECT_EQ(cut_of({{40, TextEnd::kParagraph}}, kChunkTokensMax - 1), std::nullopt);
  EXPECT_EQ(cut_of({}, 0), std::nullopt);
}

TEST(FirstCut, TakesTheLastParagraphEnd) {
  EXPECT_EQ(cut_of({{33, TextEnd::kParagraph}, {90, TextEnd::kParagraph}}), 90u);
}

TEST(FirstCut, PrefersAParagraphEndToALaterSentenceEnd) {
  EXPECT_EQ(cut_of({{40, TextEnd::kParagraph}, {140, TextEnd::kSentence}}), 40u);
}

TEST(FirstCut, TakesTheLastSentenceEndWhereNoParagraphEnds) {
  EXPECT_EQ(cut_of({{35, TextEnd::kSentence}, {77, TextEnd::kSentence}}), 77u);
}

TEST(FirstCut, IsTheDefaultWhereNothingEnds) { EXPECT_EQ(cut_of({}), kCutTokensDefault); }

TEST(FirstCut, CountsBothLimitsAsInside) {
  EXPECT_EQ(cut_of({{kCutTokensMin, TextEnd::kSentence}}), kCutTokensMin);
  EXPECT_EQ(cut_of({{kChunkTokensMax, TextEnd::kParagraph}}), kChunkTokensMax);
}

TEST(FirstCut, IgnoresEndsOutsideTheLimits) {
  EXPECT_EQ(cut_of({{kCutTokensMin - 1, TextEnd::kParagraph}}), kCutTokensDefault);
  EXPECT_EQ(cut_of({{kChunkTokensMax + 1, TextEnd::kParagraph}}, 2 * kChunkTokensMax),
            kCutTokensDefault);
}

TEST(FirstCut, DoesNotDependOnWhatFollows) {
  for (uint32_t length : {32u, 100u, 144u}) {
    auto alone = cut_of({{length, TextEnd::kSentence}});
    auto followed = cut_of({{length, TextEnd::kSentence}, {150, TextEnd::kParagraph}}, 4000);
    EXPECT_EQ(alone, followed);
  }
}

}  // namespace
}  // namespace headstart::kv
