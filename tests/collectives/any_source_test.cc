#include "collectives/any_source.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "base/random.h"
#include "collectives/tag_counts.h"

namespace weft::collectives {
namespace {

TEST(TagCountsTest, CountsEachPeerAndTagByItself) {
  Random random(5);
  TagCounts counts;
  std::map<std::pair<int, uint32_t>, uint32_t> naive;
  constexpr uint32_t kLast = UINT32_MAX;
  const uint32_t tags[] = {0, 1, 2, 3, 5, kLast - 1, kLast};
  for (int step = 0; step < 3000; ++step) {
    const int peer = static_cast<int>(random.Below(3));
    const uint32_t tag = tags[random.Below(std::size(tags))];
    counts.Add(peer, tag);
    ++naive[{peer, tag}];
    for (int other = 0; other < 4; ++other) {
      for (const uint32_t each : {0u, 1u, 2u, 3u, 4u, 5u, 6u, kLast - 2, kLast - 1, kLast}) {
        const auto found = naive.find({other, each});
        ASSERT_EQ(counts.Of(other, each), found == naive.end() ? 0 : found->second)
            << "peer " << other << " tag " << each << " after step " << step;
      }
    }
  }
}

TEST(TagCountsTest, TagsThatNumberMessagesTakeNoMemory) {
  TagCounts counts;
  for (uint32_t tag = 0; tag < 100000; ++tag) {
    counts.Add(1, tag);
    ASSERT_LE(counts.entries(), 2u);
  }
  EXPECT_EQ(counts.Of(1, 99999), 1u);
  EXPECT_EQ(counts.Of(1, 100000), 0u);
  EXPECT_EQ(counts.Of(0, 5), 0u);
}

// A receive that names this rank was posted ahead of its send.
TEST(AnySourceTest, OffersNothingUntilMoreIsSentThanReceivesArePosted) {
  AnySource group;
  EXPECT_FALSE(group.Sought(1, 5, /*known=*/1));
  EXPECT_EQ(group.Sent(1, 5), std::nullopt);
  EXPECT_EQ(group.Sent(1, 5), std::optional<uint32_t>(1));
  EXPECT_EQ(group.Sent(1, 5), std::nullopt) << "it is offered once";
  EXPECT_TRUE(group.Sought(1, 5, 2));
  EXPECT_FALSE(group.Sought(1, 5, 3));
  EXPECT_FALSE(group.Sought(1, 6, 0));
  EXPECT_EQ(group.Sent(2, 5), std::nullopt) << "another rank's";
}

TEST(AnySourceTest, WhatNobodyWaitsForTakesBoundedMemory) {
  AnySource group;
  for (uint32_t tag = 0; tag < 3 * AnySource::kSoughtMost; ++tag) {
    (void)group.Sent(1, tag);
    group.Received(1, tag);
    (void)group.Sought(2, tag, 0);
  }
  EXPECT_LE(group.entries(), AnySource::kSoughtMost + 4);
  // Who still wants one of them seeks again.
  EXPECT_FALSE(group.Sought(2, 0, 0));
  EXPECT_EQ(group.Sent(2, 0), std::optional<uint32_t>(0));
}

}  // namespace
}  // namespace weft::collectives
