// What algorithms say that they cost, held against what their schedules hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/algorithm.h"
#include "tests/collectives/counted_cost.h"
#include "tests/collectives/schedule_cases.h"

namespace weft::collectives {
namespace {

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
  return RaiseUntilNoneGrows([&](const auto& raise) {
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
  });
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
        EXPECT_NEAR(cost.elements, counted.elements, 0.01 * counted.elements);
        EXPECT_NEAR(cost.elements_across, counted.elements_across, 0.01 * counted.elements_across);
        EXPECT_NEAR(cost.messages, counted.messages, 0.01 * counted.messages);
      }
    }
  }
}

}  // namespace
}  // namespace weft::collectives
