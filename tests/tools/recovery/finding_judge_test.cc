#include "tools/recovery/finding_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace weft::recovery {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

observe::Finding Found(observe::Fault fault, std::vector<int> culprits, bool each = false) {
  observe::Finding finding{.fault = fault};
  finding.culprits = std::move(culprits);
  finding.each_is_culprit = each;
  return finding;
}

TEST(FindingJudgeTest, AFindingCountsOnceWhenItIsThereTwiceInARow) {
  FindingJudge judge;
  const std::vector<observe::Finding> findings = {Found(observe::Fault::kHangOutside, {2})};
  EXPECT_THAT(judge.Look(findings).diagnosed, IsEmpty());
  const FindingJudge::News news = judge.Look(findings);
  ASSERT_THAT(news.diagnosed, SizeIs(1));
  EXPECT_THAT(news.diagnosed[0].ranks, ElementsAre(2));
  EXPECT_EQ(news.diagnosed[0].blame, Blame::kRank);
  EXPECT_THAT(judge.Look(findings).diagnosed, IsEmpty());
}

// What is acted on of the finding, once it counts.
std::vector<int> Judged(const observe::Finding& finding) {
  FindingJudge judge;
  (void)judge.Look({finding});
  const std::vector<Diagnosed> diagnosed = judge.Look({finding}).diagnosed;
  return diagnosed.empty() ? std::vector<int>{} : diagnosed[0].ranks;
}

TEST(FindingJudgeTest, OfSeveralCulpritsThoseAreActedOnOfWhichEachIsOne) {
  using observe::Fault;
  EXPECT_THAT(Judged(Found(Fault::kDeviceError, {0, 4})), ElementsAre(0, 4));
  EXPECT_THAT(Judged(Found(Fault::kHangOutside, {1, 2}, true)), ElementsAre(1, 2));
  EXPECT_THAT(Judged(Found(Fault::kHangOutside, {1, 2})), IsEmpty());
  EXPECT_THAT(Judged(Found(Fault::kNotFinite, {1, 2})), IsEmpty());
  EXPECT_THAT(Judged(Found(Fault::kSlowRank, {1})), IsEmpty());  // for people
}

}  // namespace
}  // namespace weft::recovery
