// The planner's closed forms (topology/cost/collective_flows.h) against what the schedules send:
// for every number of hosts and ranks of a host, the bytes out of each host into each other.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/group_place.h"
#include "topology/cost/collective_flows.h"

namespace weft::collectives {
namespace {

using topology::GroupAlgorithm;
using BytesBetween = std::map<std::pair<int, int>, int64_t>;  // of hosts

// Parts begin at multiples of 64 elements; it divides by all the numbers of ranks below.
constexpr uint64_t kCount = uint64_t{64} * 5040;
constexpr int64_t kElement = 4;

struct Case {
  const char* algorithm;
  CollectiveKind kind;
  int hosts, ranks;  // of a host
};

// `planned`: by rank, those to which it has planned flows.
BytesBetween OfSchedules(const Case& one, const std::vector<std::vector<int>>& planned = {}) {
  const int n = one.hosts * one.ranks;
  std::vector<RankPlace> places(static_cast<size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    places[static_cast<size_t>(rank)].host = absl::StrCat(rank / one.ranks);
  }
  const bool whole = one.kind == CollectiveKind::kAllReduce;
  CollectiveSpec spec{.kind = one.kind,
                      .size = n,
                      .count = whole ? kCount : kCount / static_cast<uint64_t>(n),
                      .chunk = kCount,
                      .place = std::make_shared<const GroupPlace>(places, planned)};
  BytesBetween bytes;
  for (spec.rank = 0; spec.rank < n; ++spec.rank) {
    for (const Step& step : FindAlgorithm(one.algorithm, one.kind)->build(spec).steps) {
      const std::pair hosts(spec.rank / one.ranks, step.peer / one.ranks);
      if (step.kind != StepKind::kSend || hosts.first == hosts.second) continue;
      bytes[hosts] += static_cast<int64_t>(step.length) * kElement;
    }
  }
  return bytes;
}

std::vector<topology::SlotFlow> FlowsOfClosedForm(const Case& one, GroupAlgorithm algorithm) {
  const int n = one.hosts * one.ranks;
  topology::Traffic traffic;
  traffic.axes = {topology::Axis::kData};
  traffic.collective = one.kind;
  traffic.algorithm = algorithm;
  traffic.bytes = Bytes(static_cast<int64_t>(kCount) * kElement);
  const topology::Mesh mesh = *topology::Mesh::Create({{topology::Axis::kData, n}});
  return FlowsOf(traffic, mesh, {}, topology::RankBlocks::Contiguous(n, one.ranks), one.ranks)
      .flows;
}

BytesBetween OfClosedForm(const Case& one, GroupAlgorithm algorithm) {
  BytesBetween bytes;
  for (const topology::SlotFlow& flow : FlowsOfClosedForm(one, algorithm)) {
    bytes[{flow.source, flow.target}] += flow.bytes;
  }
  return bytes;
}

// Rounding: a flow's bytes are whole.
void ExpectAlike(const Case& one, GroupAlgorithm algorithm,
                 const std::vector<std::vector<int>>& planned = {}) {
  const std::string name = absl::StrCat(one.algorithm, " ", ToString(one.kind), " on ", one.hosts,
                                        " hosts of ", one.ranks);
  const BytesBetween sent = OfSchedules(one, planned), expected = OfClosedForm(one, algorithm);
  ASSERT_EQ(sent.size(), expected.size()) << name;
  for (const auto& [hosts, bytes] : expected) {
    ASSERT_TRUE(sent.contains(hosts)) << name << ": " << hosts.first << " to " << hosts.second;
    EXPECT_NEAR(static_cast<double>(sent.at(hosts)), static_cast<double>(bytes), one.ranks)
        << name << ": " << hosts.first << " to " << hosts.second;
  }
}

TEST(ClosedForms, RingsSendWhatTheirSchedulesSend) {
  for (CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (int hosts : {2, 3, 4, 7}) {
      for (int ranks : {1, 2, 4}) {
        ExpectAlike({"ring", kind, hosts, ranks}, GroupAlgorithm::kRing);
      }
    }
  }
}

// Where the closed form's flows are planned, the edges are the same: on every rail of the hosts.
TEST(ClosedForms, TreesAlongAPlanSendWhatWasPlanned) {
  for (int hosts : {2, 3, 4, 6, 7, 8, 13}) {
    for (int ranks : {1, 2, 4}) {
      const Case one{"tree", CollectiveKind::kAllReduce, hosts, ranks};
      std::vector<std::vector<int>> planned(static_cast<size_t>(hosts * ranks));
      for (const topology::SlotFlow& flow : FlowsOfClosedForm(one, GroupAlgorithm::kTree)) {
        planned[static_cast<size_t>(flow.source * ranks + flow.source_gpu)].push_back(
            flow.target * ranks + flow.target_gpu);
      }
      ExpectAlike(one, GroupAlgorithm::kTree, planned);
    }
  }
}

// Without a plan our algorithm numbers the nodes otherwise than NCCL: the edges are others,
// what crosses all of them is the same, and no host sends more than twice its buffer.
TEST(ClosedForms, TreesOverHostsSendAsMuchAsTheirSchedules) {
  for (int hosts = 2; hosts <= 16; ++hosts) {
    const Case one{"tree", CollectiveKind::kAllReduce, hosts, 1};
    for (const BytesBetween& all : {OfSchedules(one), OfClosedForm(one, GroupAlgorithm::kTree)}) {
      std::map<int, int64_t> sent;
      int64_t total = 0;
      for (const auto& [pair, bytes] : all) {
        sent[pair.first] += bytes;
        total += bytes;
      }
      const int64_t buffer = static_cast<int64_t>(kCount) * kElement;
      EXPECT_EQ(total, 2 * (hosts - 1) * buffer) << hosts << " hosts";
      for (const auto& [host, bytes] : sent) EXPECT_LE(bytes, 2 * buffer) << hosts << " hosts";
    }
  }
}

// Up to eight hosts our rails reduce at once, each with each other; NCCL's and ours beyond are
// rings. What leaves a host is the same.
TEST(ClosedForms, HierarchicalSendsWhatItsSchedulesSend) {
  for (int hosts : {2, 3, 4, 6, 9, 12}) {
    for (int ranks : {1, 2, 4}) {
      const Case one{"hierarchical", CollectiveKind::kAllReduce, hosts, ranks};
      std::map<int, int64_t> sent, expected;
      for (const auto& [pair, bytes] : OfSchedules(one)) sent[pair.first] += bytes;
      for (const auto& [pair, bytes] : OfClosedForm(one, GroupAlgorithm::kHierarchical)) {
        expected[pair.first] += bytes;
      }
      ASSERT_EQ(sent.size(), expected.size());
      for (const auto& [host, bytes] : expected) {
        EXPECT_NEAR(static_cast<double>(sent[host]), static_cast<double>(bytes), 2 * ranks)
            << hosts << " hosts of " << ranks << ", host " << host;
      }
    }
  }
}

TEST(ClosedForms, AllToAllSendsWhatEverySchedulesSends) {
  for (const char* algorithm : {"direct", "pairwise", "hierarchical"}) {
    for (int hosts : {2, 3, 5}) {
      for (int ranks : {1, 2, 4}) {
        ExpectAlike({algorithm, CollectiveKind::kAllToAll, hosts, ranks}, GroupAlgorithm::kRing);
      }
    }
  }
}

}  // namespace
}  // namespace weft::collectives
