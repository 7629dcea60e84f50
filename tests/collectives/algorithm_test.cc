// Every algorithm proved for many numbers of ranks, counts, roots and places.
// `algorithm_test --ranks=64` proves all numbers of ranks from 1 to 64, in minutes; without it,
// those up to 9 and some above.
#include "collectives/algorithms/algorithm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/settings.h"
#include "collectives/planner/forced.h"
#include "collectives/verify.h"
#include "tests/collectives/schedule_cases.h"

namespace weft::collectives {

int ranks_max = 0;  // above 0: all numbers up to it

namespace {

std::vector<int> RankCounts() {
  if (ranks_max == 0) return {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17};
  std::vector<int> all(static_cast<size_t>(ranks_max));
  std::iota(all.begin(), all.end(), 1);
  return all;
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
