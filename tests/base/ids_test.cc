#include "base/ids.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace weft {
namespace {

static_assert(!std::is_convertible_v<int, Rank>);
static_assert(!std::is_convertible_v<Rank, NodeId>);

TEST(Id, ComparesHashesAndNamesNothingByDefault) {
  EXPECT_EQ(Rank().value(), -1);
  EXPECT_LT(Rank(1), Rank(2));
  EXPECT_EQ(Rank(3).index(), 3u);
  std::unordered_set<Rank> ranks = {Rank(1), Rank(2), Rank(1)};
  EXPECT_EQ(ranks.size(), 2u);
}

}  // namespace
}  // namespace weft
