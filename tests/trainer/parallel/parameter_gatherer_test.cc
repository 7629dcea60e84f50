// What is left of the parameters after a gather that has failed. Jobs are threads of this process.
#include "trainer/parallel/parameter_gatherer.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "tests/collectives/job.h"
#include "tests/trainer/model/small_model.h"
#include "trainer/groups/group.h"
#include "trainer/model/parameters.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/parallel/parameter_store.h"

namespace weft::train {
namespace {

bool HoldsMemory(const ParameterStore& store) {
  for (const ParameterBucket& bucket : store.buckets()) {
    if (bucket.memory.defined()) return true;
  }
  return false;
}

// Two ranks that share a small model, whose buckets are many.
void RunGatherers(int zero_stage,
                  const std::function<void(ParameterStore&, Group&, ParameterGatherer&)>& body) {
  collectives::RunRanks(2, {}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
    const auto group = Group::Create(endpoint, "test", {Rank(0), Rank(1)});
    ASSERT_TRUE(group.ok()) << group.status();
    const std::unique_ptr<Optimizer> optimizer = MakeOptimizer({});
    ParameterStore store(GptParameters(SmallConfig()),
                         {.zero_stage = zero_stage, .bucket_bytes = Bytes(1024)}, *optimizer,
                         (*group)->rank(), (*group)->size());
    ParameterGatherer gatherer(&store, group->get());
    body(store, **group, gatherer);
  });
}

const absl::Status kWhy = absl::InternalError("a failure of the test");

TEST(ParameterGatherer, AUnitThatFailedToComeIsGivenBackAndNotTakenForThere) {
  for (const bool overlaps : {true, false}) {
    RunGatherers(3, [&](ParameterStore& store, Group& group, ParameterGatherer& gatherer) {
      group.set_overlaps(overlaps);
      group.Abort(kWhy);
      for (int again = 0; again < 2; ++again) {
        EXPECT_FALSE(gatherer.Enter(0, /*backward=*/false).ok()) << overlaps << again;
        gatherer.LeaveAll();
        EXPECT_FALSE(HoldsMemory(store)) << overlaps << again;
      }
    });
  }
}

TEST(ParameterGatherer, AUnitThatWasUnderWayWhenWaitingFailedIsNotTakenForThere) {
  RunGatherers(3, [](ParameterStore&, Group& group, ParameterGatherer& gatherer) {
    group.Abort(kWhy);
    ASSERT_TRUE(gatherer.Prefetch().ok());
    while (!gatherer.WaitAll().ok()) {  // ends: each call gives a bucket up
    }
    EXPECT_FALSE(gatherer.Enter(0, /*backward=*/false).ok());
  });
}

TEST(ParameterGatherer, ValuesThatFailedToComeFailEachPassUntilTheyAreChanged) {
  RunGatherers(1, [](ParameterStore& store, Group& group, ParameterGatherer& gatherer) {
    group.Abort(kWhy);
    for (size_t b = 0; b < store.buckets().size(); ++b) {
      ASSERT_TRUE(gatherer.Changed(static_cast<int>(b)).ok());
    }
    EXPECT_FALSE(gatherer.Enter(0, /*backward=*/false).ok());
    EXPECT_FALSE(gatherer.Enter(0, /*backward=*/false).ok());
  });
}

}  // namespace
}  // namespace weft::train
