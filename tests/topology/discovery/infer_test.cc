// From what probes say to a fabric, with routers that name themselves in different ways.
#include "topology/discovery/infer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

constexpr int kLeaves = 3, kSpines = 2, kHosts = 6;  // two hosts a leaf

using Names = std::function<std::vector<std::string>(int leaf, int spine, int to)>;

SeenFabric Seen(const Names& recorded, const Names& answered) {
  SeenFabric seen;
  for (int host = 0; host < kHosts; ++host) {
    SeenHost one;
    one.name = absl::StrCat("h", host);
    one.addresses.push_back(IpAddress::V4(0x0A010000 + static_cast<uint32_t>(host)));
    one.bandwidths.push_back(Bandwidth::GigabitsPerSecond(100));
    seen.hosts.push_back(one);
  }
  for (int a = 0; a < kHosts; ++a) {
    for (int b = 0; b < kHosts; ++b) {
      if (a == b) continue;
      const bool same = a / 2 == b / 2;
      seen.pairs.push_back({{a, 0}, {b, 0}, true, same ? 1 : 3, absl::Microseconds(20)});
      if (same) continue;
      for (uint16_t port = 0; port < 24; ++port) {
        SeenFlow flow{{a, 0}, {b, 0}, port, 4791, {}, {}};
        const int spine = port % kSpines;
        if (recorded != nullptr) flow.recorded = recorded(a / 2, spine, b / 2);
        if (answered != nullptr) flow.answered = answered(a / 2, spine, b / 2);
        seen.flows.push_back(std::move(flow));
      }
    }
  }
  return seen;
}

// As Linux records: the interface by which the probe leaves.
std::vector<std::string> Leaving(int leaf, int spine, int to) {
  return {absl::StrCat("l", leaf, "-s", spine), absl::StrCat("s", spine, "-l", to),
          absl::StrCat("l", to, "-hosts")};
}
// A switch has one name for all its interfaces.
std::vector<std::string> Loopback(int leaf, int spine, int to) {
  return {absl::StrCat("leaf", leaf), absl::StrCat("spine", spine), absl::StrCat("leaf", to)};
}
// As switches answer from the interface by which the probe came.
std::vector<std::string> Arriving(int leaf, int spine, int to) {
  return {"", absl::StrCat("s", spine, "-l", leaf), absl::StrCat("l", to, "-s", spine)};
}
// The spine's name towards the source, and nothing of the last leaf.
std::vector<std::string> OwnOnly(int leaf, int spine, int) {
  return {"", absl::StrCat("s", spine, "-l", leaf), ""};
}

void ExpectFound(const SeenFabric& seen) {
  absl::StatusOr<InferredFabric> found = InferFabric(seen, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->fabric.switches().size(), kLeaves + kSpines);
  EXPECT_EQ(found->fabric.links() / 2, kHosts + kLeaves * kSpines);
  for (int leaf = 0; leaf < kLeaves; ++leaf) {
    const NodeId id = *found->fabric.Find(absl::StrCat("leaf", leaf));
    for (int host : {2 * leaf, 2 * leaf + 1}) {
      EXPECT_TRUE(found->fabric.FindLink(*found->fabric.Find(absl::StrCat("h", host)), id).ok());
    }
    for (int spine = 0; spine < kSpines; ++spine) {
      EXPECT_TRUE(
          found->fabric.FindLink(id, *found->fabric.Find(absl::StrCat("spine", spine))).ok());
    }
  }
  EXPECT_LT(found->missed, 1e-6);
}

TEST(InferFabric, RecordedInterfacesOneAnswerEach) { ExpectFound(Seen(Leaving, OwnOnly)); }
TEST(InferFabric, RecordedInterfacesAlone) { ExpectFound(Seen(Leaving, nullptr)); }
TEST(InferFabric, RecordedNamesOfSwitches) { ExpectFound(Seen(Loopback, nullptr)); }
TEST(InferFabric, AnswersOfSwitches) { ExpectFound(Seen(nullptr, Loopback)); }
TEST(InferFabric, AnswersOfTheInterfaceOfArrival) { ExpectFound(Seen(nullptr, Arriving)); }

std::string Refusal(const SeenFabric& seen,
                    absl::StatusCode code = absl::StatusCode::kFailedPrecondition) {
  absl::StatusOr<InferredFabric> found = InferFabric(seen, {});
  EXPECT_EQ(found.status().code(), code);
  return std::string(found.status().message());
}
// Load may tell more.
std::string TooLittle(const SeenFabric& seen) {
  return Refusal(seen, absl::StatusCode::kUnavailable);
}

TEST(InferFabric, RefusesToGuess) {
  EXPECT_THAT(TooLittle(Seen(nullptr, OwnOnly)), HasSubstr("nothing tells which are the same"));
  SeenFabric silent = Seen(nullptr, nullptr);
  silent.flows.clear();
  EXPECT_THAT(TooLittle(silent), HasSubstr("between leaf0 (h0) and leaf1 (h2) are 3 routers"));
  SeenFabric few = Seen(Leaving, nullptr);
  few.flows.resize(3);
  EXPECT_THAT(TooLittle(few), HasSubstr("leaf0"));
  SeenFabric mute = Seen(Leaving, nullptr);
  for (SeenPair& pair : mute.pairs) pair.heard = pair.heard && pair.target.host != 4;
  EXPECT_THAT(Refusal(mute), HasSubstr("no probe of any other host was answered by h4"));
  SeenFabric lying = Seen(Leaving, nullptr);
  for (SeenPair& pair : lying.pairs) {
    if (pair.source.host == 0 && pair.target.host == 2) pair.routers = 5;
  }
  EXPECT_THAT(Refusal(lying), HasSubstr("distances contradict each other: h"));
}

TEST(InferFabric, AHostWhoseAnswersLieIsNamed) {
  // Every answer of h4 seems to come from under the asker's leaf.
  SeenFabric near = Seen(Leaving, nullptr);
  for (SeenPair& pair : near.pairs) {
    if (pair.target.host == 4) pair.routers = 1;
  }
  EXPECT_THAT(Refusal(near),
              HasSubstr("all others agree without h4, which may not tell the truth"));
  // All that is said of h4's distances puts it under h0's leaf, but its packets leave by its own.
  SeenFabric moved = Seen(Leaving, nullptr);
  for (SeenPair& pair : moved.pairs) {
    const int other = pair.source.host == 4 ? pair.target.host : pair.source.host;
    if (pair.source.host == 4 || pair.target.host == 4) pair.routers = other < 2 ? 1 : 3;
  }
  EXPECT_THAT(Refusal(moved), HasSubstr("h5 and h4 both have the router l2-s0 before them"));
  EXPECT_THAT(Refusal(moved), HasSubstr("all others agree without h4, or without h5"));
  // One distance alone is either's word against the other's.
  SeenFabric one = Seen(Leaving, nullptr);
  for (SeenPair& pair : one.pairs) {
    if (pair.source.host == 0 && pair.target.host == 2) pair.routers = 5;
  }
  EXPECT_THAT(Refusal(one), HasSubstr("all others agree without h0, or without h2"));
}

TEST(InferFabric, FlowsOverASilentSpineAreMissed) {
  SeenFabric seen = Seen(Leaving, OwnOnly);
  for (int source = 0; source < kHosts; ++source) {
    for (int target = 0; target < kHosts; ++target) {
      if (source / 2 != target / 2) seen.asked.push_back({{source, 0}, {target, 0}, 24});
    }
  }
  ASSERT_TRUE(InferFabric(seen, {}).ok());
  std::erase_if(seen.flows, [](const SeenFlow& flow) { return flow.source_port % kSpines == 1; });
  EXPECT_THAT(TooLittle(seen),
              HasSubstr("48 of 96 flows from leaf0 (h0) to leaf1 (h2) told nothing of their way"));
}

TEST(InferFabric, PathsByLoadMakeSpinesWithTheirBandwidths) {
  SeenFabric seen = Seen(nullptr, nullptr);
  std::erase_if(seen.flows, [](const SeenFlow& flow) { return flow.target.host != 0; });
  for (SeenFlow& flow : seen.flows) {
    flow.answered = {"", flow.source_port % kSpines == 0 ? "path 0" : "path 1", ""};
  }
  seen.loaded = {{"path 0", Bandwidth::GigabitsPerSecond(100)},
                 {"path 1", Bandwidth::GigabitsPerSecond(50)}};
  ExpectFound(seen);
  absl::StatusOr<InferredFabric> found = InferFabric(seen, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->known.routers.empty());
  const NodeId leaf = *found->fabric.Find("leaf2");
  for (int spine = 0; spine < kSpines; ++spine) {
    const auto link =
        found->fabric.FindLink(leaf, *found->fabric.Find(absl::StrCat("spine", spine)));
    ASSERT_TRUE(link.ok());
    EXPECT_EQ(found->fabric.link(*link).bandwidth.gigabits_per_second(), spine == 0 ? 100 : 50);
  }
}

// Paths by load, whose switches have another name towards each leaf.
TEST(InferFabric, NamesThatLoadsFindOnOnePathAreOneSwitch) {
  SeenFabric seen = Seen(nullptr, nullptr);
  std::erase_if(seen.flows, [](const SeenFlow& flow) { return flow.target.host != 0; });
  for (SeenFlow& flow : seen.flows) {
    flow.answered = {"", flow.source_port % kSpines == 0 ? "path 0" : "path 1", ""};
  }
  for (int spine = 0; spine < kSpines; ++spine) {
    const std::string path = absl::StrCat("path ", spine);
    seen.loaded[path] = Bandwidth::GigabitsPerSecond(100);
    for (int leaf = 0; leaf < kLeaves; ++leaf) {
      seen.same.emplace_back(path, absl::StrCat("s", spine, "-l", leaf));
    }
  }
  ExpectFound(seen);
  absl::StatusOr<InferredFabric> found = InferFabric(seen, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->known.routers.size(), static_cast<size_t>(kLeaves * kSpines));
  EXPECT_EQ(found->known.routers["s1-l2"], found->known.routers["s1-l0"]);
  EXPECT_NE(found->known.routers["s1-l2"], found->known.routers["s0-l2"]);
}

Bandwidth Between(const Fabric& fabric, const std::string& from, const std::string& to) {
  return fabric.link(*fabric.FindLink(*fabric.Find(from), *fabric.Find(to))).bandwidth;
}

TEST(InferFabric, BandwidthsAreThoseThatWereGivenOrMeasured) {
  SeenFabric seen = Seen(nullptr, Loopback);
  InferOptions options;
  options.switch_bandwidth = Bandwidth::GigabitsPerSecond(100);
  options.bandwidth_below["spine1"] = Bandwidth::GigabitsPerSecond(50);
  auto found = InferFabric(seen, options);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(Between(found->fabric, "leaf0", "spine0"), Bandwidth::GigabitsPerSecond(100));
  EXPECT_EQ(Between(found->fabric, "leaf2", "spine1"), Bandwidth::GigabitsPerSecond(50));

  options.bandwidth_below["spine7"] = Bandwidth::GigabitsPerSecond(50);
  EXPECT_THAT(std::string(InferFabric(seen, options).status().message()),
              HasSubstr("--switch-bandwidth names spine7, which is no switch above the leaves; "
                        "these are spine0, spine1"));

  seen.loaded = {{"path 0", Bandwidth::GigabitsPerSecond(10)},
                 {"path 1", Bandwidth::GigabitsPerSecond(40)}};
  seen.same = {{"path 0", "spine1"}, {"path 1", "spine0"}};
  found = InferFabric(seen, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(Between(found->fabric, "leaf0", "spine0"), Bandwidth::GigabitsPerSecond(40));
  EXPECT_EQ(Between(found->fabric, "leaf1", "spine1"), Bandwidth::GigabitsPerSecond(10));
  seen.same.pop_back();
  EXPECT_THAT(Refusal(seen), HasSubstr("no load told the bandwidth of spine0"));
}

// Two to each spine, which leaf and spine choose by hashes of their own.
TEST(InferFabric, ParallelCablesAreOneOfTheirBandwidth) {
  SeenFabric seen = Seen(Leaving, Loopback);
  for (SeenFlow& flow : seen.flows) {
    absl::StrAppend(&flow.recorded[0], "#", flow.source_port / kSpines % 2);
    absl::StrAppend(&flow.recorded[1], "#", flow.source_port / (2 * kSpines) % 2);
  }
  ExpectFound(seen);
  const auto found = InferFabric(seen, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(Between(found->fabric, "leaf0", "spine1"), Bandwidth::GigabitsPerSecond(200));
  EXPECT_THAT(found->notes, ::testing::Contains(HasSubstr("up to 2 cables between two switches")));
}

TEST(InferFabric, EachNicOfAHostHasItsOwnBandwidth) {
  SeenFabric seen = Seen(nullptr, Loopback);
  for (int host : {0, 1}) {  // a second NIC of both, under their leaf
    SeenHost& one = seen.hosts[static_cast<size_t>(host)];
    one.addresses.push_back(IpAddress::V4(0x0A020000 + static_cast<uint32_t>(host)));
    one.bandwidths.push_back(Bandwidth::GigabitsPerSecond(25));
    seen.pairs.push_back({{host, 1}, {1 - host, 0}, true, 1, absl::Microseconds(20)});
  }
  const auto found = InferFabric(seen, {});
  ASSERT_TRUE(found.ok()) << found.status();
  const NodeId host = *found->fabric.Find("h0");
  for (int nic : {0, 1}) {
    const LinkId port = found->fabric.Ports({host, nic})[0];
    EXPECT_EQ(found->fabric.link(port).bandwidth,
              Bandwidth::GigabitsPerSecond(nic == 0 ? 100 : 25));
  }
}

// More ports tell nothing of other paths then.
TEST(InferFabric, RefusesSwitchesThatHashAddressesAlone) {
  SeenFabric seen = Seen(nullptr, Loopback);
  for (SeenFlow& flow : seen.flows) {
    const int spine = (flow.source.host + flow.target.host) % kSpines;
    flow.answered = Loopback(flow.source.host / 2, spine, flow.target.host / 2);
  }
  EXPECT_THAT(Refusal(seen), HasSubstr("has 2 ways to leaf"));
  EXPECT_THAT(Refusal(seen), HasSubstr("it hashes addresses alone"));
}

TEST(InferFabric, LldpMustAgreeWithProbes) {
  SeenFabric seen = Seen(Leaving, nullptr);
  for (int host = 0; host < kHosts; ++host)
    seen.neighbors[{host, 0}] = absl::StrCat("tor", host / 2);
  ExpectFound(seen);
  SeenFabric other = seen;
  other.neighbors[{1, 0}] = "tor9";
  EXPECT_THAT(Refusal(other), HasSubstr("LLDP says that h0 is under tor0 and h1 under tor9"));
  other.neighbors[{1, 0}] = "tor0";
  other.neighbors[{2, 0}] = other.neighbors[{3, 0}] = "tor0";
  EXPECT_THAT(Refusal(other), HasSubstr("but LLDP names one switch at both (tor0)"));
  // Switches that count no hops.
  for (SeenPair& pair : seen.pairs) pair.routers = 0;
  EXPECT_EQ(LeavesOf(seen).at({5, 0}), 2);
  seen.neighbors.clear();
  EXPECT_EQ(LeavesOf(seen).at({5, 0}), 0);
}

}  // namespace
}  // namespace weft::topology
