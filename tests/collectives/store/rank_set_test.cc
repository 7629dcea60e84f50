// Sets of ranks beside a plain std::set.
#include "collectives/store/rank_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/little_endian.h"
#include "base/random.h"

namespace weft::collectives {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

constexpr int kSize = 40;

std::set<int> Draw(Random& random) {
  std::set<int> ranks;
  for (uint64_t i = 0, count = random.Below(kSize); i < count; ++i) {
    ranks.insert(static_cast<int>(random.Below(kSize)));
  }
  return ranks;
}

std::string Encoded(const std::vector<uint32_t>& words) {
  std::string bytes;
  for (uint32_t word : words) PutLittle(bytes, word);
  return bytes;
}

TEST(RankSetTest, NeighboursAreOneRun) {
  RankSet set({9, 3, 4, 5, 4, 11, 10});
  EXPECT_THAT(set.runs(), ElementsAre(RankSet::Run{3, 3}, RankSet::Run{9, 3}));
  EXPECT_THAT(set.ranks(), ElementsAre(3, 4, 5, 9, 10, 11));
  set.Add(RankSet({6, 7, 8}));
  EXPECT_THAT(set.runs(), ElementsAre(RankSet::Run{3, 9}));
  EXPECT_EQ(RankSet::Below(3), RankSet({0, 1, 2}));
}

TEST(RankSetTest, AgreesWithAPlainSet) {
  Random random(7);
  for (int round = 0; round < 500; ++round) {
    std::set<int> a = Draw(random);
    std::set<int> b = Draw(random);
    RankSet one(std::vector<int>(a.begin(), a.end()));
    RankSet both = one;
    both.Add(RankSet(std::vector<int>(b.begin(), b.end())));
    std::set<int> all = a;
    all.insert(b.begin(), b.end());
    std::vector<int> expected(all.begin(), all.end());
    ASSERT_EQ(both.ranks(), expected);
    ASSERT_EQ(both.size(), all.size());
    ASSERT_EQ(RankSet::Decode(both.Encode(), kSize).value(), both);
    auto places = one.PlacesIn(both);
    ASSERT_TRUE(places.has_value());
    for (size_t i = 0; i < places->size(); ++i) {
      ASSERT_EQ(expected[(*places)[i]], one.ranks()[i]);
    }
    bool lacks = !b.empty() && a.count(*b.begin()) == 0;
    ASSERT_TRUE(!lacks || both.PlacesIn(one) == std::nullopt);
  }
  EXPECT_THAT(RankSet().PlacesIn(RankSet()), Optional(testing::IsEmpty()));
}

TEST(RankSetTest, HasOneEncodingAndTakesNoOther) {
  EXPECT_EQ(RankSet::Decode(Encoded({0, 4, 5, 3}), 8).value(), RankSet({0, 1, 2, 3, 5, 6, 7}));
  for (const auto& words : std::vector<std::vector<uint32_t>>{{0},
                                                              {0, 0},
                                                              {0, 9},
                                                              {8, 1},
                                                              {4, 1, 2, 1},
                                                              {0, 2, 1, 2},
                                                              {0, 2, 2, 2},
                                                              {0xffffffff, 2},
                                                              {1, 0xffffffff}}) {
    auto set = RankSet::Decode(Encoded(words), 8);
    EXPECT_EQ(set.status().code(), absl::StatusCode::kInvalidArgument) << words.size();
    EXPECT_THAT(std::string(set.status().message()), HasSubstr("ranks below 8"));
  }
  EXPECT_FALSE(RankSet::Decode("abc", 8).ok());
}

}  // namespace
}  // namespace weft::collectives
