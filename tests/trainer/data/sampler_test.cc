#include "trainer/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/trainer/data/counting_data.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSeq = 16;

class SampleStreamTest : public ::testing::Test {
 protected:
  std::unique_ptr<SampleStream> Open(uint64_t seed = 1,
                                     SampleOrder order = SampleOrder::kShuffled) {
    auto stream = SampleStream::Open(folder_ / "d", kSeq, seed, order);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }
  ScratchFolder folder_;
  int64_t tokens_ = WriteCounting(folder_ / "d", 200);
};

// All windows of an epoch, put in the order of their tokens' stream again, are the documents, each
// once and whole but for a rest shorter than a window, one token shared by neighbours.
TEST_F(SampleStreamTest, CoversEveryTokenOfAnEpochOnce) {
  auto stream = Open();
  const int64_t n = stream->samples_per_epoch();
  EXPECT_EQ(n, (tokens_ - 1) / kSeq);
  std::map<int32_t, int> seen;  // as an input
  std::multiset<int32_t> first, last;
  for (int64_t k = 0; k < n; ++k) {
    std::vector<int32_t> window = Read(*stream, k);
    for (size_t i = 0; i + 1 < window.size(); ++i) ++seen[window[i]];
    first.insert(window.front());
    last.insert(window.back());
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), n * kSeq);
  for (const auto& [token, times] : seen) EXPECT_EQ(times, 1) << token;
  // Every window but one begins with the token that another ended with.
  std::vector<int32_t> shared;
  std::set_intersection(first.begin(), first.end(), last.begin(), last.end(),
                        std::back_inserter(shared));
  EXPECT_EQ(static_cast<int64_t>(shared.size()), n - 1);
}

TEST_F(SampleStreamTest, ShufflesDocumentsAndWindowsAnewEachEpoch) {
  auto stream = Open();
  const int64_t n = stream->samples_per_epoch();
  std::vector<std::vector<int32_t>> epochs[2];
  for (int64_t k = 0; k < 2 * n; ++k) epochs[k / n].push_back(Read(*stream, k));
  EXPECT_NE(epochs[0], epochs[1]);
  for (auto& epoch : epochs) {
    EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end()));
    std::sort(epoch.begin(), epoch.end());
  }
  EXPECT_NE(epochs[0], epochs[1]);  // other documents side by side, not only another order
}

TEST_F(SampleStreamTest, IsAFunctionOfSeedAndNumberAlone) {
  auto forward = Open();
  auto backward = Open();
  auto other_seed = Open(2);
  const int64_t n = forward->samples_per_epoch();
  std::vector<std::vector<int32_t>> expected;
  int different = 0;
  for (int64_t k = 0; k < 3 * n; ++k) {
    expected.push_back(Read(*forward, k));
    different += Read(*other_seed, k) != expected.back() ? 1 : 0;
  }
  for (int64_t k = 3 * n - 1; k >= 0; --k) {
    ASSERT_EQ(Read(*backward, k), expected[static_cast<size_t>(k)]);
  }
  EXPECT_GT(different, 2 * n);
}

// The order is part of a checkpoint's meaning: this must not change from version to version.
TEST_F(SampleStreamTest, KeepsTheOrderOfEarlierVersions) {
  auto stream = Open(42);
  std::vector<int32_t> firsts;
  for (int64_t k = 0; k < 6; ++k) firsts.push_back(Read(*stream, k)[0]);
  EXPECT_EQ(firsts, (std::vector<int32_t>{82, 43, 2278, 1913, 1237, 2590}));
}

TEST_F(SampleStreamTest, ReadsValidationInOrder) {
  auto stream = Open(1, SampleOrder::kSequential);
  const int64_t n = stream->samples_per_epoch();
  for (int64_t k = 0; k < n + 3; ++k) {
    std::vector<int32_t> window = Read(*stream, k);
    for (int64_t i = 0; i <= kSeq; ++i) EXPECT_EQ(window[static_cast<size_t>(i)], k % n * kSeq + i);
  }
}

TEST_F(SampleStreamTest, ServesManyThreads) {
  auto stream = Open();
  const int64_t n = stream->samples_per_epoch();
  std::vector<std::vector<int32_t>> expected;
  for (int64_t k = 0; k < 4 * n; ++k) expected.push_back(Read(*stream, k));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t k = t; k < 4 * n; k += 3) {
        EXPECT_EQ(Read(*stream, k), expected[static_cast<size_t>(k)]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SampleStreamTest, RefusesWhatCannotBeRead) {
  EXPECT_THAT(std::string(SampleStream::Open(folder_ / "d", 1 << 20, 1).status().message()),
              HasSubstr("but one sample takes 1048577"));
  EXPECT_FALSE(SampleStream::Open(folder_ / "d", 0, 1).ok());
  EXPECT_FALSE(SampleStream::Open(folder_ / "missing", kSeq, 1).ok());
  auto stream = Open();
  std::vector<int32_t> tokens(kSeq);
  EXPECT_FALSE(stream->Read(0, absl::MakeSpan(tokens)).ok());
  tokens.resize(kSeq + 1);
  EXPECT_FALSE(stream->Read(-1, absl::MakeSpan(tokens)).ok());
}

TEST(SampleStream, KeepsTheSequencesOfADocumentTogether) {
  ScratchFolder folder;
  // One token a sequence, two sequences a document: 0 1 | 2 3 | ...
  constexpr int kDocuments = 30;
  std::string index = std::string("MMIDIDX\0\0", 9);
  auto put = [&index](auto value) {
    index.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  put(uint64_t{1});
  put(uint8_t{1});
  put(uint64_t{2 * kDocuments});
  put(uint64_t{kDocuments + 1});
  std::string bin;
  for (int i = 0; i < 2 * kDocuments; ++i) put(int32_t{1});
  for (int i = 0; i < 2 * kDocuments; ++i) put(int64_t{i});
  for (int i = 0; i <= kDocuments; ++i) put(int64_t{2 * i});
  for (int i = 0; i < 2 * kDocuments; ++i) bin += static_cast<char>(i);
  ASSERT_TRUE(WriteFileAtomically(folder / "d.idx", index).ok());
  ASSERT_TRUE(WriteFileAtomically(folder / "d.bin", bin).ok());
  auto stream = SampleStream::Open(folder / "d", 2 * kDocuments - 1, 5);
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::vector<int32_t> window = Read(**stream, 0);
  EXPECT_FALSE(std::is_sorted(window.begin(), window.end()));
  for (size_t i = 0; i < window.size(); i += 2) EXPECT_EQ(window[i] + 1, window[i + 1]);
}

TEST(RankSlice, UnitesToTheSameBatchForEveryNumberOfRanks) {
  for (int world : {1, 2, 3, 4, 6, 12}) {
    int64_t next = 100;
    for (int rank = 0; rank < world; ++rank) {
      SampleRange range = RankSlice(100, 12, rank, world);
      EXPECT_EQ(range.begin, next);
      EXPECT_EQ(range.end - range.begin, 12 / world);
      next = range.end;
    }
    EXPECT_EQ(next, 112);
  }
}

}  // namespace
}  // namespace weft::train
