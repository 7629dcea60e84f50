#include "net/roce/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/net/roce/sys_folder.h"

namespace weft::net {
namespace {

using ::testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// One NIC at 400 Gb/s, with two of DCQCN's parameters.
class TuningTest : public testing::Test {
 protected:
  TuningTest() { AddMlx5(root_, 0); }
  std::vector<NicChange> Plan(const NicWishes& wishes) {
    return PlanNics(*ReadRdmaDevices(root_.path()), wishes);
  }
  std::string Net(const std::string& file) { return root_ / ("sys/class/net/ens0/ecn/" + file); }

  ScratchFolder root_;
};

const NicChange* Find(const std::vector<NicChange>& changes, const std::string& name) {
  auto found = std::find_if(changes.begin(), changes.end(),
                            [&](const NicChange& change) { return change.name == name; });
  return found == changes.end() ? nullptr : &*found;
}

TEST_F(TuningTest, WithoutWishesEverythingIsShownAndNothingDiffers) {
  auto changes = Plan({});
  EXPECT_EQ(changes.size(), 1U + 16 + 2);  // traffic class, switches, parameters
  for (const NicChange& change : changes) {
    EXPECT_FALSE(change.differs()) << change.name;
    EXPECT_FALSE(change.meaning.empty()) << change.name;
  }
}

// R_AI is 1/1000 of the line, as in the paper (40 Mb/s at 40 Gb/s); N is 50 us.
TEST_F(TuningTest, DcqcnsParametersScaleWithTheLine) {
  NicWishes wishes;
  wishes.dcqcn = DcqcnParameters();
  auto changes = Plan(wishes);
  ASSERT_NE(Find(changes, "rpg_ai_rate"), nullptr);
  EXPECT_EQ(Find(changes, "rpg_ai_rate")->wanted, 400);
  EXPECT_EQ(Find(changes, "rpg_ai_rate")->now.value, 5);
  EXPECT_EQ(Find(changes, "min_time_between_cnps")->wanted, 50);
  EXPECT_EQ(NicValue("rpg_ai_rate", DcqcnParameters(), 40), 40);
  EXPECT_EQ(NicValue("dce_tcp_g", DcqcnParameters(), 40), 4);  // 1/256 of 1024
  EXPECT_EQ(NicValue("rpg_gd", DcqcnParameters(), 40), 11);    // alpha / 2
  EXPECT_EQ(NicValue("rpg_byte_reset", DcqcnParameters(), 40), std::nullopt);
  DcqcnParameters slow;
  slow.fast_steps = 100;
  EXPECT_EQ(NicValue("rpg_threshold", slow, 40), 31);  // its field's largest
}

TEST_F(TuningTest, WhatIsWantedIsSetAndReadBack) {
  NicWishes wishes;
  wishes.priority = 4;
  wishes.traffic_class = 98;
  wishes.dcqcn = DcqcnParameters();
  ASSERT_TRUE(ApplyNics(Plan(wishes)).ok());
  EXPECT_EQ(Contents(Net("roce_np/enable/4")), "1");
  EXPECT_EQ(Contents(Net("roce_rp/enable/4")), "1");
  EXPECT_EQ(Contents(Net("roce_rp/enable/3")), "1");  // as it was
  EXPECT_EQ(Contents(Net("roce_rp/rpg_ai_rate")), "400");
  EXPECT_EQ(Contents(root_ / "sys/class/infiniband/mlx5_0/tc/1/traffic_class"), "98");
  for (const NicChange& change : Plan(wishes)) EXPECT_FALSE(change.differs()) << change.name;
}

TEST_F(TuningTest, ATrafficClassIsForcedWhereNoneWas) {
  const std::string file = "sys/class/infiniband/mlx5_0/tc/1/traffic_class";
  root_.Write(file, "");
  NicWishes wishes;
  wishes.traffic_class = 106;
  auto changes = Plan(wishes);
  ASSERT_NE(Find(changes, "traffic class"), nullptr);
  EXPECT_TRUE(Find(changes, "traffic class")->differs());
  ASSERT_TRUE(ApplyNics(changes).ok());
  EXPECT_EQ(Contents(root_ / file), "106");
}

TEST_F(TuningTest, AWishThatNoNicHasASettingForIsAnErrorByName) {
  NicWishes priority, traffic_class, dcqcn;
  priority.priority = 4;
  traffic_class.traffic_class = 106;
  dcqcn.dcqcn = DcqcnParameters();
  for (const NicWishes& wishes : {priority, traffic_class, dcqcn}) {
    EXPECT_TRUE(CheckWishes(Plan(wishes), wishes).ok());
  }
  // As with the kernel's own driver, which shows parameters to root alone.
  std::filesystem::remove_all(root_ / "sys/class/net/ens0/ecn");
  std::filesystem::remove_all(root_ / "sys/class/infiniband/mlx5_0/tc");
  EXPECT_THAT(CheckWishes(Plan(priority), priority).message(), HasSubstr("priority 4"));
  EXPECT_THAT(CheckWishes(Plan(traffic_class), traffic_class).message(),
              HasSubstr("traffic class 106"));
  EXPECT_THAT(CheckWishes(Plan(dcqcn), dcqcn).message(), HasSubstr("DCQCN's parameters"));
  EXPECT_TRUE(CheckWishes(Plan({}), {}).ok());
}

TEST_F(TuningTest, AllOfItOrNothing) {
  NicWishes wishes;
  wishes.priority = 4;
  auto changes = Plan(wishes);
  // The second of the two switches leads nowhere: a folder cannot be written.
  for (NicChange& change : changes) {
    if (change.name == "roce_rp of priority 4") change.now.path = root_.path();
  }
  absl::Status status = ApplyNics(changes);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(root_.path()));
  EXPECT_EQ(Contents(Net("roce_np/enable/4")), "0");
}

TEST_F(TuningTest, AValueThatTheNicDoesNotKeepIsAnError) {
  NicWishes wishes;
  wishes.priority = 4;
  auto changes = Plan(wishes);
  for (NicChange& change : changes) {
    if (change.name == "roce_rp of priority 4") change.now.path = "/dev/null";
  }
  EXPECT_THAT(ApplyNics(changes).message(), HasSubstr("/dev/null"));
  EXPECT_EQ(Contents(Net("roce_np/enable/4")), "0");
}

TEST(Tuning, DriversWithoutEcnFoldersAreReadFromDebugfs) {
  ScratchFolder root;
  AddMlx5(root, 0);
  std::filesystem::remove_all(root / "sys/class/net/ens0/ecn");
  root.Write("sys/kernel/debug/mlx5/0000:10:00.0/cc_params/rp_time_reset", "300\n");
  auto changes = PlanNics(*ReadRdmaDevices(root.path()), {});
  ASSERT_NE(Find(changes, "rpg_time_reset"), nullptr);
  EXPECT_EQ(Find(changes, "rpg_time_reset")->now.value, 300);
}

}  // namespace
}  // namespace weft::net
