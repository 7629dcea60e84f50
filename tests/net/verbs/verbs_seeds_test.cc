// Seeded runs with faults of every kind. Whatever is drawn: every transfer ends, and either all is
// there, right and once, or the error says where and why. Time is the test's own, so a hang shows
// as a run that does not end within minutes of that time.
//
//   verbs_seeds_test [--runs=N] [--seed=S]   one run, from its seed:  --runs=1 --seed=S
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

uint64_t g_runs = 150;
uint64_t g_seed = 1;

enum Fault {
  kStatus,
  kAcknowledgementLost,
  kHeld,
  kSendLost,
  kReceiveLost,
  kLate,
  kTwice,
  kCall,
  kEvent,
  kFaults
};
constexpr const char* kFaultNames[kFaults] = {"status",
                                              "lost acknowledgement",
                                              "held",
                                              "lost send completion",
                                              "lost receive completion",
                                              "late",
                                              "twice",
                                              "call",
                                              "event"};
constexpr NicStatus kStatuses[] = {NicStatus::kLocalLength,
                                   NicStatus::kLocalOperation,
                                   NicStatus::kLocalProtection,
                                   NicStatus::kFlushed,
                                   NicStatus::kBadResponse,
                                   NicStatus::kLocalAccess,
                                   NicStatus::kRemoteInvalidRequest,
                                   NicStatus::kRemoteAccess,
                                   NicStatus::kRemoteOperation,
                                   NicStatus::kRetryExceeded,
                                   NicStatus::kReceiverNotReady,
                                   NicStatus::kRemoteAborted,
                                   NicStatus::kFatal,
                                   NicStatus::kResponseTimeout,
                                   NicStatus::kGeneral};

struct Tally {
  int complete = 0, named = 0;
  std::array<uint64_t, kFaults> injected{};
  uint64_t queue_pairs = 0;
};

// Draws what goes wrong. After `heals_after` faults nothing does any more, unless the run is one of
// those that nothing survives.
class Plan {
 public:
  Plan(uint64_t seed, Tally* tally) : random_(seed, 5), tally_(tally) {
    for (double& chance : chance_) {
      chance = random_.Below(3) == 0 ? random_.Uniform() * 0.08 : 0;
    }
    fatal_ = random_.Below(8) == 0;
    heals_after_ = fatal_ ? ~uint64_t{0} : random_.Below(60);
    dies_at_ = 20 + random_.Below(300);
  }
  bool fatal() const { return fatal_; }

  ScriptedFate OnTransfer() {
    ScriptedFate fate;
    if (fatal_ && ++transfers_ > dies_at_) {
      fate.fails = true;
      fate.arrives = false;
      return fate;
    }
    if (Strikes(kStatus)) {
      fate.fails = true;
      fate.status = kStatuses[random_.Below(std::size(kStatuses))];
      fate.arrives = random_.Below(2) == 0;
    }
    if (Strikes(kAcknowledgementLost)) fate.fails = true;
    if (Strikes(kHeld)) fate.hold_ticks = static_cast<int>(random_.Below(40));
    if (Strikes(kSendLost)) fate.lose_send = true;
    if (Strikes(kReceiveLost)) fate.lose_receive = true;
    if (Strikes(kLate)) {
      fate.late_send = static_cast<int>(random_.Below(60));
      fate.late_receive = static_cast<int>(random_.Below(60));
    }
    if (Strikes(kTwice)) fate.twice = true;
    return fate;
  }

  absl::Status OnCall(const std::string& call) {
    // Memory that cannot be registered ends a link, as it must; that has a test of its own.
    if (!armed_ || call == "register" || !Strikes(kCall)) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("scripted: ", call, " failed"));
  }
  void Arm() { armed_ = true; }  // calls may fail from now on

  void Events(World& world, int rails) {
    if (!Strikes(kEvent)) return;
    const std::string device =
        World::Device(static_cast<int>(random_.Below(2)), static_cast<int>(random_.Below(rails)));
    NicEvent event;
    event.port = 1;
    const auto pairs = world.fabric.QueuePairs(device);
    switch (random_.Below(5)) {
      case 0:
        event.kind = NicEventKind::kPortDown;
        break;
      case 1:
        event.kind = NicEventKind::kPortUp;
        break;
      case 2:
        event.kind = NicEventKind::kAddressChanged;
        break;
      case 3:
        event.kind = NicEventKind::kQueuePairFatal;
        if (!pairs.empty()) event.queue_pair = pairs[random_.Below(pairs.size())];
        break;
      default:
        event.kind = NicEventKind::kCompletionQueueLost;
    }
    world.fabric.PushEvent(device, event);
  }

 private:
  bool Strikes(Fault fault) {
    if (faults_ >= heals_after_ || chance_[fault] == 0) return false;
    if (random_.Uniform() >= chance_[fault]) return false;
    ++faults_;
    ++tally_->injected[fault];
    return true;
  }

  Random random_;
  Tally* tally_;
  std::array<double, kFaults> chance_{};
  bool fatal_ = false, armed_ = false;
  uint64_t heals_after_ = 0, dies_at_ = 0, faults_ = 0, transfers_ = 0;
};

// An error that a person can act upon.
void ExpectNamed(const absl::Status& status) {
  const std::string text(status.message());
  EXPECT_TRUE(absl::StrContains(text, "rank ")) << text;
  // What failed here, or what the other side said of it; a lost connection says the rest there.
  const bool says = absl::StrContains(text, "likely cause") ||
                    absl::StrContains(text, "closed the link") ||
                    absl::StrContains(text, "see its log");
  EXPECT_TRUE(says) << text;
}

void RunOne(uint64_t seed, Tally* tally) {
  Random random(seed, 1);
  Plan plan(seed, tally);
  WorldOptions options;
  options.rails = 1 + static_cast<int>(random.Below(3));
  options.settings = {absl::StrCat("verbs.queue_pairs=", 1 + random.Below(4)),
                      absl::StrCat("verbs.retry_count=", random.Below(8)),
                      absl::StrCat("verbs.piece_min=", 4 + 4 * random.Below(8), "KiB"),
                      absl::StrCat("verbs.piece_max=", 32 + 32 * random.Below(4), "KiB"),
                      absl::StrCat("verbs.eager_max=", std::array{0, 200, 4096}[random.Below(3)]),
                      "verbs.timeout=8",
                      "verbs.stall_after=20ms",
                      "verbs.give_up_after=2s"};
  World world(options);
  ASSERT_TRUE(world.a->created().ok() && world.b->created().ok());
  world.fabric.set_on_transfer([&](const ScriptedTransfer&) { return plan.OnTransfer(); });
  world.fabric.set_on_call(
      [&](const std::string& call, const std::string&) { return plan.OnCall(call); });
  // Requests and memory live longer than the links.
  Traffic traffic(world, seed, 12 + static_cast<int>(random.Below(20)), 300000);
  plan.Arm();
  ASSERT_TRUE(world.Connect());
  const bool ended = world.Until([&] {
    traffic.Post();
    plan.Events(world, options.rails);
    return traffic.Done();
  });
  const bool good = traffic.AllGood();
  const absl::Status error = traffic.FirstError();
  world.a->out.reset();
  world.b->accepted.reset();
  ASSERT_TRUE(ended) << "it hangs";
  EXPECT_EQ(traffic.Check(), "");
  EXPECT_EQ(world.fabric.overruns(), 0);
  EXPECT_EQ(world.fabric.not_ready(), 0);
  if (good) {
    ++tally->complete;
  } else {
    ++tally->named;
    ExpectNamed(error);
    EXPECT_TRUE(plan.fatal()) << "what healed was given up: " << error;
  }
}

TEST(VerbsSeeds, EveryTransferIsCompleteAndRightOrItsErrorIsNamed) {
  Tally tally;
  for (uint64_t i = 0; i < g_runs; ++i) {
    SCOPED_TRACE(absl::StrCat("--runs=1 --seed=", g_seed + i));
    RunOne(g_seed + i, &tally);
    if (HasFatalFailure() || HasNonfatalFailure()) break;
  }
  std::printf("%llu runs: %d complete and right, %d with a named error, 0 hangs; injected:",
              static_cast<unsigned long long>(g_runs), tally.complete, tally.named);
  for (int fault = 0; fault < kFaults; ++fault) {
    std::printf(" %s %llu%s", kFaultNames[fault],
                static_cast<unsigned long long>(tally.injected[static_cast<size_t>(fault)]),
                fault + 1 < kFaults ? "," : "\n");
  }
}

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    const bool ok =
        absl::StartsWith(word, "--runs=")   ? absl::SimpleAtoi(word.substr(7), &weft::net::g_runs)
        : absl::StartsWith(word, "--seed=") ? absl::SimpleAtoi(word.substr(7), &weft::net::g_seed)
                                            : false;
    if (!ok) {
      std::fprintf(stderr, "unknown: %s; --runs=N, --seed=S\n", argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
