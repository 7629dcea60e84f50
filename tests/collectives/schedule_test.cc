// Every algorithm proved for many sizes, and the proof itself: it must find every fault.
#include "collectives/schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/verify.h"

namespace weft::collectives {
namespace {

struct Case {
  std::vector<CollectiveSpec> specs;
  std::vector<RankSchedule> schedules;
  std::string text;
};

Case Build(const Algorithm& algorithm, CollectiveKind kind, int n, uint64_t count, int variant) {
  Case built;
  built.text = absl::StrCat(algorithm.name, " ", ToString(kind), " n ", n, " count ", count,
                            " variant ", variant);
  auto piece = [&](int a, int b) {
    return static_cast<uint64_t>((a * 3 + b * 5) % 4) * ((count + 1) / 2);
  };
  for (int r = 0; r < n; ++r) {
    CollectiveSpec spec{.kind = kind, .size = n, .rank = r, .count = count};
    spec.root = variant % n;
    spec.chunk = variant == 0 ? 1000000 : 7;
    spec.average = Reduces(kind) && variant == 1;
    // Variant 2: some ranks in place, some not.
    spec.in_place = kind != CollectiveKind::kBarrier && (variant == 1 || (variant == 2 && r % 2));
    // All of the input is saved first then, and some of it need not be: a change there is none.
    const bool saves = kind == CollectiveKind::kAllToAllV || kind == CollectiveKind::kAllToAll;
    if (saves && variant == 1) spec.in_place = false;
    if (kind == CollectiveKind::kAllGatherV) {
      spec.count = 0;
      uint64_t offset = 0;
      for (int s = 0; s < n; ++s) {
        spec.output_counts.push_back(piece(s, 0));
        spec.output_offsets.push_back(offset);
        offset += piece(s, 0) + 2;
      }
    }
    if (kind == CollectiveKind::kAllToAllV) {
      spec.count = 0;
      uint64_t in = 0, out = 0;
      for (int s = 0; s < n; ++s) {
        spec.input_counts.push_back(piece(r, s));
        spec.input_offsets.push_back(in);
        spec.output_counts.push_back(piece(s, r));
        spec.output_offsets.push_back(out);
        in += piece(r, s), out += piece(s, r) + 1;
      }
    }
    built.schedules.push_back(algorithm.build(spec));
    built.specs.push_back(std::move(spec));
  }
  return built;
}

TEST(AlgorithmTest, EveryScheduleIsProvedForManySizes) {
  for (const Algorithm& algorithm : Algorithms()) {
    for (int k = 0; k < kCollectiveKindCount; ++k) {
      const CollectiveKind kind = static_cast<CollectiveKind>(k);
      if (!algorithm.has(kind)) continue;
      for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
        const uint64_t u = static_cast<uint64_t>(n);
        for (uint64_t count : {uint64_t{0}, uint64_t{1}, u - 1, u, u + 1, uint64_t{61},
                               n <= 5 ? uint64_t{1000} : uint64_t{100}}) {
          for (int variant = 0; variant < 3; ++variant) {
            const Case built = Build(algorithm, kind, n, count, variant);
            const absl::Status status = VerifySchedules(built.specs, built.schedules);
            ASSERT_TRUE(status.ok()) << built.text << ": " << status;
          }
        }
      }
    }
  }
}

// What travels must not depend on who is in place: VerifySchedules of mixed ranks (variant 2) shows
// it. This shows that large counts cost no memory.
TEST(AlgorithmTest, ProofCostsNothingForLargeCounts) {
  Case built = Build(*FindAlgorithm("direct", CollectiveKind::kAllReduce),
                     CollectiveKind::kAllReduce, 4, uint64_t{1} << 34, 0);
  for (size_t r = 0; r < 4; ++r) {
    built.specs[r].chunk = uint64_t{1} << 28;
    built.schedules[r] = BuildDirect(built.specs[r]);
  }
  EXPECT_TRUE(VerifySchedules(built.specs, built.schedules).ok());
}

class MutationTest : public testing::Test {
 protected:
  // Applies `mutate` to each step of each rank of many schedules; it says whether it changed
  // anything. Each change must be found.
  template <typename Mutate>
  void EveryOneIsFound(const Mutate& mutate) {
    int tried = 0;
    for (const Algorithm& algorithm : Algorithms()) {
      for (int k = 0; k < kCollectiveKindCount; ++k) {
        const CollectiveKind kind = static_cast<CollectiveKind>(k);
        if (!algorithm.has(kind)) continue;
        for (int n : {2, 3, 4, 16}) {
          if (n == 16 && kind != CollectiveKind::kBarrier) continue;
          for (int variant = 0; variant < 2; ++variant) {
            const Case built = Build(algorithm, kind, n, 41, variant);
            ASSERT_TRUE(VerifySchedules(built.specs, built.schedules).ok());
            for (size_t r = 0; r < built.schedules.size(); ++r) {
              for (size_t id = 0; id < built.schedules[r].steps.size(); ++id) {
                std::vector<RankSchedule> mutated = built.schedules;
                if (!mutate(mutated[r], id)) continue;
                ++tried;
                ASSERT_FALSE(VerifySchedules(built.specs, mutated).ok())
                    << built.text << " rank " << r << " step " << id << "\n"
                    << ToText(built.schedules[r]);
              }
            }
          }
        }
      }
    }
    EXPECT_GT(tried, 100);
  }
};

// A step that does nothing: takes the place of one that is dropped.
void Erase(RankSchedule& schedule, size_t id) {
  for (Step& step : schedule.steps) {
    std::vector<uint32_t> after;
    for (uint32_t before : schedule.After(step)) {
      if (before != id) after.push_back(before > id ? before - 1 : before);
    }
    step.after_begin = static_cast<uint32_t>(schedule.after.size());
    step.after_count = static_cast<uint32_t>(after.size());
    schedule.after.insert(schedule.after.end(), after.begin(), after.end());
  }
  schedule.steps.erase(schedule.steps.begin() + static_cast<ptrdiff_t>(id));
}

TEST_F(MutationTest, FindsEveryDroppedStep) {
  EveryOneIsFound([](RankSchedule& schedule, size_t id) {
    Erase(schedule, id);
    return true;
  });
}

TEST_F(MutationTest, FindsEveryDuplicatedStep) {
  EveryOneIsFound([](RankSchedule& schedule, size_t id) {
    schedule.steps.push_back(schedule.steps[id]);
    return true;
  });
}

TEST_F(MutationTest, FindsEverySwapOfMessagesToOnePeer) {
  EveryOneIsFound([](RankSchedule& schedule, size_t id) {
    Step& first = schedule.steps[id];
    if (first.kind != StepKind::kSend && first.kind != StepKind::kReceive) return false;
    for (size_t other = id + 1; other < schedule.steps.size(); ++other) {
      Step& second = schedule.steps[other];
      if (second.kind != first.kind || second.peer != first.peer) continue;
      if (second.left == first.left && second.out == first.out) continue;
      std::swap(first.left, second.left);
      std::swap(first.out, second.out);
      return first.length + second.length > 0;
    }
    return false;
  });
}

TEST_F(MutationTest, FindsEveryDroppedDependency) {
  EveryOneIsFound([](RankSchedule& schedule, size_t id) {
    Step& step = schedule.steps[id];
    if (step.after_count == 0) return false;
    --step.after_count;
    return true;
  });
}

TEST_F(MutationTest, FindsEveryShiftedOrShortenedStep) {
  EveryOneIsFound([](RankSchedule& schedule, size_t id) {
    Step& step = schedule.steps[id];
    if (step.length == 0) return false;
    --step.length;
    return true;
  });
  EveryOneIsFound([](RankSchedule& schedule, size_t id) {
    Step& step = schedule.steps[id];
    if (step.length == 0) return false;
    (step.kind == StepKind::kSend ? step.left : step.out).offset += 1;
    return true;
  });
}

TEST_F(MutationTest, FindsEveryCycle) {
  EveryOneIsFound([](RankSchedule& schedule, size_t id) {
    Step& step = schedule.steps[id];
    step.after_begin = static_cast<uint32_t>(schedule.after.size());
    step.after_count = 1;
    schedule.after.push_back(static_cast<uint32_t>(schedule.steps.size() - 1));
    return true;
  });
}

TEST(ScheduleTest, PrintsALineAStep) {
  const CollectiveSpec spec{
      .kind = CollectiveKind::kAllReduce, .size = 2, .rank = 0, .count = 8, .chunk = 100};
  EXPECT_EQ(ToText(BuildDirect(spec)),
            "0 send input[4,8) -> 1\n"
            "1 receive+reduce output[0,4) = input[0,4) + * <- 1\n"
            "2 send output[0,4) -> 1  after 1\n"
            "3 receive output[4,8) <- 1\n");
}

TEST(ChooseTest, TakesTheAlgorithmByKindSizeAndHosts) {
  auto name = [](absl::string_view wanted, CollectiveKind kind, int n, Bytes part, bool one_host) {
    return std::string(ChooseAlgorithm(wanted, kind, n, part, one_host).name);
  };
  const auto all_reduce = CollectiveKind::kAllReduce;
  EXPECT_EQ(name("auto", all_reduce, 4, KiB(1), true), "oneshot");
  EXPECT_EQ(name("auto", all_reduce, 4, MiB(1), true), "direct");
  EXPECT_EQ(name("auto", all_reduce, 16, MiB(1), true), "ring");
  EXPECT_EQ(name("auto", all_reduce, 4, MiB(1), false), "ring");
  EXPECT_EQ(name("direct", all_reduce, 4, KiB(1), true), "direct");
  EXPECT_EQ(name("ring", CollectiveKind::kBarrier, 4, Bytes(0), true), "direct");
  EXPECT_EQ(name("auto", CollectiveKind::kAllToAll, 16, MiB(1), false), "direct");
}

}  // namespace
}  // namespace weft::collectives
