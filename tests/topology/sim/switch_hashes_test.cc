// Hashes of real switches decide the paths of simulated flows, on both levels alike.
#include "topology/sim/switch_hashes.h"

#include <gmock/gmock.h>

#include "tests/topology/sim/packet/fabrics.h"
#include "topology/ecmp/roce.h"
#include "topology/sim/flow/flow.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

SwitchHashes Make(const Fabric& fabric, const std::string& name, uint64_t seed = 7) {
  auto hashes = SwitchHashes::Create(fabric, name, seed);
  EXPECT_TRUE(hashes.ok()) << hashes.status();
  return *std::move(hashes);
}

// Bytes of data by link: of acknowledgements, which go back, there are fewer.
std::vector<int> LinksUsed(const SimulationResult& result, int64_t bytes) {
  std::vector<int> used;
  for (size_t i = 0; i < result.links.size(); ++i) {
    if (result.links[i].bytes.count() >= bytes) used.push_back(static_cast<int>(i));
  }
  return used;
}

std::vector<int> Predicted(const Fabric& fabric, const PathHash& hash, const PathHash::Flow& flow) {
  Routes routes(fabric);
  auto path = routes.Path(flow.source, flow.target, [&](NodeId at, absl::Span<const LinkId> next) {
    return next.size() == 1 ? 0 : hash.Choose(at, flow, next);
  });
  EXPECT_TRUE(path.ok());
  std::vector<int> links;
  for (LinkId link : *path) links.push_back(link.value());
  std::sort(links.begin(), links.end());
  return links;
}

class EveryHash : public testing::TestWithParam<const char*> {};

TEST_P(EveryHash, LeadsAFlowOverTheSameLinksOnBothLevels) {
  Fabric fabric = LeafSpine(2, 2, 8);
  SwitchHashes hashes = Make(fabric, GetParam());
  constexpr int64_t kBytes = 40'000;
  for (uint16_t port : {0, 49'152, 50'000, 65'535}) {
    Workload workload;
    Operation send = Send(0, 3, kBytes);
    send.source_port = port;
    workload.Add(send);
    std::vector<int> expected = Predicted(fabric, hashes, {send.source, send.target, port});
    PacketOptions packet;
    packet.hash = &hashes;
    auto packets = SimulatePackets(fabric, workload, packet);
    ASSERT_TRUE(packets.ok()) << packets.status();
    EXPECT_EQ(LinksUsed(*packets, kBytes), expected) << port;
    FlowOptions flow;
    flow.hash = &hashes;
    auto flows = SimulateFlows(fabric, workload, flow);
    ASSERT_TRUE(flows.ok()) << flows.status();
    EXPECT_EQ(LinksUsed(*flows, kBytes), expected) << port;
  }
}
INSTANTIATE_TEST_SUITE_P(Names, EveryHash,
                         testing::Values("per-tier", "linux", "crc16-ccitt", "crc16-arc", "crc32",
                                         "crc32c", "xor16", "mix", "crc32:resilient"));

TEST(SwitchHashes, SpreadPortsOverAllSpinesAndDifferBySeed) {
  Fabric fabric = LeafSpine(2, 2, 8);
  SwitchHashes one = Make(fabric, "linux", 1), other = Make(fabric, "linux", 2);
  std::set<std::vector<int>> paths;
  int differ = 0;
  for (uint16_t port = 50'000; port < 50'200; ++port) {
    Operation send = Send(0, 3, 1);
    PathHash::Flow flow{send.source, send.target, port};
    std::vector<int> path = Predicted(fabric, one, flow);
    differ += path != Predicted(fabric, other, flow) ? 1 : 0;
    paths.insert(path);
  }
  EXPECT_EQ(paths.size(), 8);
  EXPECT_GT(differ, 100);
}

// How many of 200 flows take another spine once one of eight is gone, though theirs is there.
int Moved(const std::string& name) {
  Fabric fabric = LeafSpine(2, 2, 8);
  SwitchHashes hashes = Make(fabric, name);
  Fabric broken = LeafSpine(2, 2, 8);
  Operation send = Send(0, 3, 1);
  Routes routes(fabric);
  LinkId first = routes.Next(fabric.link(fabric.Ports(send.source)[0]).target, send.target)[2];
  broken.SetUp(first, false);
  int moved = 0;
  for (uint16_t port = 50'000; port < 50'200; ++port) {
    PathHash::Flow flow{send.source, send.target, port};
    std::vector<int> before = Predicted(fabric, hashes, flow);
    bool is_lost = std::find(before.begin(), before.end(), first.value()) != before.end();
    if (!is_lost && Predicted(broken, hashes, flow) != before) ++moved;
  }
  return moved;
}

TEST(SwitchHashes, ResilientGroupsMoveOnlyWhatLostItsLink) {
  EXPECT_EQ(Moved("crc32:resilient"), 0);
  EXPECT_EQ(Moved("linux:resilient"), 0);
  EXPECT_GT(Moved("crc32"), 100);
}

TEST(SwitchHashes, UnknownNameListsThoseThereAre) {
  Fabric fabric = LeafSpine(2, 2, 2);
  auto hashes = SwitchHashes::Create(fabric, "md5", 1);
  EXPECT_EQ(hashes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(hashes.status().message()), HasSubstr("crc32c"));
}

}  // namespace
}  // namespace weft::topology
