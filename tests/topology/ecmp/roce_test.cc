#include "topology/ecmp/roce.h"

#include <gtest/gtest.h>

#include <set>

namespace weft::topology {
namespace {

TEST(RoceSourcePort, FoldsTheLabelInto14Bits) {
  EXPECT_EQ(RoceSourcePort(1), 0xC001);
  EXPECT_EQ(RoceSourcePort(0x3FFF), 0xFFFF);
  EXPECT_EQ(RoceSourcePort(0x4000), 0xC001);   // bit 14 folds onto bit 0
  EXPECT_EQ(RoceSourcePort(0xFC000), 0xC03F);  // all six high bits
  EXPECT_EQ(RoceSourcePort(0xFFFFF), 0xFFFF ^ 0x3F);
}

TEST(RoceLabel, OfQueuePairsIsSymmetricAndIn20Bits) {
  EXPECT_EQ(RoceLabelOfQueuePairs(17, 19), 17u * 19u);
  // 0x123456 * 0x654321 = 0x734CC2F2A456 -> ^ >>20 -> ^ >>40, by hand.
  uint64_t v = uint64_t{0x123456} * 0x654321;
  v ^= v >> 20;
  v ^= v >> 40;
  EXPECT_EQ(RoceLabelOfQueuePairs(0x123456, 0x654321), v & 0xFFFFF);
  EXPECT_EQ(RoceLabelOfQueuePairs(0xFFFFFF, 3), RoceLabelOfQueuePairs(3, 0xFFFFFF));
  EXPECT_LE(RoceLabelOfQueuePairs(0xFFFFFF, 0xFFFFFF), kFlowLabelMax);
}

TEST(RoceFlowLabel, InvertsTheRuleForEveryPort) {
  for (uint32_t port = kRocePortFirst; port <= kRocePortLast; ++port) {
    std::set<uint32_t> labels;
    for (uint32_t variant = 0; variant < 64; ++variant) {
      uint32_t label = RoceFlowLabel(static_cast<uint16_t>(port), variant);
      ASSERT_NE(label, 0u);
      ASSERT_LE(label, kFlowLabelMax);
      ASSERT_EQ(RoceSourcePort(label), port);
      labels.insert(label);
    }
    ASSERT_GE(labels.size(), 63u) << port;  // 0xC000 has one label less: 0
  }
}

}  // namespace
}  // namespace weft::topology
