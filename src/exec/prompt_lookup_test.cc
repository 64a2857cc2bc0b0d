// Proves what is proposed after which sequences. To add a case, give a sequence and what must
// follow it.
#include "exec/prompt_lookup.h"

#include <gtest/gtest.h>

#include <random>

namespace headstart::exec {
namespace {

using Tokens = std::vector<Token>;

Tokens propose(const Tokens& sequence, uint32_t n) {
  PromptLookup lookup(64);
  lookup.follow(sequence);
  return lookup.n_match() > 0 ? lookup.propose(sequence, n) : Tokens{};
}

TEST(PromptLookup, ProposesNothingThatWasNotSeen) {
  EXPECT_EQ(propose({}, 4), Tokens{});
  EXPECT_EQ(propose({1}, 4), Tokens{});
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 6}, 4), Tokens{});
  EXPECT_EQ(propose({1, 2, 3, 9, 3}, 4), Tokens{});  // one equal token is too little
}

TEST(PromptLookup, ProposesWhatFollowedTheLastTokens) {
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 6, 1, 2, 3}, 2), (Tokens{4, 5}));
  EXPECT_EQ(propose({9, 2, 3, 4, 5, 6, 1, 2, 3}, 2), (Tokens{4, 5}));  // two of them
}

TEST(PromptLookup, PrefersThreeTokensToTwoAndTheNewestPlace) {
  EXPECT_EQ(propose({1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3}, 1), Tokens{4});
  EXPECT_EQ(propose({1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3}, 1), Tokens{5});
}

TEST(PromptLookup, KeepsItsPlaceWhileTheTextGoesOnAsProposed) {
  // 5 6 7 stands twice before; what is quoted is the first of them.
  const Tokens quoted{1, 2, 3, 4, 5, 6, 7, 8, 9}, other{5, 6, 7, 40, 41};
  Tokens sequence = quoted;
  sequence.insert(sequence.end(), other.begin(), other.end());
  PromptLookup lookup(64);
  for (Token t : {1, 2, 3, 4, 5, 6, 7}) sequence.push_back(t);
  lookup.follow(sequence);
  EXPECT_EQ(lookup.n_match(), 7u);  // since it was first found, by the tokens 1 2
  EXPECT_EQ(lookup.propose(sequence, 2), (Tokens{8, 9}));
  sequence.push_back(40);  // the text has gone over to the other
  lookup.follow(sequence);
  EXPECT_EQ(lookup.n_match(), 3u);
  EXPECT_EQ(lookup.propose(sequence, 1), Tokens{41});
}

TEST(PromptLookup, ContinuesARepetitionBeyondItsEnd) {
  EXPECT_EQ(propose({7, 7, 7}, 5), (Tokens{7, 7, 7, 7, 7}));
  EXPECT_EQ(propose({1, 2, 1, 2, 1}, 5), (Tokens{2, 1, 2, 1, 2}));
}

TEST(PromptLookup, IsTheSameWhetherTokensComeAloneOrTogether) {
  std::mt19937 random(1);
  for (const uint32_t n_expected : {0u, 4000u}) {  // few slots, too
    Tokens sequence;
    PromptLookup alone(n_expected), together(n_expected);
    for (int i = 0; i < 4000; ++i) {
      sequence.push_back(static_cast<Token>(random() % 12));
      alone.follow(sequence);
      if (i % 500 != 499) continue;
      together.follow(sequence);
      ASSERT_EQ(together.n_match(), alone.n_match());
      if (alone.n_match() == 0) continue;
      EXPECT_EQ(together.propose(sequence, 3), alone.propose(sequence, 3));
    }
  }
}

}  // namespace
}  // namespace headstart::exec
