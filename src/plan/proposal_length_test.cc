// Proves that the length follows acceptance and never leaves its bounds. To add a case, observe
// steps and compare best().
#include "plan/proposal_length.h"

#include <gtest/gtest.h>

namespace headstart::plan {
namespace {

TEST(ProposalLength, StaysWithinItsBounds) {
  ProposalLength length;
  EXPECT_EQ(length.best(0), 0u);
  EXPECT_EQ(length.best(1), 1u);
  EXPECT_GE(length.best(7), 2u);
  EXPECT_LE(length.best(7), 7u);
}

TEST(ProposalLength, GrowsToAllThatIsAllowedWhileTextIsQuoted) {
  ProposalLength length;
  for (int i = 0; i < 4; ++i) length.observe(7, 7);
  EXPECT_EQ(length.best(7), 7u);
  EXPECT_EQ(length.best(3), 3u);
}

TEST(ProposalLength, ShrinksToOneWhileProposalsFailAndGrowsAgain) {
  ProposalLength length;
  for (int i = 0; i < 30; ++i) length.observe(length.best(7), 0);
  EXPECT_EQ(length.best(7), 1u);
  int n_step = 0;
  for (; length.best(7) < 7 && n_step < 100; ++n_step) {
    const uint32_t n = length.best(7);
    length.observe(n, n);
  }
  EXPECT_LT(n_step, 12);
}

TEST(ProposalLength, LearnsNothingFromWhatFollowsAWrongProposal) {
  ProposalLength one, many;
  for (int i = 0; i < 3; ++i) {
    one.observe(1, 0);
    many.observe(7, 0);
  }
  EXPECT_EQ(one.best(7), many.best(7));
}

}  // namespace
}  // namespace headstart::plan
