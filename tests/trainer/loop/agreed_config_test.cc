// What the ranks of a run make of configs that differ or leave something open. Jobs are threads of
// this process.
#include "trainer/loop/agreed_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/endpoint.h"
#include "tests/collectives/job.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TrainConfig Config(const std::vector<std::string>& pairs) {
  absl::StatusOr<TrainConfig> config = LoadTrainConfig("", pairs, "tiny");
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

// `body` gets the groups of each rank.
void RunGroups(int ranks, const TrainConfig& config,
               const std::function<void(ParallelGroups&)>& body) {
  collectives::RunRanks(ranks, {}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
    absl::StatusOr<ParallelGroups> groups = ParallelGroups::Create(config, endpoint);
    ASSERT_TRUE(groups.ok()) << groups.status();
    body(*groups);
  });
}

TEST(CheckSameConfigTest, EveryRankReturnsWhichRankDiffersAndInWhat) {
  RunGroups(3, Config({}), [](ParallelGroups& groups) {
    Group& world = *groups.world;
    EXPECT_TRUE(CheckSameConfig(Config({}), world).ok());
    const TrainConfig mine = Config({absl::StrCat("train.seed=", world.rank() < 2 ? 7 : 8)});
    const absl::Status status = CheckSameConfig(mine, world);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 2 has another config than rank 0"), HasSubstr("seed")));
    EXPECT_TRUE(IsAgreed(status));
  });
}

// Rank 1 was in the run before, on hosts of other cores; rank 0 replaces one that died.
TEST(ChooseByCoresTest, ARunThatGoesOnKeepsWhatARankStillKnows) {
  const TrainConfig given = Config({"parallel.tensor=2"});
  RunGroups(2, given, [&](ParallelGroups& groups) {
    TrainConfig before = given;
    before.micro_batch = 3;  // nothing that is chosen by cores here
    before.tensor_chunks = 5;
    const std::string word = CoreChoiceToWord(before, SizesOf(groups.mesh));
    TrainConfig config = given;
    const absl::StatusOr<CoreShare> share = ChooseByCores(
        config, groups, /*threads=*/1, groups.world->rank() == 1 ? absl::string_view(word) : "");
    ASSERT_TRUE(share.ok()) << share.status();
    EXPECT_EQ(share->ranks, 2);
    EXPECT_EQ(config.micro_batch, 3);
    EXPECT_EQ(config.tensor_chunks, 5);
  });
}

}  // namespace
}  // namespace weft::train
