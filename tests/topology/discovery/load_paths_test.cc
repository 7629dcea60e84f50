// Paths that loads tell apart, with round trips that are lost or lie.
#include "topology/discovery/load_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace weft::topology {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr size_t kFlows = 60;

// A load on `path` of `paths`: flow i is of path i % paths; `wrong` of a flow's round trips lie.
LoadStep Step(int path, int paths, double wrong, Random& random) {
  LoadStep step;
  step.got = Bandwidth::GigabitsPerSecond(path == 0 ? 50 : 100);
  for (size_t flow = 0; flow < kFlows; ++flow) {
    const bool is_risen = static_cast<int>(flow) % paths == path;
    const bool lies = random.Below(1'000'000) < wrong * 1e6;
    step.risen.push_back(is_risen != lies ? Risen::kYes : Risen::kNo);
  }
  return step;
}

std::vector<LoadStep> Steps(int paths, int count, double wrong, uint64_t seed) {
  Random random(seed, 1);
  std::vector<LoadStep> steps;
  for (int i = 0; i < count; ++i) {
    steps.push_back(
        Step(static_cast<int>(random.Below(static_cast<uint64_t>(paths))), paths, wrong, random));
  }
  return steps;
}

void ExpectPaths(const LoadPaths& found, int paths) {
  ASSERT_TRUE(found.IsWhole());
  ASSERT_EQ(found.bandwidth.size(), static_cast<size_t>(paths));
  for (size_t flow = 0; flow < kFlows; ++flow) {
    EXPECT_EQ(found.path_of[flow], static_cast<int>(flow) % paths) << flow;
  }
  EXPECT_EQ(found.bandwidth[0].gigabits_per_second(), 50);
}

TEST(FindLoadPaths, FlowsThatRiseTogetherAreOfOnePath) {
  for (int paths : {1, 2, 3, 7}) {
    const std::vector<LoadStep> steps = Steps(paths, 12 * paths, 0, 1);
    const LoadPaths found = FindLoadPaths(kFlows, steps);
    ExpectPaths(found, paths);
    EXPECT_EQ(found.misfits, 0);
  }
}

TEST(FindLoadPaths, SomeLiesAreOutvoted) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ExpectPaths(FindLoadPaths(kFlows, Steps(3, 30, 0.04, seed)), 3);
  }
}

TEST(FindLoadPaths, OneLoadAloneIsNotBelieved) {
  Random random(1, 1);
  const std::vector<LoadStep> steps{Step(0, 2, 0, random), Step(1, 2, 0, random),
                                    Step(1, 2, 0, random)};
  LoadPaths found = FindLoadPaths(kFlows, steps);
  EXPECT_FALSE(found.IsWhole());
  EXPECT_EQ(found.path_of[0], -1);
  EXPECT_EQ(found.path_of[1], 0);
  EXPECT_FALSE(FindLoadPaths(kFlows, {}).IsWhole());
  // Two loads on one path show nothing of others.
  EXPECT_FALSE(FindLoadPaths(kFlows, Steps(1, 2, 0, 1)).IsWhole());
}

TEST(FindLoadPaths, LoadsThatNothingExplainsAreCounted) {
  std::vector<LoadStep> steps = Steps(2, 12, 0, 1);
  LoadStep nothing{Bandwidth::GigabitsPerSecond(50), std::vector<Risen>(kFlows, Risen::kNo)};
  LoadStep all{Bandwidth::GigabitsPerSecond(50), std::vector<Risen>(kFlows, Risen::kYes)};
  steps.push_back(nothing);
  steps.push_back(all);
  const LoadPaths found = FindLoadPaths(kFlows, steps);
  ExpectPaths(found, 2);
  EXPECT_EQ(found.misfits, 2);
}

TEST(FindLoadPaths, FlowsOfABusyHostAreUnknown) {
  std::vector<LoadStep> steps = Steps(2, 16, 0, 1);
  for (size_t i = 0; i < steps.size(); i += 2) {
    for (size_t flow = 0; flow < kFlows / 2; ++flow) steps[i].risen[flow] = Risen::kUnknown;
  }
  ExpectPaths(FindLoadPaths(kFlows, steps), 2);
}

TEST(FindRisen, TheWidestGapParts) {
  const absl::Duration idle = absl::Microseconds(100);
  const auto trips = [](std::vector<double> all) {
    std::vector<absl::Duration> out;
    for (double one : all) {
      out.push_back(one < 0 ? absl::InfiniteDuration() : absl::Microseconds(one));
    }
    return out;
  };
  EXPECT_THAT(
      FindRisen(idle, Bandwidth::GigabitsPerSecond(1), trips({90, 150, 40'000, 200, 80'000})),
      ElementsAre(Risen::kNo, Risen::kNo, Risen::kYes, Risen::kNo, Risen::kYes));
  EXPECT_THAT(FindRisen(idle, Bandwidth::GigabitsPerSecond(1), trips({90, -1, 110, -1})),
              ElementsAre(Risen::kNo, Risen::kYes, Risen::kNo, Risen::kYes));
  EXPECT_THAT(FindRisen(idle, Bandwidth::GigabitsPerSecond(1), trips({90, 100, 250})),
              Each(Risen::kNo));
  EXPECT_THAT(FindRisen(idle, Bandwidth::GigabitsPerSecond(1), trips({9'000, 12'000})),
              Each(Risen::kYes));
  // A busy host is no full queue: 32 packets take 19 ms at this rate.
  EXPECT_THAT(FindRisen(idle, Bandwidth::GigabitsPerSecond(0.02), trips({9'000, 12'000})),
              Each(Risen::kNo));
}

}  // namespace
}  // namespace weft::topology
