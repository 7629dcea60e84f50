// One suite over every Store. A program that includes it says which:
//   INSTANTIATE_TEST_SUITE_P(Stores, StoreConformanceTest, testing::Values(ConformingKind{...}),
//                            NameOfKind);
#ifndef WEFT_TESTS_COLLECTIVES_STORE_STORE_CONFORMANCE_H_
#define WEFT_TESTS_COLLECTIVES_STORE_STORE_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/store/store.h"

namespace weft::collectives {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

inline constexpr absl::Duration kPatience = absl::Seconds(60);
inline constexpr absl::Duration kShort = absl::Milliseconds(100);
inline constexpr int kRanks = 8;

// What a kind of store keeps beyond c10d's own semantics.
struct StorePromises {
  bool acknowledges = true;  // once a change has returned, everybody sees it
  bool checks = true;        // refuses what makes no sense or is too large
  bool names = true;         // the missing keys, in the error of a wait
  bool watches = true;       // store.h: what not every store has
};

// A server, for one test.
class ConformingStores {
 public:
  virtual ~ConformingStores() = default;
  virtual absl::StatusOr<std::unique_ptr<Store>> Connect(int rank) = 0;
  virtual StorePromises promises() const { return {}; }
};

struct ConformingKind {
  std::string name;
  // Null and a reason: not on this machine.
  std::unique_ptr<ConformingStores> (*start)(std::string* reason);
  friend std::ostream& operator<<(std::ostream& out, const ConformingKind& kind) {
    return out << kind.name;
  }
};

inline std::string NameOfKind(const testing::TestParamInfo<ConformingKind>& info) {
  return info.param.name;
}

class StoreConformanceTest : public testing::TestWithParam<ConformingKind> {
 protected:
  void SetUp() override {
    std::string reason;
    stores_ = GetParam().start(&reason);
    if (stores_ == nullptr) GTEST_SKIP() << reason;
    store_ = Connect(0);
    other_ = Connect(1);
  }

  std::unique_ptr<Store> Connect(int rank) {
    auto store = stores_->Connect(rank);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  // Once it returns, everybody sees what `store` has changed.
  void Seen(Store& store) const {
    if (stores_->promises().acknowledges) return;
    EXPECT_TRUE(store.Add("seen", 0).ok());
  }

  template <typename Body>
  void OnRanks(Body body) {
    std::vector<std::thread> threads;
    threads.reserve(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        if (auto store = Connect(rank)) body(rank, *store);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  std::unique_ptr<ConformingStores> stores_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Store> other_;
};

TEST_P(StoreConformanceTest, HoldsWhatWasSet) {
  std::string binary("\0\xff\n\0", 4);
  Seen(*store_);
  int64_t before = store_->KeyCount().value();
  ASSERT_TRUE(store_->Set("key", "value").ok());
  ASSERT_TRUE(store_->Set("empty", "").ok());
  ASSERT_TRUE(store_->Set(binary, binary).ok());
  EXPECT_EQ(other_->Get("key", kPatience).value(), "value");
  EXPECT_EQ(other_->Get("empty", kPatience).value(), "");
  EXPECT_EQ(other_->Get(binary, kPatience).value(), binary);
  ASSERT_TRUE(other_->Set("key", "changed").ok());
  Seen(*other_);
  EXPECT_EQ(store_->Get("key", kPatience).value(), "changed");
  EXPECT_EQ(store_->KeyCount().value(), before + 3);
}

TEST_P(StoreConformanceTest, AddsToDecimalNumbers) {
  EXPECT_EQ(store_->Add("n", 5).value(), 5);
  EXPECT_EQ(other_->Add("n", -7).value(), -2);
  EXPECT_EQ(store_->Get("n", kPatience).value(), "-2");
  EXPECT_EQ(store_->Add("big", int64_t{1} << 62).value(), int64_t{1} << 62);
  EXPECT_EQ(store_->Add("big", 1).value(), (int64_t{1} << 62) + 1);
  if (!stores_->promises().checks) return;
  ASSERT_TRUE(store_->Set("text", "abc").ok());
  EXPECT_EQ(store_->Add("text", 1).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store_->Set("large", "9223372036854775807").ok());
  EXPECT_EQ(store_->Add("large", 1).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_P(StoreConformanceTest, ComparesAndSetsByC10dsRule) {
  EXPECT_EQ(store_->CompareSet("k", "expected", "new").value(), "expected");
  EXPECT_FALSE(store_->Check({"k"}).value());
  EXPECT_EQ(store_->CompareSet("k", "", "first").value(), "first");
  EXPECT_EQ(other_->CompareSet("k", "other", "second").value(), "first");
  EXPECT_EQ(other_->CompareSet("k", "first", "second").value(), "second");
}

TEST_P(StoreConformanceTest, DeletesChecksAndAppends) {
  ASSERT_TRUE(store_->MultiSet({"a", "b"}, {"1", "2"}).ok());
  Seen(*store_);
  EXPECT_TRUE(other_->Check({"a", "b"}).value());
  EXPECT_TRUE(store_->Delete("a").value());
  EXPECT_FALSE(store_->Delete("a").value());
  EXPECT_FALSE(other_->Check({"a", "b"}).value());
  ASSERT_TRUE(store_->Append("log", "one").ok());
  Seen(*store_);
  ASSERT_TRUE(other_->Append("log", ",two").ok());
  Seen(*other_);
  EXPECT_EQ(store_->Get("log", kPatience).value(), "one,two");
}

TEST_P(StoreConformanceTest, WaitsForManyKeysAndSaysWhichAreMissing) {
  std::thread setter([&] {
    EXPECT_TRUE(other_->Set("x", "1").ok());
    EXPECT_TRUE(other_->MultiSet({"y", "z"}, {"2", "3"}).ok());
  });
  EXPECT_THAT(store_->MultiGet({"z", "x", "y", "x"}, kPatience).value(),
              ElementsAre("3", "1", "2", "1"));
  setter.join();
  EXPECT_TRUE(store_->Wait({"x", "y", "z"}, kPatience).ok());
  absl::Status status = store_->Wait({"x", "absent/1", "absent/2"}, kShort);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  if (stores_->promises().names) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("'absent/1', 'absent/2'"));
  }
  EXPECT_EQ(store_->Get("absent", absl::ZeroDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_P(StoreConformanceTest, OneThreadsWaitHoldsUpNoOther) {
  std::thread waiter([&] { EXPECT_EQ(store_->Get("late", kPatience).value(), "come"); });
  EXPECT_EQ(store_->Add("n", 1).value(), 1);
  EXPECT_TRUE(store_->Set("late", "come").ok());
  waiter.join();
}

TEST_P(StoreConformanceTest, EverybodyMeetsAndGathers) {
  std::atomic<int> inside = 0;
  OnRanks([&](int rank, Store& store) {
    ++inside;
    EXPECT_EQ(store.Barrier("start", rank, kRanks, kPatience), absl::OkStatus());
    EXPECT_EQ(inside, kRanks);
    auto all = store.AllGather("names", rank, kRanks, absl::StrCat("r", rank), kPatience);
    ASSERT_TRUE(all.ok()) << all.status();
    for (int i = 0; i < kRanks; ++i) {
      EXPECT_EQ((*all)[static_cast<size_t>(i)], absl::StrCat("r", i));
    }
    auto some = store.Gather("at 3", rank, kRanks, 3, absl::StrCat("g", rank), kPatience);
    ASSERT_TRUE(some.ok()) << some.status();
    ASSERT_EQ(some->size(), rank == 3 ? size_t{kRanks} : 0);
    for (size_t i = 0; i < some->size(); ++i) EXPECT_EQ((*some)[i], absl::StrCat("g", i));
  });
  if (!stores_->promises().checks) return;
  EXPECT_EQ(store_->Barrier("start", 0, kRanks, kShort).code(),
            absl::StatusCode::kFailedPrecondition)
      << "a key serves once";
}

TEST_P(StoreConformanceTest, AnExchangeBringsWhatIsWantedAndLeavesTheRest) {
  OnRanks([&](int rank, Store& store) {
    // The next two, and of two ranks nobody and everybody.
    RankSet wanted({(rank + 1) % kRanks, (rank + 2) % kRanks});
    if (rank == 3) wanted = RankSet();
    if (rank == 5) wanted = RankSet::Below(kRanks);
    auto some = store.Exchange("x", rank, kRanks, absl::StrCat("v", rank), wanted, kPatience);
    ASSERT_TRUE(some.ok()) << some.status();
    std::vector<std::string> expected;
    for (int other : wanted.ranks()) expected.push_back(absl::StrCat("v", other));
    EXPECT_EQ(*some, expected);
    EXPECT_EQ(store.Get(ExchangedKey("x", (rank + 4) % kRanks), kPatience).value(),
              absl::StrCat("v", (rank + 4) % kRanks));
  });
  for (auto [rank, wanted] : {std::pair(0, RankSet({4})), {4, RankSet({0})}, {0, RankSet({-1})}}) {
    EXPECT_EQ(store_->Exchange("y", rank, 4, "", wanted, kShort).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  absl::Status late = store_->Exchange("z", 0, 2, "", RankSet({1}), kShort).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
}

TEST_P(StoreConformanceTest, NamesTheRanksThatMissABarrier) {
  absl::Status first;
  std::thread thread([&] { first = store_->Barrier("b", 1, 4, kShort); });
  absl::Status second = other_->Barrier("b", 2, 4, absl::Seconds(1));
  thread.join();
  EXPECT_EQ(first.code(), absl::StatusCode::kDeadlineExceeded) << first;
  EXPECT_EQ(second.code(), absl::StatusCode::kDeadlineExceeded) << second;
  EXPECT_THAT(std::string(second.message()),
              AllOf(HasSubstr("missing"), HasSubstr("of 4 ranks"), HasSubstr(": 0")));
  // Both may come again.
  EXPECT_EQ(other_->Barrier("b", 4, 4, kShort).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(other_->Barrier("b", 0, 0, kShort).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreConformanceTest, WatchesSeeEveryStateThatLasts) {
  if (!stores_->promises().watches) GTEST_SKIP() << "it has no watches";
  StoreWatched at = store_->Watch("w", -1, kPatience).value();
  EXPECT_EQ(at.version, 0);
  EXPECT_EQ(store_->Watch("w", 0, kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  std::thread setter([&] { EXPECT_TRUE(other_->Set("w", "one").ok()); });
  at = store_->Watch("w", 0, kPatience).value();
  setter.join();
  EXPECT_EQ(at.value, "one");
  // The same value again is a change as well, and so is a removal.
  ASSERT_TRUE(other_->Set("w", "one").ok());
  StoreWatched again = store_->Watch("w", at.version, kPatience).value();
  EXPECT_EQ(again.value, "one");
  EXPECT_NE(again.version, at.version);
  std::thread remover([&] { EXPECT_TRUE(other_->Delete("w").value()); });
  StoreWatched gone = store_->Watch("w", again.version, kPatience).value();
  remover.join();
  EXPECT_EQ(gone.version, 0);
  EXPECT_FALSE(gone.value.has_value());
}

TEST_P(StoreConformanceTest, CarriesLargeValuesAndRefusesLarger) {
  std::string large(size_t{4} << 20, 'x');
  for (size_t i = 0; i < large.size(); i += 4093) large[i] = static_cast<char>(i);
  ASSERT_TRUE(store_->Set("large", large).ok());
  EXPECT_TRUE(other_->Get("large", kPatience).value() == large);
  if (!stores_->promises().checks) return;
  EXPECT_EQ(store_->Set("larger", std::string((size_t{64} << 20) + 1, 'x')).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Set(std::string(4097, 'k'), "").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_STORE_STORE_CONFORMANCE_H_
