// Reports about paths: who has heard the same knows the same; text that is none changes nothing.
#include "topology/plan/path_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = PathReports::State;

TEST(PathReports, ASwitchIsLostWhenTwoPairsWithNothingInCommonReportIt) {
  PathReports reports;
  EXPECT_TRUE(reports.Report({"spine0", "leaf0", "leaf1"}, State::kDropping));
  EXPECT_FALSE(reports.IsLost("spine0"));
  // A link from leaf0, or one to leaf1, explains these.
  reports.Report({"spine0", "leaf0", "leaf2"}, State::kDropping);
  reports.Report({"spine0", "leaf3", "leaf1"}, State::kDropping);
  EXPECT_TRUE(reports.IsLost("spine0"));  // leaf0 to leaf2 and leaf3 to leaf1
  PathReports one_link;
  one_link.Report({"spine0", "leaf0", "leaf1"}, State::kDropping);
  one_link.Report({"spine0", "leaf2", "leaf1"}, State::kDropping);
  EXPECT_FALSE(one_link.IsLost("spine0"));
}

TEST(PathReports, ASwitchThatOneHasLeftIsLostForThatOneAndWhenTwoHaveForAll) {
  PathReports reports;
  reports.Report({"spine0", "leaf0", "-"}, State::kLeft);
  EXPECT_THAT(reports.LostFrom("leaf0"), ElementsAre("spine0"));
  EXPECT_THAT(reports.LostFrom("leaf1"), IsEmpty());
  reports.Report({"spine0", "leaf2", "-"}, State::kLeft);
  EXPECT_THAT(reports.LostFrom("leaf1"), ElementsAre("spine0"));
  EXPECT_FALSE(reports.HasLeft("spine0", "leaf1"));
  reports.Report({"spine0", "leaf0", "-"}, State::kGood);
  EXPECT_THAT(reports.LostFrom("leaf0"), IsEmpty());
}

TEST(PathReports, PacketsThatPassWithdrawAllThatWasReportedOfDrops) {
  PathReports reports;
  reports.Report({"spine0", "leaf0", "leaf1"}, State::kDropping);
  reports.Report({"spine0", "leaf1", "leaf0"}, State::kDropping);
  EXPECT_TRUE(reports.Passes("spine0"));
  EXPECT_FALSE(reports.IsLost("spine0"));
  EXPECT_FALSE(reports.Passes("spine0"));
}

TEST(PathReports, AllWhoHaveHeardTheSameKnowTheSameInWhateverOrder) {
  Random random(1);
  std::vector<PathReports> ranks(4);
  std::vector<std::string> said;
  for (int i = 0; i < 200; ++i) {
    PathReports& author = ranks[random.Below(ranks.size())];
    const State states[] = {State::kDropping, State::kLeft, State::kGood};
    author.Report({absl::StrCat("spine", random.Below(3)), absl::StrCat("leaf", random.Below(4)),
                   absl::StrCat("leaf", random.Below(4))},
                  states[random.Below(3)]);
    said.push_back(author.ToText());
  }
  for (PathReports& rank : ranks) {
    for (size_t i = said.size(); i > 1; --i) std::swap(said[i - 1], said[random.Below(i)]);
    for (const std::string& text : said) ASSERT_TRUE(rank.Merge(text).ok());
    EXPECT_EQ(rank.ToText(), ranks[0].ToText());
    EXPECT_FALSE(*rank.Merge(rank.ToText()));  // no news
  }
}

TEST(PathReports, PeopleAreToldWhatIsWrongAndNoMore) {
  PathReports reports;
  EXPECT_EQ(reports.Summary(), "");
  ASSERT_TRUE(reports.Merge("left spine0 leaf1 - 1\ngood spine1 leaf1 - 2\n").ok());
  EXPECT_EQ(reports.Summary(), "left spine0 leaf1");
  ASSERT_TRUE(reports
                  .Merge("dropping spine0 leaf3 leaf2 3\ndropping spine0 leaf2 leaf3 4\n"
                         "dropping spine2 leaf2 leaf3 5\n")
                  .ok());
  EXPECT_EQ(
      reports.Summary(),
      "left spine0 leaf1, dropping spine0 leaf2 leaf3, dropping spine0 leaf3 leaf2 and 1 more");
}

TEST(PathReports, TextThatIsNoneChangesNothing) {
  PathReports reports;
  reports.Report({"spine0", "leaf0", "leaf1"}, State::kDropping);
  const std::string before = reports.ToText();
  for (const std::string& text :
       {std::string("dropping spine0 leaf0\n"), std::string("melted spine0 leaf0 leaf1 3\n"),
        std::string("left spine1 leaf0 - 9\ngood spine0 leaf0 leaf1 99999999999999999999\n"),
        absl::StrCat("left ", std::string(PathReports::kNameBytesMax + 1, 'x'), " leaf0 - 1\n"),
        std::string(PathReports::kTextBytesMax + 1, '\n')}) {
    EXPECT_EQ(reports.Merge(text).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(reports.ToText(), before);
  }
  EXPECT_THAT(std::string(reports.Merge("melted spine0 leaf0 leaf1 3\n").status().message()),
              HasSubstr("\"melted spine0 leaf0 leaf1 3\" is no report about a path"));
}

TEST(PathReports, BehindTheHighestStampNothingIsSaidThatOthersWouldRefuse) {
  PathReports reports, others;
  ASSERT_TRUE(reports.Merge("dropping spine0 leaf0 leaf1 4611686018427387902\n").ok());
  EXPECT_TRUE(reports.Report({"spine1", "leaf0", "-"}, State::kLeft));  // has the last one
  EXPECT_FALSE(reports.Report({"spine2", "leaf0", "-"}, State::kLeft));
  EXPECT_FALSE(reports.Passes("spine0"));
  ASSERT_TRUE(others.Merge(reports.ToText()).ok()) << reports.ToText();
  EXPECT_EQ(others.ToText(), reports.ToText());
  EXPECT_TRUE(others.HasLeft("spine1", "leaf0"));
}

TEST(PathReports, WhatIsKeptAndSaidIsBounded) {
  PathReports reports;
  for (int i = 0; i < 2000; ++i) {
    reports.Report({absl::StrCat(std::string(50, 's'), i), "leaf0", "leaf1"}, State::kDropping);
  }
  const std::string text = reports.ToText();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            static_cast<std::ptrdiff_t>(PathReports::kMost));
  EXPECT_LE(text.size(), PathReports::kTextBytesMax);
  EXPECT_THAT(text, HasSubstr("s1999 "));  // the oldest are forgotten
}

TEST(PathReports, AnyBytesAreMergedOrRefused) {
  Random random(7);
  const std::string good = "dropping spine0 leaf3 leaf2 7\nleft spine0 leaf1 - 9\n";
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good;
    for (uint64_t change = random.Below(4); change > 0; --change) {
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    }
    if (random.Below(4) == 0) text.resize(random.Below(text.size()));
    PathReports reports, again;
    if (!reports.Merge(text).ok()) continue;
    ASSERT_TRUE(again.Merge(reports.ToText()).ok());
    EXPECT_EQ(again.ToText(), reports.ToText());
  }
}

}  // namespace
}  // namespace weft::topology
