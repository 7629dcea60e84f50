// Which dataset each sample of a blend comes from, and that they are the datasets' own samples.
#include "trainer/data/sample_blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/trainer/data/counting_data.h"
#include "trainer/data/batch_loader.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSeq = 16;
constexpr int32_t kApart = 1'000'000;  // between the first tokens of two datasets

using Streams = std::vector<std::shared_ptr<const SampleStream>>;

class SampleBlendTest : public ::testing::Test {
 protected:
  // Datasets of 200, 60, 30, 20, ... documents.
  Streams Open(size_t datasets) {
    Streams streams;
    for (size_t i = 0; i < datasets; ++i) {
      const std::string prefix = folder_ / ("d" + std::to_string(i));
      WriteCounting(prefix, i == 0 ? 200 : static_cast<int>(60 / i),
                    static_cast<int32_t>(i) * kApart);
      streams.push_back(*SampleStream::Open(prefix, kSeq, 42));
    }
    return streams;
  }
  std::shared_ptr<const SampleBlend> Make(const std::vector<double>& weights) {
    auto blend = SampleBlend::Make(Open(weights.size()), weights);
    EXPECT_TRUE(blend.ok()) << blend.status();
    return *std::move(blend);
  }
  std::vector<size_t> DatasetsOf(const std::vector<double>& weights, int64_t samples) {
    std::vector<size_t> datasets;
    const auto blend = Make(weights);
    for (int64_t k = 0; k < samples; ++k) datasets.push_back(blend->DrawOf(k).dataset);
    return datasets;
  }

  ScratchFolder folder_;
};

// The numbers of SampleStreamTest.KeepsTheOrderOfEarlierVersions.
TEST_F(SampleBlendTest, OneDatasetAloneIsItsOwnStream) {
  for (const double weight : {1.0, 0.3}) {
    const auto blend = Make({weight});
    std::vector<int32_t> firsts;
    for (int64_t k = 0; k < 6; ++k) firsts.push_back(Read(*blend, k)[0]);
    EXPECT_THAT(firsts, ElementsAre(82, 43, 2278, 1913, 1237, 2590));
    const SampleStream& stream = *blend->streams()[0];
    for (int64_t k = 0; k < 3 * stream.samples_per_epoch(); ++k) {
      ASSERT_EQ(Read(*blend, k), Read(stream, k)) << k;
    }
  }
}

// The order is part of a checkpoint's meaning: this must not change from version to version.
TEST_F(SampleBlendTest, KeepsTheOrderOfItsDatasets) {
  EXPECT_THAT(DatasetsOf({0.7, 0.3}, 12), ElementsAre(0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1));
  EXPECT_THAT(DatasetsOf({1, 1, 1}, 5), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(DatasetsOf({50, 30, 20}, 10), ElementsAre(0, 1, 0, 2, 0, 1, 0, 2, 1, 0));
}

TEST_F(SampleBlendTest, APeriodIsAsShortAsTheWeightsAllow) {
  EXPECT_EQ(Make({0.7, 0.3})->period(), 10);
  EXPECT_EQ(Make({1, 1, 1})->period(), 3);
  EXPECT_EQ(Make({0.25, 0.75})->period(), 4);
  EXPECT_EQ(Make({3.5, 1.25, 0.125})->period(), 39);
  EXPECT_EQ(Make({0.333333, 0.666667})->period(), 1'000'000);
  EXPECT_EQ(Make({std::sqrt(2.0), 1})->period(), SampleBlend::kPeriodMost);
}

// After every number of samples. Taking the dataset that is the furthest behind would leave one of
// the last list's 1.24 samples behind.
TEST_F(SampleBlendTest, EveryDatasetIsWithinOneSampleOfItsShare) {
  const std::vector<std::vector<double>> lists = {{1, 1},
                                                  {0.7, 0.3},
                                                  {0.95, 0.04, 0.01},
                                                  {std::sqrt(2.0), 1, 0.001},
                                                  {0.123456789, 0.3, 0.2, 0.376543211},
                                                  {1, 35, 2, 40, 3, 1, 3, 3, 3, 1, 25}};
  for (const std::vector<double>& weights : lists) {
    const auto blend = Make(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double most = 1 - 1 / (2 * static_cast<double>(weights.size()) - 2);
    std::vector<double> drawn(weights.size());
    for (int64_t n = 1; n <= 5000; ++n) {
      drawn[blend->DrawOf(n - 1).dataset] += 1;
      for (size_t i = 0; i < weights.size(); ++i) {
        const double wanted = static_cast<double>(n) * weights[i] / sum;
        const double rounded = static_cast<double>(n) * 1e-6;  // shares are parts of a million
        ASSERT_LE(std::fabs(drawn[i] - wanted), most + rounded)
            << "dataset " << i << " of " << weights.size() << " after " << n << " samples";
      }
    }
  }
}

// Across periods and epochs, of which the datasets have different numbers.
TEST_F(SampleBlendTest, EachDatasetGivesItsOwnSamplesInItsOwnOrder) {
  const auto blend = Make({0.5, 0.3, 0.2});
  std::vector<int64_t> next(3);
  for (int64_t k = 0; k < 1000; ++k) {
    const SampleBlend::Draw draw = blend->DrawOf(k);
    ASSERT_EQ(draw.sample, next[draw.dataset]++) << k;
    const std::vector<int32_t> tokens = Read(*blend, k);
    ASSERT_EQ(tokens, Read(*blend->streams()[draw.dataset], draw.sample)) << k;
    ASSERT_EQ(tokens[0] / kApart, static_cast<int32_t>(draw.dataset)) << k;
  }
  for (size_t i = 0; i < 3; ++i) {  // more than 1, 2 and 3 epochs
    EXPECT_GT(next[i], (1 + static_cast<int64_t>(i)) * blend->streams()[i]->samples_per_epoch());
  }
}

TEST_F(SampleBlendTest, IsAFunctionOfTheNumberAlone) {
  const auto forward = Make({0.6, 0.4}), backward = Make({6, 4});
  std::vector<std::vector<int32_t>> expected;
  for (int64_t k = 0; k < 800; ++k) expected.push_back(Read(*forward, k));
  for (int64_t k = 799; k >= 0; --k) {
    ASSERT_EQ(Read(*backward, k), expected[static_cast<size_t>(k)]) << k;
  }
}

TEST_F(SampleBlendTest, ServesManyThreads) {
  const auto blend = Make({0.6, 0.4});
  std::vector<std::vector<int32_t>> expected;
  for (int64_t k = 0; k < 800; ++k) expected.push_back(Read(*blend, k));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t k = t; k < 800; k += 3) {
        EXPECT_EQ(Read(*blend, k), expected[static_cast<size_t>(k)]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::unique_ptr<BatchLoader> Start(const std::shared_ptr<const SampleBlend>& blend, int rank,
                                   int world, int64_t start) {
  auto loader = BatchLoader::Start(
      blend, {.global_batch = 6, .rank = rank, .world_size = world, .start_sample = start});
  EXPECT_TRUE(loader.ok()) << loader.status();
  return *std::move(loader);
}

// Resumed after step 7, on 2, 3 and 6 ranks.
TEST_F(SampleBlendTest, EveryNumberOfRanksGoesOnWithTheSameSamples) {
  const auto blend = Make({0.5, 0.3, 0.2});
  for (const int world : {2, 3, 6}) {
    auto unbroken = Start(blend, 0, 1, 0);
    for (int step = 0; step < 7; ++step) ASSERT_TRUE(unbroken->Next().ok());
    std::vector<std::unique_ptr<BatchLoader>> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.push_back(Start(blend, rank, world, unbroken->position()));
    }
    for (int step = 7; step < 20; ++step) {
      std::vector<int64_t> united;
      for (auto& loader : ranks) {
        const std::vector<int64_t> part = loader->Next()->tokens;
        united.insert(united.end(), part.begin(), part.end());
      }
      EXPECT_EQ(united, unbroken->Next()->tokens) << world << " ranks, step " << step;
    }
  }
}

TEST_F(SampleBlendTest, RefusesWhatCannotBeRead) {
  EXPECT_THAT(std::string(SampleBlend::Make(Open(2), {1.0, 1e-6}).status().message()),
              AllOf(HasSubstr("dataset " + (folder_ / "d1") + ": its weight 1e-06 is a share of "),
                    HasSubstr("2e-06 is the least")));
  const auto blend = Make({1, 1});
  std::vector<int32_t> tokens(kSeq);
  EXPECT_FALSE(blend->Read(0, absl::MakeSpan(tokens)).ok());
  tokens.resize(kSeq + 1);
  EXPECT_FALSE(blend->Read(-1, absl::MakeSpan(tokens)).ok());
}

}  // namespace
}  // namespace weft::train
