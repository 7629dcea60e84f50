// One fault at a time: every call of a device failing, every status, every event, completions that
// are lost, late or doubled. Each is survived, or ends in an error that names what it was. The last
// line counts what was covered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "net/verbs/memory.h"
#include "net/verbs/verbs_transport.h"
#include "tests/net/verbs/world.h"
#include "topology/ecmp/roce.h"

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
  std::vector<uint8_t> bytes(1000);
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

// ---- Quiet links

// Staging memory and clear-to-send wait for a turn of the wire, which nothing else brings.
TEST(VerbsQuiet, ACombinedReceiveOnAnIdleLinkIsAnnounced) {
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

// ---- Striping and paths

TEST(VerbsStriping, AFasterRailCarriesMoreByItsSpeed) {
  WorldOptions options = QuickWorld();
  options.settings.push_back("verbs.piece_min=64KiB");
  options.settings.push_back("verbs.piece_max=64KiB");
  options.step = absl::Microseconds(100);
  World world(options);
  ASSERT_TRUE(world.Connect());
  world.fabric.SetRate(World::Device(0, 0), 3e9);
  world.fabric.SetRate(World::Device(0, 1), 1e9);
  std::vector<uint8_t> from(32 << 20), to(from.size());
  auto source = world.a->transport().Register(from.data(), from.size());
  auto target = world.b->transport().Register(to.data(), to.size());
  Request send, receive;
  for (int round = 0; round < 4; ++round) {
    const uint64_t before[2] = {world.fabric.bytes_from(World::Device(0, 0)),
                                world.fabric.bytes_from(World::Device(0, 1))};
    const absl::Time start = world.now();
    ASSERT_EQ(world.a->out->PostSend({1, 1}, source->view(), &send), Posted::kAccepted);
    ASSERT_EQ(world.b->accepted->PostReceive({1, 1}, {target->view()}, &receive),
              Posted::kAccepted);
    ASSERT_TRUE(world.Until([&] { return send.done() && receive.done(); }));
    ASSERT_TRUE(receive.status().ok()) << receive.status();
    if (round == 0) continue;  // learns
    const double fast =
        static_cast<double>(world.fabric.bytes_from(World::Device(0, 0)) - before[0]);
    const double slow =
        static_cast<double>(world.fabric.bytes_from(World::Device(0, 1)) - before[1]);
    EXPECT_NEAR(fast / (fast + slow), 0.75, 0.05);
    const double rate = (fast + slow) / absl::ToDoubleSeconds(world.now() - start);
    EXPECT_GT(rate, 0.9 * 4e9) << "of the sum of both";
  }
}

TEST(VerbsPaths, EveryQueuePairHasAPortOfItsOwnAndAReplacementAnother) {
  WorldOptions options = QuickWorld(1);
  options.settings.push_back("verbs.queue_pairs=4");
  World world(options);
  std::map<uint32_t, uint32_t> labels;  // by queue pair
  bool fail = false;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    if (transfer.from == World::Device(0, 0)) labels[transfer.queue_pair] = transfer.flow_label;
    ScriptedFate fate;
    fate.fails = std::exchange(fail, false);
    return fate;
  });
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world), "");
  ASSERT_EQ(labels.size(), 4u);
  std::set<uint16_t> ports;
  for (const auto& [pair, label] : labels) ports.insert(topology::RoceSourcePort(label));
  EXPECT_EQ(ports.size(), 4u);
  const std::string described = world.a->out->Describe();
  for (uint16_t port : ports) {
    EXPECT_THAT(described, HasSubstr(absl::StrCat("source port ", port)));
  }
  fail = true;
  for (uint64_t round = 2; round < 30 && labels.size() < 5; ++round) {
    ASSERT_EQ(Exchange(world, round), "");
  }
  ASSERT_EQ(labels.size(), 5u);
  for (const auto& [pair, label] : labels) ports.insert(topology::RoceSourcePort(label));
  EXPECT_EQ(ports.size(), 5u);
}

TEST(VerbsPaths, DevicesAreToldTheirPortsWhereThatIsAskedFor) {
  for (const bool asked : {false, true}) {
    WorldOptions options = QuickWorld(1);
    if (asked) options.settings.push_back("verbs.source_port_by=mlx5dv");
    World world(options);
    std::set<uint16_t> told, by_label;
    world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
      told.insert(transfer.udp_source_port);
      by_label.insert(topology::RoceSourcePort(transfer.flow_label));
      return ScriptedFate{};
    });
    ASSERT_TRUE(world.Connect());
    ASSERT_EQ(Exchange(world), "");
    EXPECT_EQ(told, asked ? by_label : std::set<uint16_t>{0});
  }
}

TEST(VerbsFaults, ALinkTellsWhatEachOfItsLanesCarriedAndSentAgain) {
  World world(QuickWorld());
  int left = 1;
  std::set<uint32_t> labels;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (!absl::StartsWith(transfer.from, "host0")) return fate;
    labels.insert(transfer.flow_label);
    fate.fails = transfer.length > 4000 && left-- > 0, fate.arrives = false;
    return fate;
  });
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world), "");
  for (int turn = 0; turn < 20; ++turn) world.Turn();  // nothing is under way any more
  const std::vector<LaneReport> lanes = world.a->out->Lanes();
  ASSERT_EQ(lanes.size(), 2u);
  uint64_t bytes = 0, again = 0;
  for (const LaneReport& lane : lanes) {
    EXPECT_THAT(lane.name,
                testing::AllOf(HasSubstr("host0_rail"), HasSubstr(" -> ::ffff:10.0.1.")));
    EXPECT_EQ(labels.count(topology::RoceFlowLabel(static_cast<uint16_t>(lane.source_port))), 1u);
    ASSERT_TRUE(lane.rtt.has_value());
    bytes += lane.bytes;
    again += *lane.retransmissions;
  }
  uint64_t left_the_host = 0;
  for (int rail : {0, 1}) left_the_host += world.fabric.bytes_from(World::Device(0, rail));
  EXPECT_EQ(bytes, left_the_host);
  EXPECT_GT(again, 0u);
}

TEST(VerbsFaults, ReceiversSendInATrafficClassOfTheirOwn) {
  WorldOptions options = QuickWorld();
  options.settings.insert(options.settings.end(),
                          {"verbs.traffic_class=106", "verbs.clear_to_send_traffic_class=184"});
  World world(options);
  std::set<int> data, clear_to_sends;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    (absl::StartsWith(transfer.from, "host0") ? data : clear_to_sends)
        .insert(transfer.traffic_class);
    return ScriptedFate{};
  });
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world), "");
  EXPECT_EQ(data, std::set<int>{106});
  EXPECT_EQ(clear_to_sends, std::set<int>{184});
}

// ---- Memory

TEST(VerbsMemory, OverlappingRegistrationsAreCountedAndNoneIsKept) {
  ScriptedFabric fabric;
  auto nic = fabric.MakeNic({ScriptedDeviceOptions{}});
  auto device = nic->Open("scripted0");
  ASSERT_TRUE(device.ok());
  MemoryCache cache({device->get()}, true);
  std::vector<uint8_t> bytes(1 << 20);
  auto whole = cache.Acquire(bytes.data(), bytes.size());
  auto part = cache.Acquire(bytes.data() + 5000, 100);
  ASSERT_TRUE(whole.ok() && part.ok());
  EXPECT_EQ(*whole, *part);
  EXPECT_EQ(fabric.registrations(), 1u);
  cache.Release(*whole);
  EXPECT_EQ(cache.Find(bytes.data(), bytes.size()), *part) << "still in use";
  cache.Release(*part);
  EXPECT_EQ(cache.Find(bytes.data(), 1), nullptr);
  EXPECT_EQ(fabric.registrations(), 0u);
  // A longer one that begins before a shorter one is found past it.
  auto small = cache.Acquire(bytes.data() + 8192, 10);
  auto large = cache.Acquire(bytes.data(), bytes.size());
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(cache.Find(bytes.data() + 500000, 1000), *large);
}

// A device may be at a page by the keys of another registration, which Find() took: it stays valid
// until the memory that was asked for is released too, and is given to nobody else.
TEST(VerbsMemory, RegistrationsThatSharePagesStayValidUntilBothAreReleased) {
  ScriptedFabric fabric;
  auto nic = fabric.MakeNic({ScriptedDeviceOptions{}});
  auto device = nic->Open("scripted0");
  ASSERT_TRUE(device.ok());
  MemoryCache cache({device->get()}, true);
  std::vector<std::byte> memory(5 * 4096);
  std::byte* page = memory.data() + (4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096);
  const MemoryCache::Entry* small = *cache.Acquire(page + 100, 200);
  const MemoryCache::Entry* large = *cache.Acquire(page, 3 * 4096);
  ASSERT_NE(small, large);
  ASSERT_EQ(cache.Find(page + 100, 200), large) << "the newest that holds it";
  cache.Release(large);
  EXPECT_EQ(fabric.registrations(), 2u);
  EXPECT_EQ(cache.Find(page + 100, 200), small);
  EXPECT_EQ(cache.Find(page + 4096, 10), nullptr) << "pages that were given back";
  const MemoryCache::Entry* again = *cache.Acquire(page + 4096, 4096);
  EXPECT_NE(again, large);
  EXPECT_EQ(fabric.registrations(), 3u);
  cache.Release(small);
  EXPECT_EQ(fabric.registrations(), 2u) << "the first one still shares a page";
  cache.Release(again);
  EXPECT_EQ(fabric.registrations(), 0u);
}

}  // namespace
}  // namespace weft::net
