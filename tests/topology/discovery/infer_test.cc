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
    one.bandwidth = Bandwidth::GigabitsPerSecond(100);
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

std::string Refusal(const SeenFabric& seen) {
  absl::StatusOr<InferredFabric> found = InferFabric(seen, {});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
  return std::string(found.status().message());
}

TEST(InferFabric, RefusesToGuess) {
  EXPECT_THAT(Refusal(Seen(nullptr, OwnOnly)), HasSubstr("nothing tells which are the same"));
  SeenFabric silent = Seen(nullptr, nullptr);
  silent.flows.clear();
  EXPECT_THAT(Refusal(silent), HasSubstr("between leaf0 (h0) and leaf1 (h2) are 3 routers"));
  SeenFabric few = Seen(Leaving, nullptr);
  few.flows.resize(3);
  EXPECT_THAT(Refusal(few), HasSubstr("leaf0"));
  SeenFabric mute = Seen(Leaving, nullptr);
  for (SeenPair& pair : mute.pairs) pair.heard = pair.heard && pair.target.host != 4;
  EXPECT_THAT(Refusal(mute), HasSubstr("no probe of any other host was answered by h4"));
  SeenFabric lying = Seen(Leaving, nullptr);
  for (SeenPair& pair : lying.pairs) {
    if (pair.source.host == 0 && pair.target.host == 2) pair.routers = 5;
  }
  EXPECT_THAT(Refusal(lying), HasSubstr("distances contradict each other: h"));
}

}  // namespace
}  // namespace weft::topology
