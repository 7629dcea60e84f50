// Multipath over queue pairs, unreliable or reliable ones, under seeded faults: messages lost, held
// (other queue pairs overtake), late completions, queue pairs that fail, calls that fail. Then the
// fabric heals. Every transfer ends, and either all is there, right and once, or a link whose queue
// pairs were lost says so.
//
//   pair_seeds_test [--runs=N] [--seed=S]   one run, from its seed:  --runs=1 --seed=S
#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "net/cc/registry.h"
#include "net/paths/policy.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

uint64_t g_runs = 400;
uint64_t g_seed = 1;

struct Tally {
  uint64_t lost = 0, held = 0, late = 0, failed = 0, calls = 0;
  int complete = 0, named = 0;
};

class Plan {
 public:
  Plan(uint64_t seed, Tally* tally) : random_(seed, 6), tally_(tally) {
    const auto chance = [&](double most) {
      return random_.Below(2) == 0 ? random_.Uniform() * most : 0;
    };
    loss_ = chance(0.15);
    hold_ = chance(0.1);
    late_ = chance(0.1);
    fail_ = random_.Below(4) == 0 ? random_.Uniform() * 0.05 : 0;
    call_ = random_.Below(4) == 0 ? random_.Uniform() * 0.03 : 0;
    one_way_ = random_.Below(4) == 0;
  }
  void Heal() { loss_ = hold_ = late_ = fail_ = call_ = 0; }

  ScriptedFate OnTransfer(const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (one_way_ && absl::StartsWith(transfer.from, "host1")) return fate;
    fate.lost = Strikes(loss_, &tally_->lost);
    if (Strikes(hold_, &tally_->held)) fate.hold_ticks = static_cast<int>(random_.Below(60));
    if (Strikes(late_, &tally_->late)) {
      fate.late_send = static_cast<int>(random_.Below(60));
      fate.late_receive = static_cast<int>(random_.Below(60));
    }
    fate.fails = Strikes(fail_, &tally_->failed);
    fate.arrives = random_.Below(2) == 0;  // of a reliable one: before it failed
    return fate;
  }
  absl::Status OnCall(const std::string& call) {
    const bool may = armed_ && (call == "post_sends" || call == "post_receives" || call == "poll" ||
                                call == "create_queue_pair" || call == "to_rtr");
    if (!may || !Strikes(call == "poll" ? call_ / 50 : call_, &tally_->calls)) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat("scripted: ", call, " failed"));
  }
  void Arm() { armed_ = true; }

 private:
  bool Strikes(double chance, uint64_t* count) {
    if (chance == 0 || random_.Uniform() >= chance) return false;
    ++*count;
    return true;
  }
  Random random_;
  Tally* tally_;
  double loss_ = 0, hold_ = 0, late_ = 0, fail_ = 0, call_ = 0;
  bool one_way_ = false, armed_ = false;
};

std::vector<std::string> DrawSettings(Random& random) {
  constexpr const char* kControllers[] = {"fixed", "dcqcn", "swift", "mswift", "hybrid", "nscc"};
  constexpr const char* kChunks[] = {"0", "1KiB", "8KiB"};
  const auto policies = AllPolicies();
  return {
      absl::StrCat("multipath.wire=", random.Below(2) == 0 ? "uc" : "rc"),
      absl::StrCat("multipath.paths=", 1 + random.Below(8)),
      absl::StrCat("multipath.controller=", kControllers[random.Below(std::size(kControllers))]),
      absl::StrCat("multipath.policy=",
                   std::string(ToString(policies[random.Below(policies.size())]))),
      absl::StrCat("multipath.chunk_bytes=", kChunks[random.Below(std::size(kChunks))]),
      absl::StrCat("multipath.piece_bytes=", random.Below(2) == 0 ? "0" : "64KiB"),
      absl::StrCat("multipath.buffer_bytes=", random.Below(2) == 0 ? "64KiB" : "1MiB")};
}

// "" or what is wrong.
std::string RunSeed(uint64_t seed, Tally* tally) {
  Random random(seed, 8);
  WorldOptions options;
  options.kind = TransportKind::kMultipath;
  options.rails = 1 + static_cast<int>(random.Below(2));
  options.settings = DrawSettings(random);
  World world(options);
  if (!world.a->created().ok()) return absl::StrCat(world.a->created().ToString());
  Plan plan(seed, tally);
  world.fabric.set_on_transfer([&](const ScriptedTransfer& t) { return plan.OnTransfer(t); });
  world.fabric.set_on_call(
      [&](const std::string& call, const std::string&) { return plan.OnCall(call); });
  if (!world.Connect()) return "no link";
  // A link whose first queue pairs cannot be made says so, and is none.
  const bool is_made = world.Until([&] {
    return !world.fabric.QueuePairs(World::Device(0, 0)).empty() &&
           !world.fabric.QueuePairs(World::Device(1, 0)).empty();
  });
  if (!is_made) return "no queue pairs";
  plan.Arm();
  Traffic traffic(world, seed, 12, 60'000);
  const auto done = [&] {
    traffic.Post();
    return traffic.Done();
  };
  bool over = world.Until(done, absl::Seconds(5));
  plan.Heal();
  over = over || world.Until(done, absl::Seconds(60));
  const std::string wrong = traffic.Check();
  if (!wrong.empty()) return wrong;
  if (world.fabric.overruns() > 0) return "a completion queue overran";
  const absl::Status& broken = world.broken();
  if (!over) return absl::StrCat("it does not end; ", broken.ToString());
  if (traffic.AllGood()) {
    ++tally->complete;
    return "";
  }
  ++tally->named;
  const std::string both =
      absl::StrCat(world.a->broken.message(), " / ", world.b->broken.message());
  return absl::StrContains(both, "queue pairs are lost") ? "" : absl::StrCat("unnamed: ", both);
}

TEST(PairSeedsTest, EveryRunEndsWithAllDataOrANamedError) {
  Tally tally;
  for (uint64_t seed = g_seed; seed < g_seed + g_runs; ++seed) {
    const std::string wrong = RunSeed(seed, &tally);
    EXPECT_EQ(wrong, "") << "--runs=1 --seed=" << seed;
    if (!wrong.empty()) break;
  }
  std::printf(
      "%d runs complete, %d ended by name; lost %lu, held %lu, late %lu, failed %lu, calls "
      "%lu\n",
      tally.complete, tally.named, tally.lost, tally.held, tally.late, tally.failed, tally.calls);
}

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const absl::string_view text = argv[i];
    const size_t equals = text.find('=');
    uint64_t value = 0;
    if (equals == absl::string_view::npos || !absl::SimpleAtoi(text.substr(equals + 1), &value)) {
      std::fprintf(stderr, "--runs=N or --seed=S\n");
      return 2;
    }
    (text.substr(0, equals) == "--runs" ? weft::net::g_runs : weft::net::g_seed) = value;
  }
  return RUN_ALL_TESTS();
}
