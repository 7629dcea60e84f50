// Which paths a link's queue pairs come to use, over scripted spines, and how soon dead ones are
// left.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

constexpr double kSpineRate = 10e6;  // bytes per second
constexpr int kPairs = 4;

WorldOptions SpineWorld(const std::vector<std::string>& settings = {}) {
  WorldOptions options = QuickWorld(1);
  // Devices that are slow are not broken.
  options.settings.insert(options.settings.end(),
                          {"verbs.timeout=13", "verbs.queue_pairs=4", "verbs.stall_after=1s"});
  options.settings.insert(options.settings.end(), settings.begin(), settings.end());
  return options;
}

// The paths of host 0 by the order in which its source ports first appear: those of `first`, then
// `next` again and again.
ScriptedFabric::SpineOf InOrder(std::vector<size_t> first, std::vector<size_t> next) {
  auto seen = std::make_shared<std::map<uint32_t, size_t>>();
  return [=](const std::string& device, uint32_t flow_label) -> size_t {
    if (!absl::StartsWith(device, "host0")) return 0;
    const auto found = seen->emplace(flow_label, seen->size()).first->second;
    return found < first.size() ? first[found] : next[(found - first.size()) % next.size()];
  };
}

// Bytes per second of `stream` over each spine.
std::vector<double> RatesOver(World& world, EndlessTraffic& stream, absl::Duration time) {
  const std::vector<uint64_t> before = world.fabric.spine_bytes();
  stream.Run(time);
  std::vector<double> out;
  for (size_t i = 0; i < before.size(); ++i) {
    const uint64_t bytes = world.fabric.spine_bytes()[i] - before[i];
    out.push_back(static_cast<double>(bytes) / absl::ToDoubleSeconds(time));
  }
  return out;
}

// Warnings that name weft-plan, while it lives; made after the world.
class PlanWarnings {
 public:
  PlanWarnings() {
    Lines().clear();
    SetLogLevel(LogLevel::kWarn);  // a world is silent
    SetLogSink([](LogLevel level, absl::string_view text) {
      std::lock_guard lock(Mutex());
      if (level >= LogLevel::kWarn && absl::StrContains(text, "weft-plan paths")) {
        Lines().emplace_back(text);
      }
    });
  }
  ~PlanWarnings() {
    SetLogSink(nullptr);
    SetLogLevel(LogLevel::kOff);
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(Mutex());
    return Lines();
  }

 private:
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::vector<std::string>& Lines() {
    static std::vector<std::string> lines;
    return lines;
  }
};

TEST(VerbsSpines, FourQueuePairsOnOneSpineFindTheOther) {
  World world(SpineWorld());
  const PlanWarnings warnings;
  world.fabric.SetSpines({kSpineRate, kSpineRate}, InOrder({0, 0, 0, 0}, {0, 1}));
  ASSERT_TRUE(world.Connect());
  EndlessTraffic stream(world);
  stream.Run(absl::Seconds(2));
  const std::vector<double> rates = RatesOver(world, stream, absl::Seconds(1));
  EXPECT_GT(rates[0], 0.95 * kSpineRate);
  EXPECT_GT(rates[1], 0.95 * kSpineRate);
  EXPECT_LE(world.fabric.QueuePairs(World::Device(0, 0)).size(), kPairs + 1u);
  // One of two spines was idle: half of the fabric, less what the first search could not tell.
  ASSERT_EQ(warnings.lines().size(), 1u);
  int percent = 0;
  ASSERT_EQ(std::sscanf(warnings.lines()[0].c_str(),
                        "verbs: queue pairs shared paths by chance: %d %% of what", &percent),
            1)
      << warnings.lines()[0];
  EXPECT_GE(percent, 20);
  EXPECT_LE(percent, 60);
}

TEST(VerbsSpines, WithoutTheSearchTheyStay) {
  World world(SpineWorld({"verbs.path_search=false"}));
  const PlanWarnings warnings;
  world.fabric.SetSpines({kSpineRate, kSpineRate}, InOrder({0, 0, 0, 0}, {1}));
  ASSERT_TRUE(world.Connect());
  EndlessTraffic stream(world);
  const std::vector<double> rates = RatesOver(world, stream, absl::Seconds(2));
  EXPECT_GT(rates[0], 0.95 * kSpineRate);
  EXPECT_EQ(rates[1], 0);
  EXPECT_TRUE(warnings.lines().empty());  // nothing was measured
}

TEST(VerbsSpines, ThreeToOneFillsBothFromTheStart) {
  World world(SpineWorld());
  world.fabric.SetSpines({kSpineRate, kSpineRate}, InOrder({0, 0, 0, 1}, {0}));
  ASSERT_TRUE(world.Connect());
  EndlessTraffic stream(world);
  const std::vector<double> rates = RatesOver(world, stream, absl::Seconds(1));
  EXPECT_GT(rates[0], 0.95 * kSpineRate);
  EXPECT_GT(rates[1], 0.95 * kSpineRate);
}

// A write is acknowledged a while after a spine has carried it all: by then that queue pair's next
// one has to be under way, or the path stands idle.
TEST(VerbsSpines, NoPathWaitsForWordOfWhatItHasCarried) {
  constexpr absl::Duration kStep = absl::Microseconds(200);
  constexpr double kPollsPerStep = 2;  // of both hosts
  WorldOptions options = SpineWorld({"verbs.piece_min=64KiB", "verbs.piece_max=1MiB"});
  options.step = kStep;
  World world(options);
  world.fabric.SetSpines({kSpineRate, kSpineRate}, InOrder({0, 0, 0, 1}, {0}));
  world.fabric.set_on_transfer([&](const ScriptedTransfer&) {
    ScriptedFate fate;
    fate.late_send =
        static_cast<int>(absl::FDivDuration(absl::Milliseconds(3), kStep) * kPollsPerStep);
    return fate;
  });
  ASSERT_TRUE(world.Connect());
  EndlessTraffic stream(world, 1 << 20);
  stream.Run(absl::Seconds(1));
  const std::vector<double> rates = RatesOver(world, stream, absl::Seconds(2));
  EXPECT_GT(rates[0], 0.95 * kSpineRate);
  EXPECT_GT(rates[1], 0.95 * kSpineRate);
  world.fabric.set_on_transfer(nullptr);
}

// What two and two carry is not thrown away for what a try seems to show.
TEST(VerbsSpines, TwoAndTwoStayGoodThroughManyTries) {
  World world(SpineWorld());
  world.fabric.SetSpines({kSpineRate, kSpineRate}, InOrder({0, 0, 1, 1}, {0, 1, 1, 0}));
  ASSERT_TRUE(world.Connect());
  EndlessTraffic stream(world);
  for (int second = 0; second < 6; ++second) {
    const std::vector<double> rates = RatesOver(world, stream, absl::Seconds(1));
    EXPECT_GT(rates[0] + rates[1], 0.95 * 2 * kSpineRate) << "second " << second;
  }
}

// A try leaves its queue pair without traffic for a while, to compare.
TEST(VerbsSpines, WhatRestsIsUsedAtOnceWhenNothingElseWorks) {
  World world(SpineWorld({"verbs.queue_pairs=1"}));
  world.fabric.SetSpines({kSpineRate, kSpineRate}, InOrder({0}, {1}));
  constexpr size_t kTried = 1;
  std::map<uint32_t, size_t> order;
  absl::Time used = absl::InfiniteFuture();
  bool dark = false;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (!absl::StartsWith(transfer.from, "host0")) return fate;
    if (order.emplace(transfer.queue_pair, order.size()).first->second == kTried) {
      used = world.now();
    } else if (dark) {
      fate.fails = true, fate.arrives = false;
    }
    return fate;
  });
  ASSERT_TRUE(world.Connect());
  {
    EndlessTraffic stream(world);
    const auto rests = [&] { return world.now() - used > absl::Milliseconds(40); };
    const absl::Time limit = world.now() + absl::Seconds(5);
    while (!rests() && world.now() < limit) stream.Run(absl::Milliseconds(1));
    ASSERT_TRUE(rests());
    dark = true;
    const absl::Time since = world.now();
    stream.Run(absl::Milliseconds(60));  // what is lost is on its way for a while
    EXPECT_GT(used, since);
  }
  world.fabric.set_on_transfer(nullptr);
}

// ---- A dead path

// Host 0's queue pairs, by their order, that went over a dead path. Nothing comes back from
// there; a device that has waited for long enough says so of the first ones.
class DeadPaths {
 public:
  DeadPaths(World& world, int first, int then) : world_(world), first_(first), dead_(first + then) {
    world.fabric.set_on_transfer([this](const ScriptedTransfer& transfer) {
      ScriptedFate fate;
      if (!absl::StartsWith(transfer.from, "host0")) return fate;
      const size_t order = order_.emplace(transfer.queue_pair, order_.size()).first->second;
      if (!dark_) return fate;
      if (order < static_cast<size_t>(first_)) {
        fate.fails = true, fate.arrives = false;
      } else if (order < static_cast<size_t>(dead_)) {
        fate.hold_ticks = 1 << 30;
      }
      return fate;
    });
  }
  ~DeadPaths() { world_.fabric.set_on_transfer(nullptr); }
  void GoDark() { dark_ = true; }
  size_t tried() const { return order_.size(); }

 private:
  World& world_;
  const int first_, dead_;
  bool dark_ = false;
  std::map<uint32_t, size_t> order_;
};

size_t PairsOf(const World& world, int host) {
  return world.fabric.QueuePairs(World::Device(host, 0)).size();
}

// A device of these settings gives up after 2 s.
WorldOptions PatientWorld(int pairs) {
  WorldOptions options = QuickWorld(1);
  options.settings.insert(options.settings.end(),
                          {"verbs.timeout=16", "verbs.retry_count=7", "verbs.stall_after=1s",
                           "verbs.give_up_after=30s", absl::StrCat("verbs.queue_pairs=", pairs)});
  return options;
}

// A link whose first queue pair's path has just gone dark, and with it those of the next `then`
// that are made.
struct DarkenedLink {
  DarkenedLink(int pairs, int then) : world(PatientWorld(pairs)), paths(world, 1, then) {
    WEFT_CHECK(world.Connect(), world.a->out->status());
    const std::string wrong = Exchange(world, 1);
    WEFT_CHECK(wrong.empty(), wrong);
    paths.GoDark();
    since = world.now();
  }
  World world;
  DeadPaths paths;
  absl::Time since;
};

TEST(VerbsTrial, ReplacementsOnDeadPathsCostMillisecondsEach) {
  DarkenedLink link(1, 12);
  ASSERT_EQ(Exchange(link.world, 2), "");
  EXPECT_LT(link.world.now() - link.since, absl::Milliseconds(200));
}

TEST(VerbsTrial, WhileNoneWorksSparesAreTriedAtOnceAndThenEnded) {
  DarkenedLink link(1, 3);
  World& world = link.world;
  ASSERT_EQ(Exchange(world, 2), "");
  EXPECT_LT(world.now() - link.since, absl::Milliseconds(20)) << "before the first trial was over";
  EXPECT_GE(link.paths.tried(), 5u);
  EXPECT_TRUE(world.Until([&] { return PairsOf(world, 0) == 1 && PairsOf(world, 1) == 1; }));
  EXPECT_EQ(Exchange(world, 3), "");
}

TEST(VerbsTrial, WhileOthersWorkOnlyTheLostOneIsReplaced) {
  DarkenedLink link(2, 0);
  ASSERT_EQ(link.paths.tried(), 2u);
  ASSERT_EQ(Exchange(link.world, 2), "");
  EXPECT_TRUE(link.world.Until([&] { return PairsOf(link.world, 0) == 2; }));
  EXPECT_LE(link.paths.tried(), 3u);
}

// To look for the way there and back can hold up the thread that does it.
TEST(VerbsTrial, NoSparesAreMadeForAPortThatIsDown) {
  World world(PatientWorld(1));
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world, 1), "");
  const std::string device = World::Device(1, 0);
  world.fabric.SetPortActive(device, false);
  NicEvent event;
  event.kind = NicEventKind::kPortDown, event.port = 1;
  world.fabric.PushEvent(device, event);
  int made = 0;
  world.fabric.set_on_call([&](const std::string& call, const std::string& of) {
    made += call == "to_rtr" && of == device ? 1 : 0;
    return absl::OkStatus();
  });
  Traffic traffic(world, 2, 5, 1000);
  const absl::Time start = world.now();
  world.Until([&] {
    traffic.Post();
    return world.now() - start > absl::Milliseconds(100);
  });
  EXPECT_GE(made, 1);
  EXPECT_LE(made, 5) << "those that take the lost one's place, one after the other";
  world.fabric.set_on_call(nullptr);
  world.a->out.reset(), world.b->accepted.reset();
}

}  // namespace
}  // namespace weft::net
