// Who shares training state with whom. Jobs are threads of this process.
#include "trainer/groups/parallel_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/collectives/job.h"
#include "trainer/config.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// By counting the ranks of each expert in each group: 0 where these are not as many everywhere.
int CountedExpertRanks(const ParallelSizes& sizes, int group) {
  std::map<std::pair<int, int>, int> ranks;  // by the expert's place and the group
  for (int i = 0; i < sizes.context * sizes.data; ++i) {
    ++ranks[{i / sizes.context % sizes.expert, i / group}];
  }
  const int first = ranks.begin()->second;
  for (const auto& [place, count] : ranks) {
    if (count != first) return 0;
  }
  return first;
}

TEST(ShardSizesTest, AGroupHasEquallyManyRanksOfEachExpertThatItHas) {
  for (int context = 1; context <= 6; ++context) {
    for (int expert = 1; expert <= 6; ++expert) {
      for (int rounds = 1; rounds <= 6; ++rounds) {
        const ParallelSizes sizes{.context = context, .data = expert * rounds, .expert = expert};
        const int all = context * expert * rounds;
        for (int group = 0; group <= all; ++group) {
          if (group > 0 && all % group != 0) continue;
          TrainConfig config;
          config.zero_group = group;
          const ShardSizes shards = ShardSizesOf(config, sizes);
          const int shared = group == 0 ? all : group;
          EXPECT_EQ(shards.shared, shared);
          EXPECT_EQ(shards.experts, CountedExpertRanks(sizes, shared))
              << "context " << context << " expert " << expert << " of " << all << ", groups of "
              << shared;
        }
      }
    }
  }
}

TEST(MeshOfTest, ATensorAxisCutsAFeedForwardPartAndNoExpert) {
  const auto mesh = [](const std::string& experts) {
    const absl::StatusOr<TrainConfig> config = LoadTrainConfig(
        "", {"model.heads=4", "model.ffn=49", "parallel.tensor=2", "model.experts=" + experts},
        "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    return MeshOf(*config, 2).status();
  };
  EXPECT_TRUE(mesh("4").ok()) << mesh("4");
  EXPECT_EQ(mesh("0").message(), "parallel.tensor = 2 does not divide model.ffn = 49");
}

// CUDA_VISIBLE_DEVICES may give each rank's only GPU the number 0, and GPUs of two hosts may be at
// one place there.
TEST(RanksThatShareGpusTest, OnlyRanksOfOneHostAtOneAddressShareAGpu) {
  EXPECT_EQ(RanksThatShareGpus({0, 0, 1, 1}, {"1:00.0", "2:00.0", "1:00.0", "2:00.0"}), 0);
  EXPECT_EQ(RanksThatShareGpus({0, 0, 1, 1}, {"1:00.0", "1:00.0", "1:00.0", "2:00.0"}), 2);
  EXPECT_EQ(RanksThatShareGpus({0, 0, 0}, {"1:00.0", "1:00.0", "1:00.0"}), 3);
  EXPECT_EQ(RanksThatShareGpus({0, 0}, {"", ""}), 0);
}

// The ranks of the job that are in `group`, on every rank of it.
std::vector<int> Members(Group& group, int mine) {
  const auto texts = group.Gather(absl::StrCat(mine));
  EXPECT_TRUE(texts.ok()) << texts.status();
  std::vector<int> members;
  if (!texts.ok()) return members;
  for (const std::string& text : *texts) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &members.emplace_back()));
  }
  return members;
}

// Eight data-parallel ranks, of which two share the experts: those of an expert are every other.
TEST(ParallelGroupsTest, ExpertsStateIsSharedWithinTheGroupsOfTheOthers) {
  for (const int zero_group : {0, 1, 2, 4}) {
    SCOPED_TRACE(absl::StrCat("groups of ", zero_group));
    collectives::RunRanks(8, {}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
      const int rank = endpoint->rank().value(), odd = rank % 2;
      const absl::StatusOr<TrainConfig> config =
          LoadTrainConfig("",
                          {"model.experts=4", "parallel.expert=2",
                           absl::StrCat("parallel.zero_group=", zero_group)},
                          "tiny");
      ASSERT_TRUE(config.ok()) << config.status();
      const absl::StatusOr<ParallelGroups> groups = ParallelGroups::Create(*config, endpoint);
      ASSERT_TRUE(groups.ok()) << groups.status();
      const ParallelGroups& experts = *groups->experts;
      const std::vector<int> shard = Members(experts.shard_group(), rank);
      const std::vector<int> replicas =
          experts.replicas == nullptr ? std::vector<int>{rank} : Members(*experts.replicas, rank);
      if (zero_group == 0) {
        EXPECT_THAT(shard, ElementsAre(odd, odd + 2, odd + 4, odd + 6));
        EXPECT_THAT(replicas, ElementsAre(rank));
      } else if (zero_group == 4) {
        const int first = rank / 4 * 4 + odd, twin = rank % 4;
        EXPECT_THAT(shard, ElementsAre(first, first + 2));
        EXPECT_THAT(replicas, ElementsAre(twin, twin + 4));
      } else {
        EXPECT_THAT(shard, ElementsAre(rank));
        EXPECT_THAT(replicas, ElementsAre(odd, odd + 2, odd + 4, odd + 6));
      }
    });
  }
}

// As where an error ends a pass, of which an exchange is still under way.
TEST(GroupTest, TensorsOfACallThatNobodyWaitsForStayUntilItHasEnded) {
  std::promise<void> dropped;
  collectives::RunRanks(2, {}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
    std::unique_ptr<Group> group = *Group::Create(endpoint, "test", {Rank(0), Rank(1)});
    std::vector<float> data(1000, 1.0F);
    bool freed = false;
    {
      if (group->rank() == 1) dropped.get_future().wait();  // before it ends rank 0's call
      absl::StatusOr<Pending> pending = group->AllReduceSum(at::from_blob(
          data.data(), {1000}, [&](void*) { freed = true; }, at::kFloat));
      ASSERT_TRUE(pending.ok()) << pending.status();
      if (group->rank() == 1) {
        EXPECT_TRUE(group->Wait(*pending).ok());
        EXPECT_EQ(data[999], 2.0F);
      }
    }
    EXPECT_EQ(freed, group->rank() == 1);
    if (group->rank() == 0) dropped.set_value();
    double both = 1;
    EXPECT_TRUE(group->Sum(absl::MakeSpan(&both, 1)).ok());
    group.reset();
    EXPECT_TRUE(freed);
  });
}

// Gradients of the data axis and activations of the tensor axis may share a link.
TEST(ParallelGroupsTest, ActivationsGoBeforeGradients) {
  collectives::RunRanks(4, {}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
    const absl::StatusOr<TrainConfig> config = LoadTrainConfig("", {"parallel.tensor=2"}, "tiny");
    ASSERT_TRUE(config.ok()) << config.status();
    const absl::StatusOr<ParallelGroups> groups = ParallelGroups::Create(*config, endpoint);
    ASSERT_TRUE(groups.ok()) << groups.status();
    const at::Tensor full = at::ones({1 << 18}), shard = at::empty({1 << 17});
    const auto reduce = [&](Group& group) {
      absl::StatusOr<Pending> pending = group.ReduceScatterSum(shard, full);
      ASSERT_TRUE(pending.ok()) << pending.status();
      const absl::Status status = group.Wait(*pending);
      EXPECT_TRUE(status.ok()) << status;
    };
    EXPECT_THAT(endpoint->Describe(), Not(HasSubstr("priority high")));
    reduce(*groups->tensor);
    EXPECT_THAT(endpoint->Describe(), HasSubstr("priority high: 1 works"));
    EXPECT_THAT(endpoint->Describe(), Not(HasSubstr("priority low")));
    reduce(*groups->data);
    EXPECT_THAT(endpoint->Describe(), HasSubstr("priority low: 1 works"));
  });
}

}  // namespace
}  // namespace weft::train
