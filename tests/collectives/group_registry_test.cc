#include "collectives/group_registry.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/status/status.h"
#include "collectives/operation.h"

namespace weft::collectives {
namespace {

std::shared_ptr<Group> GroupOf(uint32_t id) {
  auto group = std::make_shared<Group>();
  group->id = id;
  group->ranks = {Rank(0), Rank(1), Rank(2)};
  return group;
}

TEST(GroupRegistryTest, WhatWasHeardOfAGroupBeforeItIsMadeIsTold) {
  GroupRegistry groups;
  EXPECT_EQ(groups.FindElseFail(7, absl::AbortedError("by another rank")), nullptr);
  EXPECT_EQ(groups.FindElseFail(7, absl::UnavailableError("what followed")), nullptr);
  EXPECT_EQ(groups.FindElseLeave(7, Rank(2), 4), nullptr);
  EXPECT_EQ(groups.kept(), 2u);
  const auto group = GroupOf(7);
  ASSERT_TRUE(groups.Add(group).ok());
  EXPECT_TRUE(absl::IsAborted(group->status)) << group->status;
  ASSERT_EQ(group->left.size(), 3u);
  EXPECT_FALSE(group->left[1].has_value());
  EXPECT_EQ(group->left[2], 4u);
  EXPECT_EQ(groups.kept(), 0u);
  EXPECT_EQ(groups.FindElseLeave(7, Rank(1), 5), group.get());
}

// Goodbyes and failures of ranks that leave later than this one.
TEST(GroupRegistryTest, WhatIsHeardOfAGroupThatWasLeftIsNotKept) {
  GroupRegistry groups;
  const uint32_t made = 5 * GroupRegistry::kOverMost;
  for (uint32_t id = 0; id < made; ++id) {
    const auto group = GroupOf(id);
    ASSERT_TRUE(groups.Add(group).ok());
    groups.Remove(*group);
    EXPECT_EQ(groups.FindElseLeave(id, Rank(1), 1), nullptr);
    EXPECT_EQ(groups.FindElseFail(id, absl::AbortedError("late")), nullptr);
  }
  EXPECT_LE(groups.kept(), GroupRegistry::kOverMost);
}

TEST(GroupRegistryTest, AGroupThatIsMadeAnewHearsOfItsOwnTimeOnly) {
  GroupRegistry groups;
  const auto first = GroupOf(7);
  ASSERT_TRUE(groups.Add(first).ok());
  groups.Remove(*first);
  EXPECT_EQ(groups.FindElseFail(7, absl::AbortedError("of the first")), nullptr);
  const auto second = GroupOf(7);
  ASSERT_TRUE(groups.Add(second).ok());
  EXPECT_TRUE(second->status.ok()) << second->status;
  EXPECT_EQ(groups.Find(7), second.get());
  EXPECT_EQ(groups.kept(), 0u);
}

TEST(GroupRegistryTest, WhatComesOfAFailedGroupIsKnownAsSuchUntilAnotherHasItsName) {
  GroupRegistry groups;
  EXPECT_FALSE(groups.HasFailed(7)) << "it may yet be made";
  EXPECT_EQ(groups.FindElseFail(7, absl::AbortedError("by another rank")), nullptr);
  EXPECT_TRUE(groups.HasFailed(7));
  const auto failed = GroupOf(7), healthy = GroupOf(8);
  ASSERT_TRUE(groups.Add(failed).ok() && groups.Add(healthy).ok());
  EXPECT_TRUE(groups.HasFailed(7));
  EXPECT_FALSE(groups.HasFailed(8));
  groups.Remove(*failed);
  groups.Remove(*healthy);
  EXPECT_TRUE(groups.HasFailed(7));
  EXPECT_FALSE(groups.HasFailed(8));
  ASSERT_TRUE(groups.Add(GroupOf(7)).ok());
  EXPECT_FALSE(groups.HasFailed(7));
}

TEST(GroupRegistryTest, ATagNamesItsGroup) {
  for (const uint32_t id : {0u, 1u, 0x7fffffffu}) {
    EXPECT_EQ(GroupOfLinkTag(LinkTag(id, 0xffffffff, true)), id);
    EXPECT_EQ(GroupOfLinkTag(LinkTag(id, 0xffffffff, false)), id);
    EXPECT_EQ(GroupOfLinkTag(LinkTag(id, 0, true)), id);
  }
}

}  // namespace
}  // namespace weft::collectives
