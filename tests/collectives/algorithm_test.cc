// Every algorithm proved for many numbers of ranks, counts, roots and places; and its cost counted
// in its schedules. `algorithm_test --ranks=64` proves all numbers of ranks from 1 to 64, in
// minutes; without it, those up to 9 and some above.
#include "collectives/algorithms/algorithm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/settings.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/paths.h"
#include "collectives/planner/forced.h"
#include "collectives/planner/planned_peers.h"
#include "collectives/verify.h"
#include "tests/collectives/schedule_cases.h"
#include "topology/job/binary_trees.h"

namespace weft::collectives {

int ranks_max = 0;  // above 0: all numbers up to it

namespace {

std::vector<int> RankCounts() {
  if (ranks_max == 0) return {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17};
  std::vector<int> all(static_cast<size_t>(ranks_max));
  std::iota(all.begin(), all.end(), 1);
  return all;
}

template <typename Visit>
void ForEachAlgorithm(const Visit& visit) {
  for (const Algorithm* algorithm : Algorithms()) {
    for (int k = 0; k < kCollectiveKindCount; ++k) {
      const CollectiveKind kind = static_cast<CollectiveKind>(k);
      if (algorithm->has(kind)) visit(*algorithm, kind);
    }
  }
}

class ProofTest : public testing::TestWithParam<const Algorithm*> {};

TEST_P(ProofTest, HoldsForManyRanksCountsRootsAndPlaces) {
  const Algorithm& algorithm = *GetParam();
  Random random(5, 0);
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    const CollectiveKind kind = static_cast<CollectiveKind>(k);
    if (!algorithm.has(kind)) continue;
    for (int n : RankCounts()) {
      const uint64_t u = static_cast<uint64_t>(n);
      std::vector<uint64_t> counts = {0, 1, u - 1, u, u + 1, 61, n <= 5 ? 1000u : 100u};
      if (n > 9) counts = {random.Below(3 * u), 1 + random.Below(150)};
      for (size_t c = 0; c < counts.size(); ++c) {
        std::vector<CaseOptions> variants = {
            {.root = 0},
            {.chunk = 7, .root = 1, .average = true, .in_place = CaseOptions::kEverybody},
            {.chunk = 7, .root = 2, .channels = 2, .in_place = CaseOptions::kSome},
            {.chunk = 16, .root = 3, .channels = 3, .hosts = 2, .average = true},
            {.chunk = 7, .root = 4, .hosts = 3, .in_place = CaseOptions::kSome},
            {.chunk = 16, .root = 2, .hosts = 5, .switches = 2, .average = true},
            {.chunk = 7,
             .root = 1,
             .hosts = 4,
             .switches = 2,
             .average = true,
             .rounds_once = true,
             .in_place = CaseOptions::kSome},
            {.chunk = 7, .root = 3, .hosts = 6, .switches = 3, .in_place = CaseOptions::kSome},
        };
        for (size_t v = 0; v < variants.size(); ++v) {
          if (n > 9 && v % counts.size() != c) continue;
          variants[v].count = counts[c];
          variants[v].salt = random.Below(1u << 30);
          const Case built = BuildCase(algorithm, kind, n, variants[v]);
          const absl::Status status = VerifySchedules(built.specs, built.schedules);
          ASSERT_TRUE(status.ok()) << built.text << ": " << status;
        }
      }
    }
  }
}

// A case for every number of ranks, above 17 of the kinds in turn; --ranks=64 proves many of each.
TEST_P(ProofTest, HoldsForEveryNumberOfRanksUpTo64) {
  const Algorithm& algorithm = *GetParam();
  std::vector<CollectiveKind> kinds;
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    if (algorithm.has(static_cast<CollectiveKind>(k))) {
      kinds.push_back(static_cast<CollectiveKind>(k));
    }
  }
  for (size_t k = 0; k < kinds.size(); ++k) {
    const CollectiveKind kind = kinds[k];
    for (int n = 1; n <= 64; ++n) {
      if (n > 17 && static_cast<size_t>(n) % kinds.size() != k) continue;
      const uint64_t u = static_cast<uint64_t>(n);
      Random random(u, k);
      // Parts have few elements, so that a schedule has no more steps than it must have.
      CaseOptions options{.count = random.Below(4), .chunk = 2};
      if (kind == CollectiveKind::kAllReduce) options.count += u;
      options.root = static_cast<int>(random.Below(u));
      options.channels = 1 + static_cast<int>(random.Below(2));
      options.hosts = 1 + static_cast<int>(random.Below(std::min<uint64_t>(u, 6)));
      options.switches = 1 + static_cast<int>(random.Below(3));
      options.average = random.Below(2) == 1;
      options.rounds_once = random.Below(2) == 1;
      options.in_place = random.Below(2) == 1 ? CaseOptions::kSome : CaseOptions::kNobody;
      options.salt = random.Below(1u << 30);
      const Case built = BuildCase(algorithm, kind, n, options);
      const absl::Status status = VerifySchedules(built.specs, built.schedules);
      ASSERT_TRUE(status.ok()) << built.text << ": " << status;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, ProofTest,
                         testing::ValuesIn(Algorithms().begin(), Algorithms().end()),
                         [](const auto& algorithm) { return std::string(algorithm.param->name); });

TEST(AlgorithmTest, EveryKindHasAChoice) {
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    int choices = 0;
    for (const Algorithm* algorithm : Algorithms()) {
      choices += algorithm->has(static_cast<CollectiveKind>(k));
    }
    EXPECT_GE(choices, 2) << ToString(static_cast<CollectiveKind>(k));
  }
}

TEST(AlgorithmTest, TheSettingNamesEveryAlgorithm) {
  const auto force = [](const char* name) {
    Settings settings(LibrarySettings());
    EXPECT_TRUE(settings.Set("collective.algorithm", name, "test").ok());
    return planner::Forced::Create(settings).status();
  };
  for (const Algorithm* algorithm : Algorithms()) {
    EXPECT_TRUE(force(algorithm->name).ok()) << force(algorithm->name);
  }
  const absl::Status status = force("rings");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("nearest: ring"), std::string::npos) << status;
}

TEST(AlgorithmTest, ProofCostsNothingForLargeCounts) {
  const Case built = BuildCase(kDirect, CollectiveKind::kAllReduce, 4,
                               {.count = uint64_t{1} << 34, .chunk = uint64_t{1} << 28});
  EXPECT_TRUE(VerifySchedules(built.specs, built.schedules).ok());
}

// ---- Costs, counted.

// By pair of ranks, from * n + to: the steps of its messages at both ends, in their order.
struct Meeting {
  uint32_t send = 0, receive = 0;
};
std::vector<std::vector<Meeting>> MeetingsOf(const Case& built) {
  const size_t n = built.schedules.size();
  std::vector<std::vector<Meeting>> meetings(n * n);
  std::vector<size_t> received(n * n);
  for (const bool sends : {true, false}) {
    for (size_t r = 0; r < n; ++r) {
      const std::vector<Step>& steps = built.schedules[r].steps;
      for (uint32_t id = 0; id < steps.size(); ++id) {
        if (steps[id].peer < 0 || (steps[id].kind == StepKind::kSend) != sends) continue;
        const size_t peer = static_cast<size_t>(steps[id].peer);
        if (sends) {
          meetings[r * n + peer].push_back({.send = id});
        } else {
          const size_t pair = peer * n + r;
          meetings[pair][received[pair]++].receive = id;
        }
      }
    }
  }
  return meetings;
}

// By rank and step: messages on the longest chain that ends with it.
double LongestChain(const Case& built) {
  const size_t n = built.schedules.size();
  const auto meetings = MeetingsOf(built);
  std::vector<std::vector<int>> depth(n);
  for (size_t r = 0; r < n; ++r) depth[r].assign(built.schedules[r].steps.size(), 0);
  int longest = 0;
  for (bool changed = true; changed;) {
    changed = false;
    auto raise = [&](int& value, int to) {
      changed |= to > value;
      value = std::max(value, to);
      longest = std::max(longest, value);
    };
    for (size_t r = 0; r < n; ++r) {
      for (size_t id = 0; id < depth[r].size(); ++id) {
        for (uint32_t before : built.schedules[r].After(built.schedules[r].steps[id])) {
          raise(depth[r][id], depth[r][before]);
        }
      }
    }
    for (size_t pair = 0; pair < n * n; ++pair) {
      for (const Meeting& meeting : meetings[pair]) {
        raise(depth[pair % n][meeting.receive], depth[pair / n][meeting.send] + 1);
      }
    }
  }
  return longest;
}

size_t SwitchOf(const GroupPlace& place, int rank) {
  return static_cast<size_t>(
      place.switch_of[static_cast<size_t>(place.host[static_cast<size_t>(rank)])]);
}

// The most that any rank has of receives from other hosts on a chain of receives that wait for one
// another, beyond the first.
double ReceivesInOrder(const Case& built, const GroupPlace& place) {
  int longest = 0;
  for (size_t r = 0; r < built.schedules.size(); ++r) {
    const RankSchedule& schedule = built.schedules[r];
    std::vector<int> chain(schedule.steps.size());
    for (size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      if (step.kind != StepKind::kReceiveReduce) continue;
      for (uint32_t earlier : schedule.After(step)) chain[i] = std::max(chain[i], chain[earlier]);
      if (place.host[r] != place.host[static_cast<size_t>(step.peer)]) ++chain[i];
      longest = std::max(longest, chain[i]);
    }
  }
  return std::max(0, longest - 1);
}

Cost Counted(const Case& built) {
  Cost cost;
  const int n = static_cast<int>(built.specs.size());
  const GroupPlace place = PlaceOf(built.specs[0]);
  std::vector<double> sent(n), received(n), leaving(n), entering(n), beyond(n), towards(n);
  double all = 0;
  for (int r = 0; r < n; ++r) {
    double sends = 0, receives = 0, reduced = 0, copied = 0;
    for (const Step& step : built.schedules[static_cast<size_t>(r)].steps) {
      const double length = static_cast<double>(step.length);
      const bool reduces = step.kind == StepKind::kReduce || step.kind == StepKind::kReceiveReduce;
      if (step.kind == StepKind::kCopy || step.kind == StepKind::kReduce) copied += length;
      if (reduces) reduced += length;
      copied += length * step.more_count, reduced += length * step.more_count;
      if (step.peer < 0) continue;
      const bool across = place.host[r] != place.host[step.peer];
      const bool send = step.kind == StepKind::kSend;
      (send ? sends : receives) += 1;
      (send ? sent : received)[r] += length;
      if (across) (send ? leaving : entering)[place.host[r]] += length;
      if (SwitchOf(place, r) != SwitchOf(place, step.peer)) {
        (send ? beyond : towards)[SwitchOf(place, r)] += length;
      }
      if (send) all += length;
    }
    cost.messages = std::max({cost.messages, sends, receives});
    cost.elements = std::max({cost.elements, sent[r], received[r]});
    cost.reduced = std::max(cost.reduced, reduced);
    cost.copied = std::max(cost.copied, copied);
    cost.elements_across =
        std::max({cost.elements_across, leaving[place.host[r]], entering[place.host[r]]});
  }
  cost.elements_beyond = std::max(*std::max_element(beyond.begin(), beyond.end()),
                                  *std::max_element(towards.begin(), towards.end()));
  cost.balance = cost.elements > 0 ? all / (cost.elements * n) : 1;
  cost.turns = LongestChain(built);
  cost.in_order = ReceivesInOrder(built, place);
  return cost;
}

TEST(CostTest, OfOneHostIsWhatTheSchedulesHold) {
  ForEachAlgorithm([](const Algorithm& algorithm, CollectiveKind kind) {
    if (kind == CollectiveKind::kAllToAllV) return;  // no rank knows all lengths
    for (int n : {2, 3, 4, 6, 8, 13, 16}) {
      for (uint64_t chunk : {uint64_t{1000000}, uint64_t{64}}) {
        const uint64_t count = kind == CollectiveKind::kBarrier ? 0 : 64 * static_cast<uint64_t>(n);
        const Case built =
            BuildCase(algorithm, kind, n, {.count = count, .chunk = chunk, .root = 1, .salt = 3});
        const Cost cost = algorithm.cost(built.specs[0]), counted = Counted(built);
        SCOPED_TRACE(built.text);
        // Counts per rank and the stretches of uneven trees are taken at their longest.
        const bool even = kind != CollectiveKind::kAllGatherV;
        const double slack = even ? 0.15 : 0.6;
        auto check = [&](const char* what, double closed, double in_schedules) {
          EXPECT_LE(in_schedules, closed * (even ? 1.1 : 1.0) + 1e-9) << what;
          EXPECT_GE(in_schedules, closed * (1 - slack) - (even ? 0 : 1)) << what;
        };
        EXPECT_LE(counted.turns, cost.turns);
        EXPECT_GE(counted.turns, cost.turns - 1);  // what is folded in need not be last
        check("messages", cost.messages, counted.messages);
        check("elements", cost.elements, counted.elements);
        check("reduced", cost.reduced, counted.reduced);
        check("copied", cost.copied, counted.copied);
        if (kind == CollectiveKind::kBarrier) continue;
        EXPECT_NEAR(cost.balance, counted.balance, even ? 0.15 : 0.6);
      }
    }
  });
}

// The share of elements that are reduced on arrival, or were written by the step before the send.
double StagedShare(const Case& built) {
  const size_t n = built.schedules.size();
  const auto meetings = MeetingsOf(built);
  double all = 0, staged = 0;
  for (size_t pair = 0; pair < n * n; ++pair) {
    for (const Meeting& meeting : meetings[pair]) {
      const Step& send = built.schedules[pair / n].steps[meeting.send];
      const Step& receive = built.schedules[pair % n].steps[meeting.receive];
      const bool warm = send.after_count > 0 && send.left.buffer != Buffer::kInput;
      const double length = static_cast<double>(send.length);
      all += length;
      if (warm || receive.kind == StepKind::kReceiveReduce) staged += length;
    }
  }
  return all > 0 ? staged / all : 0;
}

// Messages and clear-to-sends on the longest chain. A message leaves when its sender has it and the
// clear-to-send of its receive has come; messages of a pair are posted in their order.
double LongestChainWithClears(const Case& built) {
  const size_t n = built.schedules.size();
  const auto meetings = MeetingsOf(built);
  std::vector<std::vector<int>> ready(n), done(n);  // by rank and step
  for (size_t r = 0; r < n; ++r) {
    ready[r].assign(built.schedules[r].steps.size(), 0);
    done[r] = ready[r];
  }
  int longest = 0;
  for (bool changed = true; changed;) {
    changed = false;
    auto raise = [&](int& value, int to) {
      changed |= to > value;
      value = std::max(value, to);
      longest = std::max(longest, value);
    };
    for (size_t r = 0; r < n; ++r) {
      for (size_t id = 0; id < ready[r].size(); ++id) {
        const Step& step = built.schedules[r].steps[id];
        for (uint32_t before : built.schedules[r].After(step)) raise(ready[r][id], done[r][before]);
        if (step.peer < 0) raise(done[r][id], ready[r][id]);
      }
    }
    for (size_t pair = 0; pair < n * n; ++pair) {
      int sent = 0, posted = 0;
      for (const Meeting& meeting : meetings[pair]) {
        int& send = ready[pair / n][meeting.send];
        int& receive = ready[pair % n][meeting.receive];
        raise(send, sent), raise(receive, posted);
        sent = send, posted = receive;
        const int leaves = std::max(sent, posted + 1);
        raise(done[pair / n][meeting.send], leaves);
        raise(done[pair % n][meeting.receive], leaves + 1);
      }
    }
  }
  return longest;
}

// All receives that wait for nothing are posted before any message arrives: one clear-to-send.
TEST(CostTest, WhatRanksOfAHostCopyTwiceAndPostLateIsWhatTheSchedulesHold) {
  ForEachAlgorithm([](const Algorithm& algorithm, CollectiveKind kind) {
    if (kind == CollectiveKind::kAllToAllV || kind == CollectiveKind::kBarrier) return;
    for (int n : {2, 3, 4, 6, 8, 13, 16}) {
      for (bool rounds_once : {false, true}) {
        if (rounds_once && !Reduces(kind)) continue;
        const Case built = BuildCase(algorithm, kind, n,
                                     {.count = 64 * static_cast<uint64_t>(n),
                                      .root = 1,
                                      .rounds_once = rounds_once,
                                      .salt = 3});
        SCOPED_TRACE(absl::StrCat(built.text, " rounds once ", rounds_once));
        const Cost cost = algorithm.cost(built.specs[0]);
        // At levels a root gets what its rail's other ranks have reduced.
        const bool levels = &algorithm == &kHierarchical || &algorithm == &kThreeLevel;
        EXPECT_NEAR(cost.staged, StagedShare(built), levels ? 0.251 : 0.15);
        const double posts = LongestChainWithClears(built) - 1 - LongestChain(built);
        EXPECT_NEAR(cost.posts, std::max(posts, 0.0), 1);
      }
    }
  });
}

TEST(CostTest, BetweenHostsIsWhatTheSchedulesHold) {
  ForEachAlgorithm([](const Algorithm& algorithm, CollectiveKind kind) {
    if (kind == CollectiveKind::kAllToAllV || kind == CollectiveKind::kAllGatherV) return;
    for (int hosts : {2, 4, 6}) {
      const int n = 4 * hosts;
      std::vector<std::string> names;
      for (int r = 0; r < n; ++r) names.push_back(absl::StrCat(r / 4));
      Case built = BuildCase(algorithm, kind, n, {.count = 48 * static_cast<uint64_t>(n)});
      for (size_t r = 0; r < built.specs.size(); ++r) {
        built.specs[r].place = std::make_shared<const GroupPlace>(names);
        built.schedules[r] = algorithm.build(built.specs[r]);
      }
      const Cost cost = algorithm.cost(built.specs[0]), counted = Counted(built);
      SCOPED_TRACE(absl::StrCat(built.text, " hosts ", hosts));
      const bool exact = &algorithm == &kHierarchical || &algorithm == &kRing ||
                         &algorithm == &kDirect || &algorithm == &kChain;
      // The others do not talk to all ranks quite alike.
      EXPECT_LE(counted.elements_across, cost.elements_across * (exact ? 1.01 : 2) + 1e-9);
      if (exact) {
        EXPECT_GE(counted.elements_across, cost.elements_across * 0.99);
        EXPECT_NEAR(cost.elements, counted.elements, 0.01 * counted.elements);
        EXPECT_EQ(cost.turns, counted.turns);
        EXPECT_EQ(cost.in_order, counted.in_order);
      }
    }
  });
}

// 32 ranks, two a host, four hosts a switch: what trees and exchanges send from switch to switch.
TEST(CostTest, WhatCrossesBetweenSwitchesIsCounted) {
  std::vector<RankPlace> places(32);
  for (int r = 0; r < 32; ++r) {
    places[static_cast<size_t>(r)].host = absl::StrCat(r / 2);
    places[static_cast<size_t>(r)].switch_name = absl::StrCat(r / 8);
  }
  const auto place = std::make_shared<const GroupPlace>(places);
  ForEachAlgorithm([&](const Algorithm& algorithm, CollectiveKind kind) {
    const std::set<const Algorithm*> counting = {&kPat, &kHalvingDoubling, &kRecursiveDoubling,
                                                 &kBinomial, &kTree};
    if (counting.count(&algorithm) == 0 && !(&algorithm == &kDirect && HasRoot(kind))) return;
    if (kind == CollectiveKind::kAllGatherV) return;
    Case built = BuildCase(algorithm, kind, 32, {.count = 64 * 96, .chunk = 512});
    for (size_t r = 0; r < built.specs.size(); ++r) {
      built.specs[r].place = place;
      built.schedules[r] = algorithm.build(built.specs[r]);
    }
    const Cost cost = algorithm.cost(built.specs[0]), counted = Counted(built);
    EXPECT_NEAR(cost.elements_beyond, counted.elements_beyond, 0.05 * counted.elements_beyond)
        << built.text;
  });
}

// 16 ranks, two a host, four hosts a switch.
TEST(CostTest, BetweenSwitchesIsWhatTheSchedulesHold) {
  const auto place = [] {
    std::vector<RankPlace> places(16);
    for (int r = 0; r < 16; ++r) {
      places[static_cast<size_t>(r)].host = absl::StrCat(r / 2);
      places[static_cast<size_t>(r)].switch_name = absl::StrCat(r / 8);
    }
    return std::make_shared<const GroupPlace>(places);
  }();
  for (const Algorithm* algorithm : {&kRing, &kChain, &kHierarchical, &kThreeLevel}) {
    for (CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
          CollectiveKind::kBroadcast, CollectiveKind::kReduce}) {
      if (!algorithm->has(kind)) continue;
      Case built = BuildCase(*algorithm, kind, 16, {.count = 4800, .chunk = 600});
      for (size_t r = 0; r < built.specs.size(); ++r) {
        built.specs[r].place = place;
        built.schedules[r] = algorithm->build(built.specs[r]);
      }
      SCOPED_TRACE(built.text);
      const Cost cost = algorithm->cost(built.specs[0]), counted = Counted(built);
      if (cost.elements_beyond >= 0) {
        EXPECT_NEAR(cost.elements_beyond, counted.elements_beyond, 0.05 * counted.elements_beyond);
      }
      EXPECT_NEAR(cost.elements_across, counted.elements_across, 0.1 * counted.elements_across);
      EXPECT_NEAR(cost.elements, counted.elements, 0.1 * counted.elements);
      if (algorithm != &kThreeLevel) continue;
      // Never more between switches than without them, and of what is gathered much less.
      built.specs[0].rank = 0;
      Case flat = built;
      for (size_t r = 0; r < flat.specs.size(); ++r) {
        flat.schedules[r] = kHierarchical.build(flat.specs[r]);
      }
      const double two_levels = Counted(flat).elements_beyond;
      EXPECT_LE(counted.elements_beyond, two_levels * 1.01);
      if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter) {
        EXPECT_LE(counted.elements_beyond, two_levels / 3);
      }
    }
  }
}

TEST(GroupPlaceTest, HostsOfASwitchFollowEachOtherAndWhatIsNotKnownIsOneSwitch) {
  std::vector<RankPlace> places(6);
  const char* hosts[] = {"a", "b", "c", "a", "b", "d"};
  const char* switches[] = {"x", "y", "x", "x", "y", "x"};
  for (size_t r = 0; r < 6; ++r) places[r].host = hosts[r], places[r].switch_name = switches[r];
  const GroupPlace place(places);
  EXPECT_EQ(place.hosts, (std::vector<std::vector<int>>{{0, 3}, {2}, {5}, {1, 4}}));
  EXPECT_EQ(place.switches, (std::vector<std::vector<int>>{{0, 1, 2}, {3}}));
  EXPECT_EQ(place.host, (std::vector<int>{0, 3, 1, 0, 3, 2}));
  EXPECT_EQ(place.hosts_max, 3);
  places[5].switch_name = "";
  EXPECT_EQ(GroupPlace(places).switches.size(), 1u);
}

TEST(GroupPlaceTest, RingsGoAlongAllThatIsLinked) {
  using Next = std::vector<std::vector<int>>;
  EXPECT_EQ(RingAlong(Next{{2}, {0}, {1}}), (std::vector<int>{0, 2, 1}));
  EXPECT_EQ(RingAlong(Next{{1, 2}, {2, 3}, {0, 1}, {0}}), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(RingAlong(Next{{1}, {0}, {3}, {2}}), std::vector<int>{}) << "two rings";
  EXPECT_EQ(RingAlong(Next{{1}, {2}, {}}), std::vector<int>{}) << "no way back";
  EXPECT_EQ(RingAlong(Next{{}}), std::vector<int>{});
  // 30 hosts that are all linked but for the one that nothing leads to: the search is bounded.
  Next many(30);
  for (int from = 0; from < 30; ++from) {
    for (int to = 0; to < 29; ++to) {
      if (to != from) many[static_cast<size_t>(from)].push_back(to);
    }
  }
  EXPECT_EQ(RingAlong(many), std::vector<int>{});
}

// Four hosts of two ranks, h0 h2 h1 h3 along the plan.
std::vector<std::vector<int>> ShuffledRing() {
  std::vector<std::vector<int>> planned(8);
  const int order[] = {0, 2, 1, 3};
  for (int i = 0; i < 4; ++i) {
    const int from = order[i], to = order[(i + 1) % 4];
    for (int k : {0, 1}) planned[static_cast<size_t>(2 * from + k)] = {2 * to + k};
  }
  return planned;
}

TEST(GroupPlaceTest, HostsAreNumberedAlongAPlannedRing) {
  std::vector<RankPlace> places(8);
  for (size_t r = 0; r < 8; ++r) places[r].host = absl::StrCat("h", r / 2);
  EXPECT_TRUE(GroupPlace(places).planned_ring.empty());
  const GroupPlace place(places, ShuffledRing());
  EXPECT_EQ(place.hosts, (std::vector<std::vector<int>>{{0, 1}, {4, 5}, {2, 3}, {6, 7}}));
  EXPECT_EQ(place.planned_ring, (std::vector<int>{0, 1, 2, 3}));
  // A ring that comes to a switch twice leaves hosts by switch, and is still known.
  for (size_t r = 0; r < 8; ++r) places[r].switch_name = r < 4 ? "x" : "y";
  const GroupPlace switched(places, ShuffledRing());
  EXPECT_EQ(switched.switches, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(switched.hosts, (std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(switched.planned_ring, (std::vector<int>{0, 2, 1, 3}));
  // One that does not is followed: here from the switch of rank 0 on.
  for (size_t r = 0; r < 8; ++r) places[r].switch_name = r / 2 == 0 || r / 2 == 3 ? "x" : "y";
  const GroupPlace contiguous(places, ShuffledRing());
  EXPECT_EQ(contiguous.switches, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(contiguous.hosts, (std::vector<std::vector<int>>{{6, 7}, {0, 1}, {4, 5}, {2, 3}}));
  EXPECT_EQ(contiguous.planned_ring, (std::vector<int>{0, 1, 2, 3}));
}

TEST(GroupPlaceTest, RingsSendBetweenHostsAlongThePlanAlone) {
  std::vector<RankPlace> places(8);
  for (size_t r = 0; r < 8; ++r) places[r].host = absl::StrCat("h", r / 2);
  const auto place = std::make_shared<const GroupPlace>(places, ShuffledRing());
  const std::set<std::pair<int, int>> planned = {{0, 2}, {2, 1}, {1, 3}, {3, 0}};
  for (const Algorithm* algorithm : {&kRing, &kHierarchical}) {
    for (CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      // Of two levels, the others go from each rank to all hosts.
      if (algorithm == &kHierarchical && kind != CollectiveKind::kAllReduce) continue;
      Case built = BuildCase(*algorithm, kind, 8, {.count = 4800, .chunk = 600});
      for (size_t r = 0; r < built.specs.size(); ++r) {
        built.specs[r].place = place;
        built.specs[r].channels = algorithm == &kRing ? 4 : built.specs[r].channels;
        built.schedules[r] = algorithm->build(built.specs[r]);
      }
      SCOPED_TRACE(absl::StrCat(algorithm->name, ": ", built.text));
      EXPECT_EQ(VerifySchedules(built.specs, built.schedules), absl::OkStatus());
      int between = 0;
      for (int rank = 0; rank < 8; ++rank) {
        for (const Step& step : built.schedules[static_cast<size_t>(rank)].steps) {
          if (step.kind != StepKind::kSend || step.peer / 2 == rank / 2) continue;
          ++between;
          EXPECT_EQ(planned.count({rank / 2, step.peer / 2}), 1U) << rank << " to " << step.peer;
        }
      }
      EXPECT_GT(between, 0);
      if (algorithm != &kHierarchical) continue;
      const Cost cost = algorithm->cost(built.specs[0]), counted = Counted(built);
      EXPECT_EQ(cost.turns, counted.turns);
      EXPECT_NEAR(cost.elements_across, counted.elements_across, 0.1 * counted.elements_across);
    }
  }
}

// By rank of `hosts` of `ranks`: those to which `weft-plan paths` plans flows for trees.
std::vector<std::vector<int>> TreeFlows(int hosts, int ranks) {
  std::vector<std::vector<int>> planned(static_cast<size_t>(hosts * ranks));
  const topology::BinaryTrees trees = topology::MakeBinaryTrees(hosts);
  for (const std::vector<int>* tree : {&trees.first, &trees.second}) {
    for (int host = 0; host < hosts; ++host) {
      const int parent = (*tree)[static_cast<size_t>(host)];
      for (int k = 0; k < ranks && parent >= 0; ++k) {
        planned[static_cast<size_t>(ranks * host + k)].push_back(ranks * parent + k);
        planned[static_cast<size_t>(ranks * parent + k)].push_back(ranks * host + k);
      }
    }
  }
  return planned;
}

// Two hosts a switch, the switches in turn, so that hosts are not numbered as they come.
std::vector<RankPlace> PlacesOfHosts(int hosts, int ranks) {
  std::vector<RankPlace> places(static_cast<size_t>(hosts * ranks));
  for (int r = 0; r < hosts * ranks; ++r) {
    const int host = r / ranks, switches = (hosts + 1) / 2;
    places[static_cast<size_t>(r)].host = absl::StrCat("h", host);
    places[static_cast<size_t>(r)].switch_name = absl::StrCat("s", host % switches);
  }
  return places;
}

TEST(GroupPlaceTest, TreesArePlannedWhereEveryEdgeHasFlowsBothWays) {
  for (int hosts : {2, 3, 4, 6, 8}) {
    for (int ranks : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(hosts, " hosts of ", ranks));
      const std::vector<RankPlace> places = PlacesOfHosts(hosts, ranks);
      const std::vector<std::vector<int>> flows = TreeFlows(hosts, ranks);
      EXPECT_TRUE(GroupPlace(places).planned_trees.empty());
      const GroupPlace place(places, flows);
      ASSERT_EQ(place.planned_trees.size(), 2U);
      for (const HostTree& tree : place.planned_trees) {
        int roots = 0;
        for (size_t host = 0; host < place.hosts.size(); ++host) {
          if (tree.parent[host] < 0) {
            ++roots;
            continue;
          }
          const size_t parent = static_cast<size_t>(tree.parent[host]);
          const std::vector<int>& children = tree.children[parent];
          EXPECT_EQ(std::count(children.begin(), children.end(), host), 1);
          const std::vector<int>& peers = flows[static_cast<size_t>(place.hosts[host][0])];
          EXPECT_NE(std::find(peers.begin(), peers.end(), place.hosts[parent][0]), peers.end());
        }
        EXPECT_EQ(roots, 1);
      }
      std::vector<std::vector<int>> one_way = flows;  // of one edge
      const int peer = one_way.back().back();
      std::erase(one_way.back(), peer);
      EXPECT_TRUE(GroupPlace(places, one_way).planned_trees.empty());
    }
  }
}

TEST(GroupPlaceTest, TheFlowsOfAnAllToAllAreNoTrees) {
  std::vector<std::vector<int>> flows(8);
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      if (to != from) flows[static_cast<size_t>(from)].push_back(to);
    }
  }
  const GroupPlace place(PlacesOfHosts(8, 1), flows);
  EXPECT_FALSE(place.planned_ring.empty());
  EXPECT_TRUE(place.planned_trees.empty());
}

TEST(GroupPlaceTest, AllReducesGoAlongPlannedTreesAlone) {
  for (int hosts : {2, 3, 6, 8, 13}) {
    for (int ranks : {1, 2, 3}) {
      const int n = hosts * ranks;
      const std::vector<std::vector<int>> flows = TreeFlows(hosts, ranks);
      const auto place = std::make_shared<const GroupPlace>(PlacesOfHosts(hosts, ranks), flows);
      for (const auto in_place :
           {CaseOptions::kNobody, CaseOptions::kEverybody, CaseOptions::kSome}) {
        Case built = BuildCase(kTree, CollectiveKind::kAllReduce, n,
                               {.count = 2400, .chunk = 50, .in_place = in_place});
        for (size_t r = 0; r < built.specs.size(); ++r) {
          built.specs[r].place = place;
          built.schedules[r] = kTree.build(built.specs[r]);
        }
        SCOPED_TRACE(absl::StrCat(hosts, " hosts of ", ranks, ": ", built.text));
        EXPECT_EQ(VerifySchedules(built.specs, built.schedules), absl::OkStatus());
        std::set<std::pair<int, int>> used;
        for (int rank = 0; rank < n; ++rank) {
          for (const Step& step : built.schedules[static_cast<size_t>(rank)].steps) {
            if (step.kind != StepKind::kSend || step.peer / ranks == rank / ranks) continue;
            const std::vector<int>& peers = flows[static_cast<size_t>(rank)];
            EXPECT_NE(std::find(peers.begin(), peers.end(), step.peer), peers.end())
                << rank << " to " << step.peer;
            used.emplace(rank, step.peer);
          }
        }
        std::set<std::pair<int, int>> planned;  // every rail is used
        for (int rank = 0; rank < n; ++rank) {
          for (int peer : flows[static_cast<size_t>(rank)]) planned.emplace(rank, peer);
        }
        EXPECT_EQ(used, planned);
        const Cost cost = kTree.cost(built.specs[0]), counted = Counted(built);
        EXPECT_EQ(cost.turns, counted.turns);
        EXPECT_NEAR(cost.messages, counted.messages, 0.01 * counted.messages);
        EXPECT_NEAR(cost.elements, counted.elements, 0.01 * counted.elements);
        EXPECT_NEAR(cost.reduced, counted.reduced, 0.01 * counted.reduced);
        EXPECT_NEAR(cost.balance, counted.balance, 0.01);
        EXPECT_NEAR(cost.elements_across, counted.elements_across, 0.01 * counted.elements_across);
        if (place->switches.size() < 2) continue;
        EXPECT_NEAR(cost.elements_beyond, counted.elements_beyond, 0.01 * counted.elements_beyond);
      }
    }
  }
}

// Six hosts, whose planned trees have no ring through all of them.
TEST(CostTest, WhatLeavesPlannedTreesCountsTwiceBetweenSwitches) {
  const std::vector<RankPlace> places = PlacesOfHosts(6, 1);
  const auto hashed = std::make_shared<const GroupPlace>(places);
  const auto planned = std::make_shared<const GroupPlace>(places, TreeFlows(6, 1));
  ASSERT_TRUE(planned->planned_ring.empty());
  ASSERT_EQ(planned->planned_trees.size(), 2U);
  const auto beyond = [](const Algorithm& algorithm, CollectiveKind kind, const auto& place) {
    CollectiveSpec spec{.kind = kind, .size = 6, .count = 4800, .chunk = 100, .place = place};
    return algorithm.cost(spec).elements_beyond;
  };
  for (const auto& [algorithm, kind] :
       {std::pair(&kRing, CollectiveKind::kAllReduce),
        std::pair(&kHalvingDoubling, CollectiveKind::kAllReduce),
        std::pair(&kHierarchical, CollectiveKind::kAllReduce),
        std::pair(&kChain, CollectiveKind::kBroadcast),
        std::pair(&kTree, CollectiveKind::kBroadcast)}) {  // from a root, by other edges
    EXPECT_GT(beyond(*algorithm, kind, hashed), 0) << algorithm->name;
    EXPECT_DOUBLE_EQ(beyond(*algorithm, kind, planned), 2 * beyond(*algorithm, kind, hashed))
        << algorithm->name;
  }
}

TEST(PlannedPeersTest, AGroupGoesByThePlanThatAllItsRanksName) {
  topology::ConnectionPlanText text;
  for (const auto& [rank, peer] :
       {std::pair(3, 5), std::pair(5, 9), std::pair(9, 3), std::pair(9, 4)}) {
    topology::ConnectionPlanFlow flow;
    flow.rank = rank, flow.peer = peer;
    text.flows.push_back(flow);
  }
  const planner::PlannedPeers peers(text);
  std::vector<RankPlace> places(3);
  for (RankPlace& place : places) place.plan = peers.name();
  const std::vector<Rank> group = {Rank(9), Rank(3), Rank(5)};
  EXPECT_EQ(peers.Within(group, places), (std::vector<std::vector<int>>{{1}, {2}, {0}}));
  places[1].plan = "another";
  EXPECT_TRUE(peers.Within(group, places).empty());
  text.flows.pop_back();
  EXPECT_NE(planner::PlannedPeers(text).name(), peers.name());
  EXPECT_EQ(planner::PlannedPeers(topology::ConnectionPlanText()).name(), "");
}

TEST(RoundsOnceTest, SchedulesThatHoldContributionsAreProved) {
  int held = 0, averaged = 0;
  ForEachAlgorithm([&](const Algorithm& algorithm, CollectiveKind kind) {
    if (!Reduces(kind)) return;
    for (int n : {1, 2, 3, 5, 8}) {
      for (const auto in_place : {CaseOptions::kNobody, CaseOptions::kEverybody}) {
        for (int hosts : {1, 2}) {
          const Case built = BuildCase(algorithm, kind, n,
                                       {.count = 300,
                                        .chunk = 16,
                                        .root = 1,
                                        .hosts = std::min(hosts, n),
                                        .average = true,
                                        .rounds_once = true,
                                        .in_place = in_place});
          EXPECT_EQ(VerifySchedules(built.specs, built.schedules), absl::OkStatus()) << built.text;
          // An average is rounded with the last addition. On one host a schedule of levels makes
          // that inside, where it does not know that no other follows.
          const auto& place = built.specs[0].place;
          const bool levels = &algorithm == &kHierarchical || &algorithm == &kThreeLevel;
          const bool divides_alone = levels && (place == nullptr || place->hosts.size() == 1);
          for (const RankSchedule& schedule : built.schedules) {
            for (const Step& step : schedule.steps) {
              averaged += step.averages;
              EXPECT_TRUE(step.kind != StepKind::kScale || divides_alone) << built.text;
            }
          }
          for (const Step& step : built.schedules[0].steps) {
            held += step.kind == StepKind::kReduceAll && step.more_count > 1;
            // Sums of two alone would be rounded and then added to.
            if (&algorithm == &kDirect || &algorithm == &kOneShot || &algorithm == &kFlat) {
              EXPECT_TRUE(step.kind != StepKind::kReceiveReduce || n == 2) << built.text;
            }
          }
        }
      }
    }
  });
  EXPECT_GT(held, 0);
  EXPECT_GT(averaged, 0);
}

// What the last addition of an average receives is stored in few stretches, however many chunks.
TEST(RoundsOnceTest, AveragesKeepFewChunks) {
  const Case plain = BuildCase(kChain, CollectiveKind::kReduce, 3,
                               {.count = 64'000, .chunk = 64, .rounds_once = true});
  const Case average =
      BuildCase(kChain, CollectiveKind::kReduce, 3,
                {.count = 64'000, .chunk = 64, .average = true, .rounds_once = true});
  EXPECT_EQ(plain.schedules[0].scratch_length, 0);
  EXPECT_GT(average.schedules[0].scratch_length, 0);
  EXPECT_LE(average.schedules[0].scratch_length, 8 * 64);
}

TEST(GroupPlaceTest, ARankPlaceTravelsUnchanged) {
  RankPlace place{.host = "", .numa = 1, .switch_name = "leaf 3", .nics = 8};
  place.nic_rate = 1e10 / 3, place.host_rate = 8e10 / 3, place.switch_rate = 1;
  place.plan = "0123456789abcdef";
  EXPECT_EQ(*RankPlaceFromWord(ToWord(place)), place);
  EXPECT_EQ(ToWord(place).find(' '), std::string::npos);
  EXPECT_EQ(*RankPlaceFromWord(ToWord(RankPlace{})), RankPlace{});
  for (const char* wrong : {"", "1,2,3", "1,-2,1,1,1,,", "1,2,-1,1,1,,", "a,2,1,1,1,,"}) {
    EXPECT_EQ(RankPlaceFromWord(wrong).status().code(), absl::StatusCode::kDataLoss) << wrong;
  }
}

// ---- Trees and rings.

TEST(PathsTest, EveryNodeIsALeafOfOneTreeOfTwo) {
  for (int n = 1; n <= 70; ++n) {
    for (int which : {0, 1}) {
      int edges = 0;
      for (int node = 0; node < n; ++node) {
        const TreeNode tree = DoubleTreeNode(n, node, which);
        EXPECT_EQ(tree.parent < 0, node == DoubleTreeRoot(n, which));
        EXPECT_LE(tree.children.size(), 2u);
        for (int child : tree.children) {
          ++edges;
          EXPECT_EQ(DoubleTreeNode(n, child, which).parent, node);
        }
        int depth = 0;
        for (int at = node; DoubleTreeNode(n, at, which).parent >= 0 && depth <= n; ++depth) {
          at = DoubleTreeNode(n, at, which).parent;
        }
        EXPECT_LE(depth, DoubleTreeDepth(n));
        EXPECT_TRUE(tree.children.empty() || DoubleTreeNode(n, node, 1 - which).children.empty())
            << "node " << node << " of " << n;
      }
      EXPECT_EQ(edges, n - 1);
    }
  }
}

TEST(PathsTest, RingsVisitEveryRankOnceAndLeaveHostsByOtherRanks) {
  for (int n = 1; n <= 20; ++n) {
    for (int hosts : {1, 2, 3}) {
      CollectiveSpec spec{.size = n};
      spec.place = PlaceFor(n, hosts);
      for (int channel = 0; channel < 5; ++channel) {
        std::vector<int> order = RingOrder(spec, channel);
        std::sort(order.begin(), order.end());
        for (int r = 0; r < n; ++r) ASSERT_EQ(order[static_cast<size_t>(r)], r);
      }
    }
  }
  CollectiveSpec spec{.size = 4};
  spec.place = std::make_shared<const GroupPlace>(std::vector<std::string>{"a", "a", "b", "b"});
  EXPECT_EQ(RingOrder(spec, 0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(RingOrder(spec, 1), (std::vector<int>{1, 0, 3, 2}));
  // A host's NUMA nodes one after the other.
  std::vector<RankPlace> places(6);
  for (int r = 0; r < 6; ++r) {
    places[static_cast<size_t>(r)].host = r < 4 ? "a" : "b";
    places[static_cast<size_t>(r)].numa = r % 2;
  }
  CollectiveSpec numa{.size = 6};
  numa.place = std::make_shared<const GroupPlace>(places);
  EXPECT_EQ(RingOrder(numa, 0), (std::vector<int>{0, 2, 1, 3, 4, 5}));
}

}  // namespace
}  // namespace weft::collectives

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (absl::StartsWith(argv[i], "--ranks=")) {
      weft::collectives::ranks_max = std::atoi(argv[i] + std::string("--ranks=").size());
    }
  }
  return RUN_ALL_TESTS();
}
