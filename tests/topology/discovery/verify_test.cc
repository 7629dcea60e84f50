// Which answers of a network verify a plan, which refuse it, and which tell too little.
#include "topology/discovery/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "topology/ecmp/hash_text.h"
#include "topology/fabric/load.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPods[] =
    "three-tier:pods=2,leaves_per_pod=2,hosts_per_leaf=2,spines_per_pod=4,cores=8";
constexpr char kRails[] = "rail-optimised:pods=1,groups=2,hosts_per_group=2,spines=4,cores=4";

// A network whose switches hash as they were learned, but for those of `moved`, and answer, but for
// those of `silent`.
class VerifyNetwork {
 public:
  explicit VerifyNetwork(const std::string& text) : fabric_(*LoadFabric(text)), routes_(fabric_) {
    for (NodeId at : fabric_.switches()) {
      const std::string& name = fabric_.node(at).name;
      known_.hashes.emplace(name, *ParseHash(absl::StrCat("linux:seed=", 100 + at.value())));
      known_.routers["router-" + name] = name;
    }
  }

  const Fabric& fabric() const { return fabric_; }
  VerifyOptions Options() const {
    VerifyOptions options;
    options.host = fabric_.node(fabric_.hosts()[0]).name;
    options.missed_max = 1e-4;
    return options;
  }
  Verified Verify(const VerifyOptions& options) {
    HashFile really = known_;
    for (const std::string& name : moved) {
      really.hashes.insert_or_assign(name, *ParseHash("linux:seed=4242"));
    }
    const FabricHashes hashes = *MakeHashes(fabric_, really, "test");
    const AskName ask = [&](const FiveTuple& flow, int position) -> absl::StatusOr<std::string> {
      ++questions;
      clock.Advance(each);
      const std::vector<LinkId> path =
          *hashes.Path(routes_, NicOf(hashes, flow.source), NicOf(hashes, flow.target), flow);
      const std::string& name =
          fabric_.node(fabric_.link(path[static_cast<size_t>(position) - 1]).target).name;
      if (is_silent(name, flow)) return std::string();
      return "router-" + name;
    };
    return *VerifyPaths(fabric_, known_, "test", options, ask, clock);
  }

  std::set<std::string> moved;
  std::function<bool(const std::string&, const FiveTuple&)> is_silent =
      [](const std::string&, const FiveTuple&) { return false; };
  absl::Duration each = absl::Microseconds(200);  // of one question
  int questions = 0;
  ManualClock clock;

 private:
  Endpoint NicOf(const FabricHashes& hashes, const IpAddress& address) const {
    for (Endpoint nic : fabric_.Endpoints()) {
      if (hashes.address(nic) == address) return nic;
    }
    ADD_FAILURE() << "no NIC has " << address.ToString();
    return {};
  }

  Fabric fabric_;
  Routes routes_;
  HashFile known_;
};

TEST(VerifyPaths, EveryTierIsAsked) {
  VerifyNetwork network(kPods);
  const Verified verified = network.Verify(network.Options());
  ASSERT_EQ(verified.tiers.size(), 2u);  // leaves and spines choose
  EXPECT_EQ(verified.tiers[0].tier, 1);
  EXPECT_EQ(verified.tiers[1].tier, 2);
  EXPECT_EQ(verified.right(), verified.asked());
  EXPECT_THAT(verified.Unverified(), IsEmpty());
  EXPECT_FALSE(verified.HasMoved());
}

TEST(VerifyPaths, AMovedSpineBehindARightLeafIsSeen) {
  VerifyNetwork network(kPods);
  for (NodeId at : network.fabric().switches()) {
    if (network.fabric().node(at).tier == 2) network.moved.insert(network.fabric().node(at).name);
  }
  const Verified verified = network.Verify(network.Options());
  EXPECT_TRUE(verified.HasMoved());
  EXPECT_EQ(verified.tiers[0].right, verified.tiers[0].asked);
  EXPECT_THAT(verified.ToString(), HasSubstr("on other paths, as UDP port "));
}

TEST(VerifyPaths, EveryNicIsAsked) {
  VerifyNetwork network(kRails);
  const int nics = network.fabric().nics(network.fabric().hosts()[0]);
  ASSERT_GT(nics, 1);
  VerifyOptions options = network.Options();
  Verified verified = network.Verify(options);
  EXPECT_EQ(static_cast<int>(verified.tiers.size()), nics);
  EXPECT_THAT(verified.Unverified(), IsEmpty());
  // The first switch of the last NIC alone.
  const Endpoint last{network.fabric().hosts()[0], nics - 1};
  const NodeId leaf = network.fabric().link(network.fabric().Ports(last)[0]).target;
  network.moved = {network.fabric().node(leaf).name};
  verified = network.Verify(options);
  EXPECT_TRUE(verified.HasMoved());
  EXPECT_LT(verified.tiers.back().right, verified.tiers.back().asked);
  EXPECT_EQ(verified.tiers.front().right, verified.tiers.front().asked);
}

TEST(VerifyPaths, SilenceVerifiesNothing) {
  VerifyNetwork network(kPods);
  network.is_silent = [](const std::string&, const FiveTuple&) { return true; };
  const Verified verified = network.Verify(network.Options());
  EXPECT_FALSE(verified.HasMoved());
  EXPECT_EQ(verified.Unverified().size(), 2u);
  EXPECT_THAT(verified.ToString(), HasSubstr("not verified: NIC 0, tier 1 (leaf"));
  EXPECT_LE(network.questions, 6);  // nobody waits for sixteen of those
}

TEST(VerifyPaths, OneSilentTierIsNamed) {
  VerifyNetwork network(kPods);
  network.is_silent = [](const std::string& name, const FiveTuple&) {
    return name.find("core") != std::string::npos;
  };
  const Verified verified = network.Verify(network.Options());
  ASSERT_EQ(verified.Unverified().size(), 1u);
  EXPECT_EQ(verified.Unverified()[0].tier, 2);
  EXPECT_FALSE(verified.HasMoved());
}

// Which of the cables to one spine a flow takes, no answer tells: a leaf that hashes otherwise
// sends it to the planned spine once in two times, not once in eight.
TEST(VerifyPaths, ParallelCablesLeadToOneAnswer) {
  VerifyNetwork network("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2,spine_cables=4");
  VerifyOptions options = network.Options();
  options.flows = 4;
  const Verified verified = network.Verify(options);
  ASSERT_EQ(verified.tiers.size(), 1u);
  EXPECT_EQ(verified.tiers[0].right, 4);
  EXPECT_DOUBLE_EQ(verified.tiers[0].missed, 1.0 / 16);
}

TEST(VerifyPaths, NamesOfRoutersAreWantedWhereThereIsAChoiceAlone) {
  const ManualClock clock;
  const AskName ask = [](const FiveTuple&, int) -> absl::StatusOr<std::string> {
    ADD_FAILURE() << "asked";
    return std::string();
  };
  VerifyOptions options;
  options.host = "h0";
  const auto verify = [&](const char* fabric) {
    return VerifyPaths(*LoadFabric(fabric), {}, "hashes.txt", options, ask, clock);
  };
  for (const char* fabric : {"leaf-spine:leaves=1,hosts_per_leaf=2,spines=1",
                             "leaf-spine:leaves=2,hosts_per_leaf=2,spines=1"}) {
    const auto verified = verify(fabric);
    ASSERT_TRUE(verified.ok()) << verified.status();
    EXPECT_THAT(verified->ToString(), HasSubstr("nothing to verify"));
  }
  const absl::Status refused = verify("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2").status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("hashes.txt has no line \"router\""));
}

TEST(VerifyPaths, TheLimitEndsIt) {
  VerifyNetwork network(kPods);
  network.each = absl::Milliseconds(300);
  const absl::Time begin = network.clock.Now();
  const Verified verified = network.Verify(network.Options());
  EXPECT_LE(network.clock.Now() - begin, absl::Milliseconds(1300));
  EXPECT_THAT(verified.Unverified(), ::testing::Not(IsEmpty()));
}

}  // namespace
}  // namespace weft::topology
