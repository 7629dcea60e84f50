#include "net/verbs/path_search.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace weft::net {
namespace {

using Step = PathSearch::Step;

constexpr double kRate = 1e9;  // bytes per second

// A link that always has something to send, and what the search did with it.
class Link {
 public:
  // Goodput by how many queue pairs there are beside the first, and traded ones.
  using Rate = std::function<double(bool open, int trades)>;
  explicit Link(Rate rate) : rate_(std::move(rate)) {}

  void Run(absl::Duration time) {
    for (const absl::Time end = now_ + time; now_ < end; now_ += absl::Milliseconds(1)) {
      bytes_ += rate_(open && !rests, trades) / 1e3;
      const Step step = search.Turn(now_, static_cast<uint64_t>(bytes_), waits);
      switch (step) {
        case Step::kNone:
          break;
        case Step::kOpen:
          EXPECT_FALSE(open);
          opened_at.push_back(now_);
          if (!opens) {
            search.Stopped(now_);
            break;
          }
          open = true;
          search.Opened(now_, static_cast<uint64_t>(bytes_));
          break;
        case Step::kPause:
        case Step::kUse:
          EXPECT_TRUE(open);
          rests = !rests;
          EXPECT_EQ(rests, step == Step::kPause);
          break;
        case Step::kTrade:
          EXPECT_TRUE(open);
          open = false;
          ++trades;
          break;
        case Step::kClose:
          EXPECT_TRUE(open);
          open = rests = false;
          ++closes;
          break;
      }
    }
  }

  PathSearch search;
  std::vector<absl::Time> opened_at;
  bool open = false, rests = false, waits = true, opens = true;
  int trades = 0, closes = 0;

 private:
  Rate rate_;
  absl::Time now_ = absl::UnixEpoch();
  double bytes_ = 0;
};

TEST(PathSearch, ANewPathThatCarriesMoreTakesAnothersPlace) {
  Link link([](bool open, int trades) { return open || trades > 0 ? 2 * kRate : kRate; });
  link.Run(absl::Seconds(1));
  EXPECT_EQ(link.trades, 1);
}

TEST(PathSearch, WhatCarriesNoMoreIsClosedAndTriedEverMoreSeldom) {
  Link link([](bool, int) { return kRate; });
  link.Run(absl::Minutes(10));
  EXPECT_EQ(link.trades, 0);
  EXPECT_EQ(link.closes, static_cast<int>(link.opened_at.size()));
  ASSERT_GE(link.opened_at.size(), 5u);
  for (size_t i = 2; i < link.opened_at.size(); ++i) {
    const absl::Duration pause = link.opened_at[i] - link.opened_at[i - 1];
    EXPECT_LT(pause, PathSearch::kPauseMost + absl::Seconds(1));
    if (pause < PathSearch::kPauseMost) {
      EXPECT_GT(pause, link.opened_at[i - 1] - link.opened_at[i - 2]);
    }
  }
  EXPECT_LT(link.opened_at.size(), 25u) << "once a minute at last";
}

// A machine or a fabric that is faster for a while passes for a gain once, not with each change.
TEST(PathSearch, WhatIsFasterForAWhileIsNoGain) {
  int milliseconds = 0;
  Link link([&](bool, int) { return ++milliseconds % 700 < 350 ? kRate : 2 * kRate; });
  link.Run(absl::Minutes(1));
  EXPECT_GE(link.opened_at.size(), 1u);
  EXPECT_EQ(link.trades, 0);
}

TEST(PathSearch, WhatIsWithinNoiseIsNoGain) {
  const double gain = PathSearch::kGainLeast;
  Link little([&](bool open, int) { return open ? kRate * (1 + 0.9 * gain) : kRate; });
  little.Run(absl::Seconds(5));
  EXPECT_EQ(little.trades, 0);
  Link more([&](bool open, int) { return open ? kRate * (1 + 1.1 * gain) : kRate; });
  more.Run(absl::Seconds(1));
  EXPECT_EQ(more.trades, 1);
}

// One more queue pair takes a larger part of what is shared with others: that is no other path.
TEST(PathSearch, WhatIsGainedByNumberAloneDoesNotLastAndCountsAsInVain) {
  Link link([](bool open, int) { return open ? 1.5 * kRate : kRate; });
  link.Run(absl::Minutes(10));
  EXPECT_GE(link.trades, 5);
  EXPECT_LT(link.trades, 25) << "tried ever more seldom";
}

TEST(PathSearch, ALinkThatHasNothingWaitingIsLeftAlone) {
  Link link([](bool, int) { return kRate; });
  link.waits = false;
  link.Run(absl::Seconds(10));
  EXPECT_TRUE(link.opened_at.empty());
}

TEST(PathSearch, WhatCannotBeOpenedIsTriedAgainLater) {
  Link link([](bool open, int trades) { return open || trades > 0 ? 2 * kRate : kRate; });
  link.opens = false;
  link.Run(absl::Seconds(1));
  EXPECT_GE(link.opened_at.size(), 1u);
  EXPECT_LE(link.opened_at.size(), 3u);
  EXPECT_FALSE(link.search.trying());
  link.opens = true;
  link.Run(absl::Seconds(5));
  EXPECT_EQ(link.trades, 1);
}

// What a window held of the time before a queue pair was lost says nothing.
TEST(PathSearch, ALossOnTheWayEndsATryWithoutAVerdict) {
  Link link([](bool open, int) { return open ? 2 * kRate : kRate; });
  while (!link.open) link.Run(absl::Milliseconds(1));
  link.search.Stopped(absl::UnixEpoch() + absl::Seconds(1));
  link.open = false;
  EXPECT_FALSE(link.search.trying());
  EXPECT_EQ(link.trades + link.closes, 0);
}

}  // namespace
}  // namespace weft::net
