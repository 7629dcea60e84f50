// The groups of a process: default groups, groups of them, and those that groups make of
// themselves.
#include "collectives/c10d/group.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/collectives/c10d/thrown_by.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Group = c10::intrusive_ptr<WeftBackend>;
using Tensors = std::vector<at::Tensor>;

constexpr std::chrono::milliseconds kTimeout = std::chrono::minutes(2);

// What one rank has.
struct Process {
  int rank;
  c10::intrusive_ptr<c10d::Store> store;  // of all ranks
  ProcessGroups groups;
  Group world;

  Group Make(const std::string& name, const std::vector<int64_t>& ranks, int rank_in_group,
             const Group& default_group) {
    GroupOptions options;
    options.store = c10::make_intrusive<c10d::PrefixStore>(name, store);
    options.rank = rank_in_group;
    options.size = static_cast<int>(ranks.size());
    options.name = name;
    options.global_ranks = ranks;
    options.timeout = kTimeout;
    options.default_group = default_group;
    auto group = groups.Make(std::move(options));
    EXPECT_TRUE(group.ok()) << group.status();
    return *group;
  }
  std::vector<std::string> AliveNames() {
    std::vector<std::string> names;
    for (const Group& group : groups.Alive()) names.push_back(group->name());
    return names;
  }
  void Tell(const std::string& key) { store->set(key, std::string("1")); }
  void Await(const std::string& key) { store->wait({key}, kTimeout); }
};

// Each rank is a thread, with groups of its own. `timeout` and `settings` are the default group's.
void RunProcesses(int size, const std::function<void(Process&)>& body,
                  std::chrono::milliseconds timeout = kTimeout,
                  const std::vector<std::string>& settings = {}) {
  at::set_num_threads(1);
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(kTimeout);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Process process{rank, store, {}, nullptr};
      GroupOptions options;
      options.store = c10::make_intrusive<c10d::PrefixStore>("world", store);
      options.rank = rank;
      options.size = size;
      options.name = "world";
      options.timeout = timeout;
      options.own_settings = settings;
      auto world = process.groups.Make(std::move(options));
      ASSERT_TRUE(world.ok()) << world.status();
      process.world = *world;
      body(process);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Group Ours(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto* ours = dynamic_cast<WeftBackend*>(backend.get());
  return ours == nullptr ? Group() : Group::reclaim_copy(ours);
}

c10::intrusive_ptr<c10d::Backend::Options> Named(const std::string& name) {
  auto options = c10::make_intrusive<c10d::Backend::Options>("weft", kTimeout);
  options->group_name = name;
  return options;
}

// The sum of 2^rank in the default group that was there first: each set of ranks has its own.
float SumOver(const Group& group, int first_rank) {
  Tensors tensors{at::full({3}, static_cast<float>(1 << first_rank))};
  group->allreduce(tensors, {})->wait();
  return tensors[0][0].item<float>();
}

TEST(ProcessGroups, AGroupTakesRanksOfTheDefaultGroup) {
  RunProcesses(3, [](Process& process) {
    if (process.rank != 1) {
      auto pair = process.Make("pair", {0, 2}, process.rank / 2, process.world);
      EXPECT_THAT(pair->ranks(), ElementsAre(Rank(0), Rank(2)));
      EXPECT_EQ(SumOver(pair, process.rank), 5);
    }
    process.world->barrier({})->wait();
  });
}

TEST(ProcessGroups, AfterAShrinkAGroupTakesRanksOfTheShrunkDefaultGroup) {
  RunProcesses(4, [](Process& process) {
    if (process.rank == 1) return process.Await("made");
    auto shrunk = Ours(process.world->shrink({1}, WeftBackend::kShrinkDefault, nullptr));
    process.world->shutdown();  // as shrink_group() of PyTorch does
    EXPECT_THAT(shrunk->ranks(), ElementsAre(Rank(0), Rank(2), Rank(3)));
    EXPECT_EQ(SumOver(shrunk, process.rank), 1 + 4 + 8);
    if (shrunk->getRank() != 0) {
      auto pair = process.Make("pair", {1, 2}, shrunk->getRank() - 1, shrunk);
      EXPECT_THAT(pair->ranks(), ElementsAre(Rank(2), Rank(3)));
      EXPECT_EQ(SumOver(pair, process.rank), 4 + 8);
      if (pair->getRank() == 1) {  // which the other one need not take part in
        auto alone = Ours(pair->shrink({0}, WeftBackend::kShrinkDefault, nullptr));
        EXPECT_THAT(alone->ranks(), ElementsAre(Rank(3)));
      }
    }
    shrunk->barrier({})->wait();
    process.Tell("made");
  });
}

TEST(ProcessGroups, GroupsOfGroupsAreAmongThoseAliveUntilTheyAreShutDown) {
  RunProcesses(2, [](Process& process) {
    auto half = process.world->split(process.store, {0, 1}, Named("half"));
    auto merged =
        process.world->merge(c10::make_intrusive<c10d::PrefixStore>("merged", process.store),
                             Named("merged"), process.rank, 2);
    auto grandchild = half->split(process.store, {process.rank}, Named("grandchild"));
    EXPECT_EQ(SumOver(Ours(half), process.rank), 3);
    EXPECT_EQ(SumOver(Ours(merged), process.rank), 3);
    EXPECT_THAT(process.AliveNames(), ElementsAre("world", "half", "merged", "grandchild"));
    process.world->barrier({})->wait();
    grandchild = nullptr;
    merged->shutdown();
    EXPECT_THAT(process.AliveNames(), ElementsAre("world", "half"));
    process.groups.ShutDownAll();
    EXPECT_THAT(process.AliveNames(), IsEmpty());
    EXPECT_THAT(ThrownBy([&] { SumOver(Ours(half), process.rank); }), HasSubstr("was shut down"));
  });
}

TEST(ProcessGroups, AShrunkGroupIsAmongThoseAlive) {
  RunProcesses(3, [](Process& process) {
    if (process.rank == 1) return process.Await("made");
    auto shrunk = process.world->shrink({1}, WeftBackend::kShrinkDefault, Named("survivors"));
    EXPECT_THAT(process.AliveNames(), ElementsAre("world", "survivors"));
    shrunk->barrier({})->wait();
    process.Tell("made");
  });
}

TEST(ProcessGroups, AGroupEndsWithItsLastReference) {
  RunProcesses(2, [](Process& process) {
    auto half = process.world->split(process.store, {0, 1}, Named("half"));
    if (process.rank == 1) return process.Await("ended");  // and calls nothing
    Tensors tensors{at::ones({8})};
    auto work = half->allreduce(tensors, {});
    auto future = work->getFuture();
    half = nullptr;
    EXPECT_THAT(ThrownBy([&] { work->wait(std::chrono::seconds(30)); }),
                HasSubstr("destroyed it with works unfinished"));
    EXPECT_THAT(ThrownBy([&] { future->waitAndThrow(); }), Not(IsEmpty()));
    process.Tell("ended");
  });
}

// Rank 1 has made the second one, and is in its calls, when rank 0 leaves the first.
TEST(ProcessGroups, ALateGoodbyeIsNotForTheNextGroupOfThatName) {
  RunProcesses(2, [](Process& process) {
    const auto make = [&] { return process.Make("pair", {0, 1}, process.rank, process.world); };
    Group first = make();
    EXPECT_EQ(SumOver(first, process.rank), 3);
    if (process.rank == 0) process.Await("made again");
    first->shutdown();
    Group second = make();
    EXPECT_EQ(second->name(), "pair");
    if (process.rank == 1) process.Tell("made again");
    EXPECT_EQ(SumOver(second, process.rank), 3);
    // Longer than an endpoint lets a call wait before it looks who has left.
    if (process.rank == 0) absl::SleepFor(absl::Milliseconds(300));
    EXPECT_EQ(ThrownBy([&] { SumOver(second, process.rank); }), "");
    process.world->barrier({})->wait();
  });
}

// By a store that goes on, as processes that are started anew do.
TEST(ProcessGroups, RanksMeetAfterAMeetingThatOneOfThemHasMissed) {
  constexpr int kRanks = 3;
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(kTimeout);
  const auto come = [&](int rank, std::chrono::milliseconds timeout) {
    ProcessGroups groups;
    GroupOptions options;
    options.store = c10::make_intrusive<c10d::PrefixStore>("late", store);
    options.rank = rank;
    options.size = kRanks;
    options.name = "late";
    options.timeout = timeout;
    auto group = groups.Make(std::move(options));
    if (group.ok()) (*group)->barrier({})->wait();
    return group.status();
  };
  // Rank 1 is there as well, and sees what rank 0 sees the second time: rank 2 has been given up.
  store->add("late/weft/joined_by_1", 1);
  for (int give_up = 0; give_up < 2; ++give_up) {
    store->add("late/weft/joined_by_0", -give_up);
    EXPECT_THAT(std::string(come(0, std::chrono::milliseconds(200)).message()),
                HasSubstr("rank 2 of 3 has not come to group \"late\""));
  }
  std::vector<absl::Status> outcomes(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank] = come(rank, kTimeout); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
}

TEST(ProcessGroups, AGroupOfALongerTimeoutThanTheDefaultGroupsWaitsAsLong) {
  RunProcesses(
      2,
      [](Process& process) {
        const Group made = process.Make("made", {0, 1}, process.rank, process.world);
        const Group split = Ours(process.world->split(process.store, {0, 1}, Named("split")));
        for (const Group& group : {made, split}) {
          if (process.rank == 1) absl::SleepFor(absl::Seconds(1));
          EXPECT_EQ(ThrownBy([&] { SumOver(group, process.rank); }), "");
        }
      },
      std::chrono::milliseconds(300), {"store.timeout=2m"});
}

TEST(ProcessGroups, AnAbortEndsCallsOfSeveralRoundsOnEveryRank) {
  RunProcesses(2, [](Process& process) {
    if (process.rank == 1) {
      process.Await("called");
      process.world->abort();
      return process.Await("ended");
    }
    Tensors sparse{at::ones({2, 2}).to_sparse()};
    auto work = process.world->allreduce(sparse, {});
    process.Tell("called");
    EXPECT_THAT(ThrownBy([&] { work->wait(); }), HasSubstr("rank 1 aborted the group"));
    process.Tell("ended");
  });
}

TEST(Shrink, ByDefaultLeavesWhatIsUnderWay) {
  RunProcesses(3, [](Process& process) {
    Tensors tensors{at::ones({8})};
    if (process.rank == 1) {
      process.Await("made");
      process.world->allreduce(tensors, {})->wait();
    } else {
      auto work = process.world->allreduce(tensors, {});
      auto shrunk = Ours(process.world->shrink({1}, WeftBackend::kShrinkDefault, nullptr));
      EXPECT_EQ(SumOver(shrunk, process.rank), 1 + 4);
      EXPECT_FALSE(work->isCompleted());
      process.Tell("made");
      work->wait();
    }
    EXPECT_EQ(tensors[0][0].item<float>(), 3);
    process.world->barrier({})->wait();
  });
}

TEST(Shrink, WithAbortEndsWhatWaitsForARankThatDoesNotAnswer) {
  RunProcesses(3, [](Process& process) {
    if (process.rank == 1) return process.Await("made");  // and calls nothing
    Tensors tensors{at::ones({8})};
    auto work = process.world->allreduce(tensors, {});
    auto shrunk = Ours(process.world->shrink({1}, WeftBackend::kShrinkAbort, nullptr));
    EXPECT_THAT(ThrownBy([&] { work->wait(); }), HasSubstr("SHRINK_ABORT"));
    EXPECT_THAT(ThrownBy([&] { process.world->barrier({})->wait(); }), Not(IsEmpty()));
    EXPECT_EQ(SumOver(shrunk, process.rank), 1 + 4);
    shrunk->barrier({})->wait();
    process.Tell("made");
  });
}

TEST(Shrink, RefusesFlagsAndRanksThatThereAreNot) {
  RunProcesses(2, [](Process& process) {
    EXPECT_THAT(ThrownBy([&] { process.world->shrink({1 - process.rank}, 2, nullptr); }),
                HasSubstr("flags are 2; right are 0 (SHRINK_DEFAULT) and 1 (SHRINK_ABORT)"));
    EXPECT_THAT(ThrownBy([&] { process.world->shrink({7}, 0, nullptr); }),
                HasSubstr("rank 7 cannot be excluded"));
    process.world->barrier({})->wait();
  });
}

}  // namespace
}  // namespace weft::collectives
