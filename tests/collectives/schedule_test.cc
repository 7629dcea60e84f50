// The proof of schedules itself: it must find every fault.
#include "collectives/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/verify.h"
#include "tests/collectives/schedule_cases.h"

namespace weft::collectives {
namespace {

// The variants of a case whose every step and dependency is needed.
Case Build(const Algorithm& algorithm, CollectiveKind kind, int n, uint64_t count, int variant) {
  CaseOptions options{.count = count, .root = variant};
  if (variant == 1) options.chunk = 7, options.average = true;
  // All-to-alls save all of their input first then, and some of it need not be.
  const bool saves = kind == CollectiveKind::kAllToAllV || kind == CollectiveKind::kAllToAll;
  if (variant == 1 && !saves) options.in_place = CaseOptions::kEverybody;
  return BuildCase(algorithm, kind, n, options);
}

// ---- Whether a schedule whose dependencies are too few is wrong, seen by elements and by brute
// force: independent of the verifier.

bool Touches(const CollectiveSpec& spec, Place place, uint64_t length, Buffer buffer, int64_t at) {
  int64_t begin = static_cast<int64_t>(place.offset);
  if (spec.in_place && place.buffer == Buffer::kInput) {
    place.buffer = Buffer::kOutput;
    begin += InputShift(spec);
  }
  return place.buffer == buffer && at >= begin && at < begin + static_cast<int64_t>(length);
}

bool HasRace(const CollectiveSpec& spec, const RankSchedule& schedule) {
  const size_t count = schedule.steps.size();
  std::vector<std::vector<bool>> before(count, std::vector<bool>(count, false));
  for (size_t id = 0; id < count; ++id) {
    for (uint32_t earlier : schedule.After(schedule.steps[id])) {
      before[id][earlier] = true;
      for (size_t k = 0; k < count; ++k) before[id][k] = before[id][k] || before[earlier][k];
    }
  }
  auto reads = [&](const Step& step, Buffer buffer, int64_t at) {
    const bool left = step.kind != StepKind::kReceive && step.kind != StepKind::kScale;
    for (Place place : schedule.More(step)) {
      if (Touches(spec, place, step.length, buffer, at)) return true;
    }
    return (left && Touches(spec, step.left, step.length, buffer, at)) ||
           (step.kind == StepKind::kReduce && Touches(spec, step.right, step.length, buffer, at));
  };
  auto writes = [&](const Step& step, Buffer buffer, int64_t at) {
    return step.kind != StepKind::kSend && Touches(spec, step.out, step.length, buffer, at);
  };
  const uint64_t longest =
      std::max({InputLength(spec), OutputLength(spec), schedule.scratch_length});
  for (Buffer buffer : {Buffer::kInput, Buffer::kOutput, Buffer::kScratch}) {
    for (int64_t at = 0; at < static_cast<int64_t>(longest); ++at) {
      for (size_t a = 0; a < count; ++a) {
        const bool writes_a = writes(schedule.steps[a], buffer, at);
        if (!writes_a && !reads(schedule.steps[a], buffer, at)) continue;
        for (size_t b = a + 1; b < count; ++b) {
          const bool writes_b = writes(schedule.steps[b], buffer, at);
          if (!writes_b && !(writes_a && reads(schedule.steps[b], buffer, at))) continue;
          if (!before[b][a]) return true;
        }
      }
    }
  }
  return false;
}

// Whether every rank has heard of every other in the end.
bool Disseminates(const std::vector<RankSchedule>& schedules) {
  const size_t n = schedules.size();
  std::vector<std::vector<uint64_t>> heard(n);  // by rank and step: a bit a rank
  for (size_t r = 0; r < n; ++r) heard[r].assign(schedules[r].steps.size(), uint64_t{1} << r);
  for (size_t pass = 0; pass < 2 * n; ++pass) {
    for (size_t r = 0; r < n; ++r) {
      std::vector<size_t> taken(n, 0);
      for (size_t id = 0; id < heard[r].size(); ++id) {
        const Step& step = schedules[r].steps[id];
        for (uint32_t before : schedules[r].After(step)) heard[r][id] |= heard[r][before];
        if (step.kind != StepKind::kReceive) continue;
        const size_t peer = static_cast<size_t>(step.peer);
        size_t left = taken[peer]++;
        for (size_t send = 0; send < heard[peer].size(); ++send) {
          const Step& other = schedules[peer].steps[send];
          if (other.kind != StepKind::kSend || other.peer != static_cast<int>(r)) continue;
          if (left-- == 0) heard[r][id] |= heard[peer][send];
        }
      }
    }
  }
  for (const auto& steps : heard) {
    uint64_t all = 0;
    for (uint64_t step : steps) all |= step;
    if (n > 1 && all != (uint64_t{1} << n) - 1) return false;
  }
  return true;
}

// A dependency may be there to keep messages from crowding, or be implied by others.
bool NeedsMore(const std::vector<CollectiveSpec>& specs, const std::vector<RankSchedule>& schedules,
               size_t rank) {
  return HasRace(specs[rank], schedules[rank]) ||
         (specs[rank].kind == CollectiveKind::kBarrier && !Disseminates(schedules));
}

class MutationTest : public testing::Test {
 protected:
  // Applies `mutate` to each step of each rank of many schedules; it says whether it changed
  // anything. Each change must be found.
  template <typename Mutate>
  void EveryOneIsFound(const Mutate& mutate, bool only_if_needed = false) {
    int tried = 0;
    for (const Algorithm* algorithm : Algorithms()) {
      for (int k = 0; k < kCollectiveKindCount; ++k) {
        const CollectiveKind kind = static_cast<CollectiveKind>(k);
        if (!algorithm->has(kind)) continue;
        for (int n : {2, 3, 4, 16}) {
          if (n == 16 && kind != CollectiveKind::kBarrier) continue;
          for (int variant = 0; variant < 2; ++variant) {
            const Case built = Build(*algorithm, kind, n, 41, variant);
            ASSERT_TRUE(VerifySchedules(built.specs, built.schedules).ok());
            for (size_t r = 0; r < built.schedules.size(); ++r) {
              for (size_t id = 0; id < built.schedules[r].steps.size(); ++id) {
                std::vector<RankSchedule> mutated = built.schedules;
                if (!mutate(mutated[r], id)) continue;
                if (only_if_needed && !NeedsMore(built.specs, mutated, r)) continue;
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
  EveryOneIsFound(
      [](RankSchedule& schedule, size_t id) {
        Step& step = schedule.steps[id];
        if (step.after_count == 0) return false;
        --step.after_count;
        return true;
      },
      /*only_if_needed=*/true);
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

// One mistake, drawn by chance. False: it cannot be made here.
bool MakeMistake(Random& random, int n, RankSchedule& schedule, bool* order) {
  if (schedule.steps.empty()) return false;
  const size_t id = random.Below(schedule.steps.size());
  Step& step = schedule.steps[id];
  const bool message = step.peer >= 0;
  switch (random.Below(8)) {
    case 0:
      Erase(schedule, id);
      return true;
    case 1:
      schedule.steps.push_back(Step(step));
      return true;
    case 2:
      if (step.length == 0) return false;
      step.length -= 1 + random.Below(step.length);
      return true;
    case 3: {
      if (step.length == 0) return false;
      Place& place = step.kind == StepKind::kSend ? step.left : step.out;
      place.offset += 1 + random.Below(step.length);
      return true;
    }
    case 4:
      if (!message || n < 3) return false;
      step.peer = (step.peer + 1) % n;
      return true;
    case 5:
      if (step.kind == StepKind::kReduceAll) {  // one of its operands, or the division
        if (step.averages && random.Below(2) == 1) {
          step.averages = false;
        } else {
          --step.more_count;
        }
        return true;
      }
      if (step.kind != StepKind::kReceiveReduce && step.kind != StepKind::kReduce) return false;
      step.kind = step.kind == StepKind::kReduce ? StepKind::kCopy : StepKind::kReceive;
      return true;
    case 6: {  // what is read, from elsewhere
      if (step.kind == StepKind::kReceive || step.kind == StepKind::kScale) return false;
      if (step.length == 0) return false;
      step.left.offset += 1;
      return true;
    }
    default: {
      if (step.after_count == 0) return false;
      const size_t gone = step.after_begin + random.Below(step.after_count);
      std::swap(schedule.after[gone], schedule.after[step.after_begin + step.after_count - 1]);
      --step.after_count;
      *order = true;
      return true;
    }
  }
}

TEST(RandomMutationTest, AThousandSeededMistakesAreFound) {
  int tried = 0;
  for (uint64_t seed = 0; tried < 1000; ++seed) {
    Random random(seed, 17);
    const Algorithm& algorithm = *Algorithms()[random.Below(Algorithms().size())];
    const CollectiveKind kind = static_cast<CollectiveKind>(random.Below(kCollectiveKindCount));
    if (!algorithm.has(kind)) continue;
    const int n = 2 + static_cast<int>(random.Below(9));
    CaseOptions options{.count = random.Below(70)};
    options.chunk = 1 + random.Below(40);
    options.root = static_cast<int>(random.Below(static_cast<uint64_t>(n)));
    options.channels = 1 + static_cast<int>(random.Below(3));
    options.hosts = 1 + static_cast<int>(random.Below(3));
    options.average = random.Below(2) == 1;
    options.rounds_once = options.average && random.Below(2) == 1;
    options.in_place = random.Below(2) == 1 ? CaseOptions::kSome : CaseOptions::kNobody;
    options.salt = seed;
    const Case built = BuildCase(algorithm, kind, n, options);
    const absl::Status right = VerifySchedules(built.specs, built.schedules);
    ASSERT_TRUE(right.ok()) << built.text << ": " << right;
    std::vector<RankSchedule> mutated = built.schedules;
    const size_t rank = random.Below(static_cast<uint64_t>(n));
    bool order = false;
    if (!MakeMistake(random, n, mutated[rank], &order)) continue;
    if (order && !NeedsMore(built.specs, mutated, rank)) continue;
    ++tried;
    ASSERT_FALSE(VerifySchedules(built.specs, mutated).ok())
        << built.text << " rank " << rank << " seed " << seed << "\n"
        << ToText(built.schedules[rank]) << "became\n"
        << ToText(mutated[rank]);
  }
}

TEST(ScheduleTest, PrintsALineAStep) {
  const CollectiveSpec spec{
      .kind = CollectiveKind::kAllReduce, .size = 2, .rank = 0, .count = 8, .chunk = 100};
  EXPECT_EQ(ToText(kDirect.build(spec)),
            "0 send input[4,8) -> 1\n"
            "1 receive+reduce output[0,4) = input[0,4) + * <- 1\n"
            "2 send output[0,4) -> 1  after 1\n"
            "3 receive output[4,8) <- 1\n");
}

}  // namespace
}  // namespace weft::collectives
