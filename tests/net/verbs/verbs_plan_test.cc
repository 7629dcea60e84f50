// Queue pairs on the ways of a plan: they follow what other ranks report about switches.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/net/verbs/world.h"
#include "tests/scratch_folder.h"
#include "topology/ecmp/fingerprint.h"
#include "topology/ecmp/hash_text.h"
#include "topology/ecmp/roce.h"
#include "topology/plan/connection_plan.h"

namespace weft::net {
namespace {

using topology::ConnectionPlan;

constexpr char kPlan[] = R"(ranks 2
host h0 10.0.0.1 leaf0
host h1 10.0.1.1 leaf1
hash leaf0 linux:seed=1000
hash leaf1 linux:seed=1001
router 10.2.0.1 spine0
flow 0 1 h0:0 h1:0 0.5 leaf0:0/3>spine0
flow 0 1 h0:0 h1:0 0.5 leaf0:1/3>spine1
detour spine0 0 0.5 leaf0:2/3>spine2
spare leaf0 leaf1 0.5 leaf0:0/3>spine0
spare leaf0 leaf1 0.5 leaf0:1/3>spine1
spare leaf0 leaf1 0 leaf0:2/3>spine2
spare leaf1 leaf0 0 leaf1:0/3>spine0
)";

// Each host has the plan in a folder of its own, so that reports pass between the two of one
// process as between hosts: by the link alone.
class VerbsPlan : public testing::Test {
 protected:
  std::unique_ptr<World> MakeWorld() {
    for (int host : {0, 1}) {
      ScratchFolder& folder = folders_[static_cast<size_t>(host)];
      folder.Write("fabric.toml", "fabric");
      folder.Write("hashes.txt", "hashes");
      folder.Write("paths.txt", absl::StrCat("weft-paths 1\nfingerprint ",
                                             topology::Fingerprint("fabrichashes"), "\n", kPlan));
      plans_.push_back(*ConnectionPlan::Load(folder.path()));
    }
    WorldOptions options = QuickWorld(1);
    options.settings.push_back("verbs.path_search=false");
    options.more_settings = [this](int host) {
      return std::vector<std::string>{
          absl::StrCat("plan=", folders_[static_cast<size_t>(host)].path())};
    };
    auto world = std::make_unique<World>(options);
    world->fabric.set_on_transfer([this](const ScriptedTransfer& transfer) {
      if (transfer.from == World::Device(0, 0)) label_[transfer.queue_pair] = transfer.flow_label;
      return ScriptedFate{};
    });
    return world;
  }

  // Members, of `count`, of leaf0's next hops that the queue pairs of host 0 take, sorted; those
  // that have sent something.
  std::vector<size_t> Members(World& world, size_t count) {
    const topology::SwitchHash leaf = *topology::ParseHash("linux:seed=1000");
    std::vector<size_t> out;
    for (uint32_t pair : world.fabric.QueuePairs(World::Device(0, 0))) {
      const auto label = label_.find(pair);
      if (label == label_.end()) continue;
      out.push_back(
          leaf.Select({topology::IpAddress::V4(0x0A000001), topology::IpAddress::V4(0x0A000101),
                       topology::RoceSourcePort(label->second), topology::kRoceTargetPort,
                       topology::kProtocolUdp, 0},
                      count));
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  bool Comes(World& world, size_t count, std::vector<size_t> members) {
    for (uint64_t round = 0; round < 50; ++round) {
      EXPECT_EQ(Exchange(world, ++rounds_), "");
      if (Members(world, count) == members) return true;
    }
    return false;
  }

  std::vector<std::shared_ptr<ConnectionPlan>> plans_;  // [host]

 private:
  std::array<ScratchFolder, 2> folders_;  // [host]
  std::map<uint32_t, uint32_t> label_;    // by queue pair
  uint64_t rounds_ = 0;
};

TEST_F(VerbsPlan, QueuePairsTakeTheDetoursOfASwitchThatOthersReportAndGoBack) {
  const auto world = MakeWorld();
  ASSERT_TRUE(world->Connect());
  ASSERT_TRUE(Comes(*world, 3, {0, 1}));
  // The accepting end hears reports about two pairs of leaves that have no leaf in common.
  ASSERT_TRUE(
      plans_[1]->Hear("dropping spine0 leaf0 leaf1 1\ndropping spine0 leaf2 leaf3 2\n").ok());
  EXPECT_TRUE(Comes(*world, 3, {1, 2})) << "the queue pair of spine0 is on its detour";
  ASSERT_TRUE(plans_[1]->Hear("good spine0 leaf0 leaf1 3\ngood spine0 leaf2 leaf3 4\n").ok());
  EXPECT_TRUE(Comes(*world, 3, {0, 1})) << "it is back";
}

TEST_F(VerbsPlan, WhereTheLeafHasLeftASwitchPortsAreThoseOfTheNextHopsThatAreLeft) {
  const auto world = MakeWorld();
  ASSERT_TRUE(world->Connect());
  ASSERT_TRUE(Comes(*world, 3, {0, 1}));
  plans_[0]->Leaves("leaf0", "spine0", true);
  EXPECT_TRUE(Comes(*world, 2, {0, 1})) << "spine1 and spine2, as leaf0 numbers them now";
  EXPECT_TRUE(plans_[1]->HasLeft("leaf0", "spine0")) << "the other end has heard of it";
}

}  // namespace
}  // namespace weft::net
