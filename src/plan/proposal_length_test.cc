// Proves that the length follows acceptance and never leaves its bounds. To add a case, observe
// steps and compare best().
#include "plan/proposal_length.h"

#include <gtest/gtest.h>

namespace headstart::plan {
namespace {

TEST(ProposalLength, StaysWithinItsBounds) {
  const ProposalLength length;
  for (const uint32_t n_match : {2u, 3u, 8u, 1000000u}) {
    EXPECT_EQ(length.best(n_match, 0), 0u);
    EXPECT_EQ(length.best(n_match, 1), 1u);
    EXPECT_GE(length.best(n_match, 7), 1u);
    EXPECT_LE(length.best(n_match, 7), 7u);
  }
}

TEST(ProposalLength, IsLongerAfterALongerMatch) {
  const ProposalLength length;
  EXPECT_LT(length.best(2, 7), length.best(20, 7));
}

TEST(ProposalLength, GrowsToAllThatIsAllowedWhileTextIsQuoted) {
  ProposalLength length;
  for (int i = 0; i < 4; ++i) length.observe(10, 7, 7);
  EXPECT_EQ(length.best(10, 7), 7u);
  EXPECT_EQ(length.best(10, 3), 3u);
}

TEST(ProposalLength, EndsWhileProposalsFailAndIsTriedAgain) {
  ProposalLength length;
  for (int i = 0; i < 30 && length.best(2, 7) > 0; ++i) length.observe(2, length.best(2, 7), 0);
  EXPECT_EQ(length.best(2, 7), 0u);
  EXPECT_GT(length.best(8, 7), 0u);  // others have not failed
  int n_step = 0;
  for (; length.best(2, 7) == 0 && n_step < 100; ++n_step) length.observe(2, 0, 0);
  EXPECT_GT(n_step, 2);
  EXPECT_LT(n_step, 20);
}

TEST(ProposalLength, LearnsNothingFromWhatFollowsAWrongProposal) {
  ProposalLength one, many;
  for (int i = 0; i < 3; ++i) {
    one.observe(3, 1, 0);
    many.observe(3, 7, 0);
  }
  for (const uint32_t n_match : {2u, 3u, 4u, 5u}) {
    EXPECT_EQ(one.best(n_match, 7), many.best(n_match, 7));
  }
}

}  // namespace
}  // namespace headstart::plan
