// One fault at a time: every call of a device failing, every status, every event, completions that
// are lost, late or doubled. Each is survived, or ends in an error that names what it was. The last
// line counts what was covered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "net/verbs/record.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

// What was covered, over all tests of this program.
std::set<std::string>& Covered() {
  static auto* covered = new std::set<std::string>();
  return *covered;
}
class Report final : public testing::Environment {
 public:
  void TearDown() override {
    std::printf("error branches covered: %zu (calls failing, statuses, events, completions)\n",
                Covered().size());
  }
};
[[maybe_unused]] const testing::Environment* const kReport =
    testing::AddGlobalTestEnvironment(new Report());

void Or(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = local[i] | incoming[i];
}

TEST(VerbsFaults, EveryCallMayFailOnceAndAgainWhileALinkIsUp) {
  for (const char* call :
       {"query_port", "query_gids", "create_completion_queue", "create_queue_pair", "to_init",
        "to_rtr", "to_rts", "post_writes", "post_receives", "poll"}) {
    for (const std::string& device : {World::Device(0, 0), World::Device(1, 0)}) {
      World world(QuickWorld());
      int hits = 0, left = 3;
      world.fabric.set_on_call([&](const std::string& name, const std::string& on) {
        if (name != call || on != device || left == 0) return absl::OkStatus();
        ++hits, --left;
        return absl::UnavailableError(absl::StrCat("ibv_", name, " on ", on, ": scripted"));
      });
      // A failing post does not happen on its own: queue pairs are lost, so that more are made.
      ASSERT_TRUE(world.Connect());
      EXPECT_EQ(Exchange(world), "") << call << " on " << device;
      EXPECT_GT(hits, 0) << call << " on " << device;
      Covered().insert(absl::StrCat("call ", call, " ", device));
    }
  }
}

TEST(VerbsFaults, CallsThatFailWhileOpeningNameTheCallAndTheDevice) {
  for (const char* call : {"list", "open", "limits", "query_port", "query_gids"}) {
    ScriptedFabric fabric;
    fabric.set_on_call([&](const std::string& name, const std::string& on) {
      return name == call
                 ? absl::UnavailableError(absl::StrCat("ibv_", name, " on ", on, ": scripted"))
                 : absl::OkStatus();
    });
    ScriptedDeviceOptions device;
    device.name = "host0";
    ScriptedNode node(fabric, 0, {device}, {});
    EXPECT_THAT(std::string(node.created().message()), HasSubstr(absl::StrCat("ibv_", call)));
    Covered().insert(absl::StrCat("opening ", call));
  }
}

TEST(VerbsFaults, MemoryThatCannotBeRegisteredFailsTheLinkOrTheCallByName) {
  World world(QuickWorld());
  world.fabric.set_on_call([&](const std::string& name, const std::string& on) {
    return name == "register"
               ? absl::UnavailableError(absl::StrCat("ibv_reg_mr on ", on, ": no memory"))
               : absl::OkStatus();
  });
  std::vector<uint8_t> bytes(100'000);  // more than goes eagerly
  auto region = world.a->transport().Register(bytes.data(), bytes.size());
  EXPECT_THAT(std::string(region.status().message()), HasSubstr("ibv_reg_mr on host0_rail0"));
  ASSERT_TRUE(world.Connect());
  ASSERT_TRUE(world.Until([&] { return !world.a->out->status().ok(); }));
  EXPECT_THAT(std::string(world.a->out->status().message()), HasSubstr("rank 1"));
  Covered().insert("call register");
}

TEST(VerbsFaults, EveryStatusOnEitherSideIsSurvived) {
  for (int number : {1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 16, 19, 20, 21}) {
    for (const bool arrives : {false, true}) {
      for (const std::string from : {"host0", "host1"}) {
        World world(QuickWorld());
        int left = 2, skip = 5;
        world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
          ScriptedFate fate;
          if (!absl::StartsWith(transfer.from, from) || left == 0 || --skip > 0) return fate;
          fate.fails = true, fate.arrives = arrives;
          fate.status = static_cast<NicStatus>(number);
          --left, skip = 5;
          return fate;
        });
        ASSERT_TRUE(world.Connect());
        EXPECT_EQ(Exchange(world), "") << number << (arrives ? " arrived " : " ") << from;
        EXPECT_EQ(left, 0);
        Covered().insert(absl::StrCat("status ", number, arrives ? " arrived " : " ", from));
      }
    }
  }
}

TEST(VerbsFaults, LostLateAndDoubledCompletionsChangeNothing) {
  const std::pair<const char*, std::function<void(ScriptedFate&)>> kinds[] = {
      {"lost send", [](ScriptedFate& fate) { fate.lose_send = true; }},
      {"lost receive", [](ScriptedFate& fate) { fate.lose_receive = true; }},
      {"lost both", [](ScriptedFate& fate) { fate.lose_send = fate.lose_receive = true; }},
      {"late send", [](ScriptedFate& fate) { fate.late_send = 100; }},
      {"late receive", [](ScriptedFate& fate) { fate.late_receive = 100; }},
      {"twice", [](ScriptedFate& fate) { fate.twice = true; }},
      {"twice and late", [](ScriptedFate& fate) { fate.twice = true, fate.late_receive = 9; }},
      {"held", [](ScriptedFate& fate) { fate.hold_ticks = 300; }},
  };
  for (const auto& kind : kinds) {
    const char* name = kind.first;
    const auto& make = kind.second;
    for (const std::string from : {"host0", "host1"}) {
      World world(QuickWorld());
      int left = 5;
      uint64_t count = 0;
      world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
        ScriptedFate fate;
        if (absl::StartsWith(transfer.from, from) && left > 0 && ++count % 4 == 0) {
          make(fate), --left;
        }
        return fate;
      });
      ASSERT_TRUE(world.Connect());
      EXPECT_EQ(Exchange(world), "") << name << " " << from;
      EXPECT_EQ(left, 0) << name << " " << from;
      Covered().insert(absl::StrCat("completion ", name, " ", from));
    }
  }
}

TEST(VerbsFaults, EventsAreSurvived) {
  for (NicEventKind kind : {NicEventKind::kPortDown, NicEventKind::kPortUp,
                            NicEventKind::kAddressChanged, NicEventKind::kQueuePairFatal,
                            NicEventKind::kCompletionQueueLost, NicEventKind::kDeviceLost}) {
    for (int host : {0, 1}) {
      World world(QuickWorld());
      ASSERT_TRUE(world.Connect());
      ASSERT_EQ(Exchange(world, 1), "");
      NicEvent event;
      event.kind = kind, event.port = 1;
      const auto pairs = world.fabric.QueuePairs(World::Device(host, 0));
      ASSERT_FALSE(pairs.empty());
      event.queue_pair = pairs[0];
      world.fabric.PushEvent(World::Device(host, 0), event);
      EXPECT_EQ(Exchange(world, 2), "") << static_cast<int>(kind) << " host " << host;
      Covered().insert(absl::StrCat("event ", static_cast<int>(kind), " ", host));
    }
  }
}

TEST(VerbsFaults, ALostDeviceLeavesTheOtherRailToCarryAll) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world, 1), "");
  NicEvent event;
  event.kind = NicEventKind::kDeviceLost;
  world.fabric.PushEvent(World::Device(0, 0), event);
  ASSERT_EQ(Exchange(world, 2), "");
  const uint64_t before = world.fabric.bytes_from(World::Device(0, 0));
  ASSERT_EQ(Exchange(world, 3), "");
  EXPECT_EQ(world.fabric.bytes_from(World::Device(0, 0)), before);
  EXPECT_TRUE(world.fabric.QueuePairs(World::Device(0, 0)).empty());
}

TEST(VerbsFaults, ASingleDeviceWhoseQueuePairsAllFailComesBack) {
  World world(QuickWorld(1));
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world, 1), "");
  // For a third of the limit nothing gets through, then all does.
  const absl::Time until = world.now() + absl::Milliseconds(300);
  world.fabric.set_on_transfer([&](const ScriptedTransfer&) {
    ScriptedFate fate;
    fate.fails = world.now() < until, fate.arrives = false;
    return fate;
  });
  EXPECT_EQ(Exchange(world, 2), "");
  EXPECT_GT(world.now(), until);
}

TEST(VerbsFaults, WhenNothingIsLeftTheErrorNamesEverythingWithinTheLimit) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world, 1), "");
  world.fabric.set_on_transfer([](const ScriptedTransfer&) {
    ScriptedFate fate;
    fate.fails = true, fate.arrives = false;
    return fate;
  });
  const absl::Time start = world.now();
  std::string text;
  {
    Traffic traffic(world, 5, 10, 50000);
    ASSERT_TRUE(world.Until([&] {
      traffic.Post();
      return traffic.Done();
    }));
    text = std::string(traffic.FirstError().message());
    world.a->out.reset(), world.b->accepted.reset();
  }
  EXPECT_LT(world.now() - start, absl::Seconds(2)) << "verbs.give_up_after is 1 s";
  for (const char* part :
       {"rank 1", "host ", "host0_rail", "host1_rail", "GID ::ffff:10.0.", "queue pair ",
        "source port ", "transport retry counter exceeded (error 12)", "tried ", "for 1s",
        "verbs.give_up_after", "likely cause: ", "verbs.timeout 8"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// Both processes were stopped while nothing got through: that is not silence.
TEST(VerbsFaults, AStallDoesNotCountTowardsTheLimit) {
  for (const bool comes_back : {true, false}) {
    World world(QuickWorld());
    ASSERT_TRUE(world.Connect());
    bool is_dead = true;
    world.fabric.set_on_transfer([&](const ScriptedTransfer&) {
      ScriptedFate fate;
      fate.fails = is_dead, fate.arrives = !is_dead;
      return fate;
    });
    Traffic traffic(world, 11, 10, 50000);
    const auto is_over = [&] {
      traffic.Post();
      return traffic.Done();
    };
    for (int stop = 0; stop < 2; ++stop) {
      ASSERT_FALSE(world.Until(is_over, absl::Milliseconds(400)));
      world.Stall(absl::Seconds(20));
    }
    is_dead = !comes_back;
    const absl::Time start = world.now();
    ASSERT_TRUE(world.Until(is_over));
    EXPECT_EQ(traffic.AllGood(), comes_back) << traffic.FirstError();
    if (comes_back) {
      EXPECT_EQ(traffic.Check(), "");
      continue;
    }
    EXPECT_LT(world.now() - start, absl::Seconds(1)) << "of verbs.give_up_after, 800 ms had passed";
    EXPECT_THAT(std::string(traffic.FirstError().message()), HasSubstr("verbs.give_up_after"));
  }
}

// ---- Quiet links

// Staging memory and clear-to-send wait for a turn of the wire, which nothing else brings.
TEST(VerbsQuiet, AReducingReceiveOnAnIdleLinkIsAnnounced) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  for (int i = 0; i < 2000; ++i) world.Turn();
  constexpr size_t kBytes = 50000;
  std::vector<std::byte> local(kBytes, std::byte{2});
  Request send, receive;
  RegisteredBuffers buffers(world, kBytes, std::byte{1});
  ReceiveTarget target{buffers.to_region.view(), local.data(), Or};
  ASSERT_EQ(world.b->accepted->PostReceive({7, 0}, target, &receive), Posted::kAccepted);
  ASSERT_EQ(world.a->out->PostSend({7, 0}, buffers.from_region.view(), &send), Posted::kAccepted);
  EXPECT_TRUE(world.Until([&] { return send.done() && receive.done(); }, absl::Seconds(5)));
  world.a->out.reset(), world.b->accepted.reset();
  EXPECT_TRUE(receive.status().ok()) << receive.status();
  EXPECT_EQ(buffers.to, std::vector<std::byte>(kBytes, std::byte{3}));
}

// ---- Mismatches

// Clear-to-sends that wait for room on dead paths do not ask for it again and again.
TEST(VerbsQuiet, AFullRingIsWaitedForAsleep) {
  WorldOptions options = QuickWorld();
  options.settings.push_back("verbs.give_up_after=1h");
  constexpr size_t kCount = kRingSlots + 50, kBytes = 100'000;
  std::deque<Request> receives(kCount);
  World world(options);
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world), "");
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (transfer.from == World::Device(1, 0) || transfer.from == World::Device(1, 1)) {
      fate.hold_ticks = 1 << 30;
    }
    return fate;
  });
  RegisteredBuffers buffers(world, kBytes);
  for (Request& receive : receives) {
    ASSERT_EQ(world.b->accepted->PostReceive({1, 0}, {buffers.to_region.view()}, &receive),
              Posted::kAccepted);
  }
  EXPECT_TRUE(world.Sleeps(*world.b));
  world.a->out.reset(), world.b->accepted.reset();
}

// A send whose memory is given back before it has gone is the caller's mistake, and named. It waits
// for room here, and there is more to be said of what came meanwhile.
TEST(VerbsFaults, ASendOfMemoryThatIsRegisteredNoMoreBreaksTheLinkByName) {
  // Two do not go at once; and neither shares a page with the other, or is cut.
  constexpr size_t kBytes = 160 << 10, kMore = kRingSlots / 2;
  std::deque<Request> sends(2), receives(2 + kMore);
  WorldOptions options = QuickWorld(1);
  options.settings.insert(options.settings.end(), {"verbs.queue_pairs=1", "verbs.piece_max=256KiB",
                                                   "verbs.piece_min=256KiB"});
  World world(options);
  ASSERT_TRUE(world.Connect());
  for (int turn = 0; turn < 100; ++turn) world.Turn();
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (transfer.from == World::Device(0, 0)) fate.hold_ticks = 100;
    return fate;
  });
  RegisteredBuffers good(world, kBytes), bad(world, kBytes);
  const auto receive = [&](size_t i, uint64_t tag) {
    EXPECT_EQ(world.b->accepted->PostReceive({tag, 0}, {good.to_region.view()}, &receives[i]),
              Posted::kAccepted);
  };
  for (size_t i = 0; i < 2; ++i) {
    const Region& from = i == 0 ? good.from_region : bad.from_region;
    ASSERT_EQ(world.a->out->PostSend({1, 0}, from.view(), &sends[i]), Posted::kAccepted);
    receive(i, 1);
  }
  for (int turn = 0; turn < 10; ++turn) world.Turn();
  bad.from_region = Region();
  for (size_t i = 0; i < kMore; ++i) receive(2 + i, 2);
  ASSERT_TRUE(world.Until([&] { return !world.a->broken.ok(); }, absl::Seconds(5)));
  EXPECT_THAT(std::string(world.a->broken.message()), HasSubstr("not registered (any more)"));
  world.a->out.reset(), world.b->accepted.reset();
  EXPECT_TRUE(sends[0].status().ok()) << sends[0].status();
  EXPECT_FALSE(sends[1].status().ok());
}

TEST(VerbsMismatch, OtherLinkLayersFamiliesAndVersionsAreNamedAtOnce) {
  const std::tuple<const char*, std::function<void(ScriptedDeviceOptions&)>, const char*,
                   const char*>
      cases[] = {
          {"link layer", [](ScriptedDeviceOptions& d) { d.ethernet = false; }, "InfiniBand",
           "Ethernet"},
          {"family", [](ScriptedDeviceOptions& d) { d.ipv6 = true; }, "IPv6", "IPv4"},
      };
  for (const auto& [name, change, theirs, ours] : cases) {
    WorldOptions options = QuickWorld();
    options.tweak = [&, change = change](int host, std::vector<ScriptedDeviceOptions>* devices) {
      for (auto& device : *devices) {
        if (host == 0) change(device);
      }
    };
    World world(options);
    const absl::Time start = world.now();
    ASSERT_TRUE(world.Connect());
    EXPECT_LT(world.now() - start, absl::Seconds(1));
    const std::string text(world.a->out->status().message());
    EXPECT_THAT(text, HasSubstr(theirs)) << name;
    EXPECT_THAT(text, HasSubstr(ours)) << name;
    EXPECT_THAT(text, HasSubstr("rank 1")) << name;
    EXPECT_EQ(world.b->accepted, nullptr);
    Covered().insert(absl::StrCat("mismatch ", name));
  }
}

}  // namespace
}  // namespace weft::net
