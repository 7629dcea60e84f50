// Names of hosts: Slurm's hostlists, and files.
#include "topology/job/hostlist.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Hostlist, ExpandsAsSlurmDoes) {
  EXPECT_THAT(*ExpandHostlist("node[001-003,070],gpu7"),
              ElementsAre("node001", "node002", "node003", "node070", "gpu7"));
  EXPECT_THAT(*ExpandHostlist("rack[1-2]n[01-02]"),
              ElementsAre("rack1n01", "rack1n02", "rack2n01", "rack2n02"));
  EXPECT_THAT(*ExpandHostlist("n[9-11]-ib"), ElementsAre("n9-ib", "n10-ib", "n11-ib"));
  EXPECT_THAT(*ExpandHostlist(""), ElementsAre());
  EXPECT_EQ(ExpandHostlist("h[0-1535]")->size(), 1536U);
}

TEST(Hostlist, SaysWhereAListIsWrong) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (Case one :
       {Case{"node[001-", "character 10: expected a number"},
        Case{"node[1-2", "character 9: expected ']'"},
        Case{"node[5-2]", "the range runs backwards"},
        Case{"node[a]", "character 6: expected a number"},
        Case{"a,,b", "character 3: expected the name"}, Case{"a b", "expected ',' or the end"},
        Case{"n[0-99999999]", "more than 1048576 hosts"},
        Case{"n[0-9999]m[0-9999]", "more than 1048576 hosts"},
        Case{"n[99999999999999999999]", "expected a number"}}) {
    absl::StatusOr<std::vector<std::string>> names = ExpandHostlist(one.text);
    ASSERT_FALSE(names.ok()) << one.text;
    EXPECT_THAT(std::string(names.status().message()), HasSubstr(one.message));
  }
}

TEST(Hostlist, CompressingAndExpandingGivesTheSameNames) {
  EXPECT_EQ(CompressHostlist({"node001", "node002", "node003", "node070", "gpu7"}),
            "node[001-003,070],gpu7");
  EXPECT_EQ(CompressHostlist({"n9", "n10", "login"}), "n[9-10],login");
  EXPECT_EQ(CompressHostlist({"b", "a"}), "b,a");
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> names;
    for (uint64_t i = 0, n = random.Below(12); i < n; ++i) {
      names.push_back(absl::StrCat(random.Below(2) == 0 ? "n" : "rack1-n",
                                   random.Below(2) == 0 ? "0" : "", random.Below(12)));
    }
    EXPECT_EQ(*ExpandHostlist(CompressHostlist(names)), names) << CompressHostlist(names);
  }
}

TEST(Hostlist, FilesHaveAListALineWithCommentsAndSlots) {
  EXPECT_THAT(*ParseHostFile("# job 7\nh0 slots=8\n\nh[2-3]  # two\n", "hosts"),
              ElementsAre("h0", "h2", "h3"));
  EXPECT_THAT(ParseHostFile("h0\nh[1\n", "hosts").status().ToString(), HasSubstr("hosts:2: "));
  EXPECT_THAT(ParseHostFile("#\n", "hosts").status().ToString(), HasSubstr("names no host"));
  EXPECT_THAT(ReadHostFile("/nonexistent/hosts").status().ToString(), HasSubstr("open"));
}

}  // namespace
}  // namespace weft::topology
