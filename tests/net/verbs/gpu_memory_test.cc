// Memory of GPUs over scripted devices: no byte of it is touched by this processor, what has come
// is seen once it was flushed, and every way of a flush to fail.
#include "tests/net/verbs/gpu_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kBytes = 1 << 20;

WorldOptions Quick(int rails = 2) {
  WorldOptions options;
  options.rails = rails;
  options.settings = {"verbs.timeout=8",      "verbs.retry_count=3",   "verbs.give_up_after=1s",
                      "verbs.piece_min=4KiB", "verbs.piece_max=16KiB", "verbs.queue_pairs=4"};
  return options;
}

// A link from one GPU's memory to another's.
class GpuWorld {
 public:
  explicit GpuWorld(const WorldOptions& options = Quick()) : world(options) {
    EXPECT_TRUE(world.Connect());
    EXPECT_TRUE(world.Until([&] { return world.b->accepted != nullptr; }));
    from_region = *world.a->transport().RegisterDevice(from.memory());
    to_region = *world.b->transport().RegisterDevice(to.memory());
    from.CloseDescriptor();  // as NCCL does
    to.CloseDescriptor();
    from.Fill(1);
  }
  ~GpuWorld() {
    world.fabric.set_on_transfer(nullptr);
    world.fabric.set_on_call(nullptr);
    world.a->out.reset();
    world.b->accepted.reset();
  }

  // False when it does not come, or with an error.
  bool Carry(RegionView source, RegionView target) {
    Request send, receive;
    EXPECT_EQ(world.b->accepted->PostReceive({1, 0}, {.out = target}, &receive), Posted::kAccepted);
    EXPECT_EQ(world.a->out->PostSend({1, 0}, source, &send), Posted::kAccepted);
    const bool came = world.Until([&] { return send.done() && receive.done(); });
    EXPECT_TRUE(!came || receive.status().ok()) << receive.status();
    return came && send.status().ok() && receive.status().ok();
  }
  bool Carry(size_t bytes) {
    return Carry(from_region.view().Slice(0, bytes), to_region.view().Slice(0, bytes));
  }
  absl::Status Flush(absl::Duration limit = absl::Seconds(60)) {
    Request flush;
    world.b->accepted->Flush(to_region.view(), &flush);
    if (!world.Until([&] { return flush.done(); }, limit)) {
      world.b->accepted.reset();
      return absl::UnknownError("it hangs");
    }
    return flush.status();
  }
  bool Same(size_t bytes) const { return std::memcmp(from.seen(), to.seen(), bytes) == 0; }

  World world;
  GpuMemory from{kBytes}, to{kBytes};
  Region from_region, to_region;
};

// Counts reads; those that `fate` says something of end so.
int CountReads(GpuWorld& gpus, int* reads, std::function<ScriptedFate(int)> fate = nullptr) {
  gpus.world.fabric.set_on_transfer([reads, fate](const ScriptedTransfer& transfer) {
    if (!transfer.is_read) return ScriptedFate{};
    ++*reads;
    return fate ? fate(*reads) : ScriptedFate{};
  });
  return *reads;
}

TEST(GpuMemoryTest, WhatHasComeIsSeenOnceItWasFlushed) {
  for (size_t bytes : {size_t{1}, size_t{128}, size_t{129}, size_t{70000}, kBytes}) {
    GpuWorld gpus;
    ASSERT_TRUE(gpus.Carry(bytes));
    EXPECT_GT(gpus.world.fabric.unseen_writes(), 0u) << "nothing was left to be flushed";
    ASSERT_TRUE(gpus.Flush().ok());
    EXPECT_TRUE(gpus.Same(bytes)) << bytes;
    EXPECT_EQ(gpus.world.fabric.unseen_writes(), 0u) << "a rail was left out";
  }
}

TEST(GpuMemoryTest, EmptyMessagesAreMessages) {
  GpuWorld gpus;
  EXPECT_TRUE(gpus.Carry(0));
}

TEST(GpuMemoryTest, EitherEndMayBeHostMemory) {
  std::vector<uint8_t> host(kBytes), back(kBytes);
  for (size_t i = 0; i < kBytes; ++i) host[i] = static_cast<uint8_t>(i * 11);
  GpuWorld gpus;
  auto host_region = gpus.world.a->transport().Register(host.data(), kBytes);
  auto back_region = gpus.world.b->transport().Register(back.data(), kBytes);
  ASSERT_TRUE(host_region.ok() && back_region.ok());
  for (size_t bytes : {size_t{5}, size_t{128}, size_t{100000}}) {
    ASSERT_TRUE(
        gpus.Carry(host_region->view().Slice(0, bytes), gpus.to_region.view().Slice(0, bytes)));
    ASSERT_TRUE(gpus.Flush().ok());
    EXPECT_EQ(std::memcmp(host.data(), gpus.to.seen(), bytes), 0) << bytes;
    ASSERT_TRUE(
        gpus.Carry(gpus.from_region.view().Slice(0, bytes), back_region->view().Slice(0, bytes)));
    EXPECT_EQ(std::memcmp(back.data(), gpus.from.seen(), bytes), 0) << bytes;
  }
}

// No processor writes a GPU's memory: what has come eagerly is written there by the sender's NIC.
TEST(GpuMemoryTest, AnEagerMessageForAGpuIsGivenBackAndSentThereAndItIsTheLast) {
  for (size_t bytes : {size_t{0}, size_t{5}, size_t{128}, size_t{129}, size_t{4000}}) {
    SCOPED_TRACE(bytes);
    GpuWorld gpus;
    std::vector<uint8_t> host(kBytes);
    for (size_t i = 0; i < kBytes; ++i) host[i] = static_cast<uint8_t>(i * 11 + 1);
    auto host_region = gpus.world.a->transport().Register(host.data(), kBytes);
    ASSERT_TRUE(host_region.ok());
    const RegionView source = host_region->view().Slice(0, bytes);
    Request send, second, receive;
    ASSERT_EQ(gpus.world.a->out->PostSend({1, 0}, source, &send), Posted::kAccepted);
    ASSERT_TRUE(gpus.world.Until([&] { return send.done(); }));
    ASSERT_EQ(gpus.world.b->accepted->PostReceive(
                  {1, 0}, {.out = gpus.to_region.view().Slice(0, bytes)}, &receive),
              Posted::kAccepted);
    ASSERT_TRUE(gpus.world.Until([&] { return receive.done(); }, absl::Seconds(5)));
    ASSERT_TRUE(receive.status().ok()) << receive.status();
    ASSERT_TRUE(gpus.Flush().ok());
    EXPECT_EQ(std::memcmp(host.data(), gpus.to.seen(), bytes), 0);
    if (bytes == 0) continue;
    for (int i = 0; i < 100; ++i) gpus.world.Turn();
    ASSERT_EQ(gpus.world.a->out->PostSend({1, 0}, source, &second), Posted::kAccepted);
    gpus.world.Until([] { return false; }, absl::Seconds(1));
    EXPECT_FALSE(second.done());
    gpus.world.a->out.reset();
  }
}

// Receives that expect eager messages hold their clear-to-sends back no longer.
TEST(GpuMemoryTest, ASmallSendOfAGpusMemoryEndsEagerMessages) {
  GpuWorld gpus;
  std::vector<uint8_t> back(kBytes);
  auto back_region = gpus.world.b->transport().Register(back.data(), kBytes);
  ASSERT_TRUE(back_region.ok());
  const auto carry = [&] {
    return gpus.Carry(gpus.from_region.view().Slice(0, 64), back_region->view().Slice(0, 64));
  };
  ASSERT_TRUE(carry());
  const absl::Time start = gpus.world.now();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(carry());
  EXPECT_LT(gpus.world.now() - start, absl::Milliseconds(50));  // of the test's own time
}

TEST(GpuMemoryTest, WhatCannotBeWithoutAProcessorIsRefused) {
  GpuWorld gpus;
  Request receive;
  std::vector<std::byte> local(1000);
  const ReceiveTarget target = {.out = gpus.to_region.view().Slice(0, 1000),
                                .local = local.data(),
                                .reduce = [](std::byte*, const std::byte*, const std::byte*,
                                             size_t) { FAIL() << "it was reduced"; }};
  EXPECT_EQ(gpus.world.b->accepted->PostReceive({1, 0}, target, &receive), Posted::kAccepted);
  ASSERT_TRUE(gpus.world.Until([&] { return receive.done(); }));
  EXPECT_THAT(std::string(receive.status().message()), HasSubstr("reduces"));
}

TEST(GpuMemoryTest, ASendToAPlaceThatHasNoAddressIsRefusedByName) {
  GpuWorld gpus;
  // Not registered: its bytes would come in an entry. On a page of its own, since whole pages are
  // registered, and another registration might begin on this one.
  alignas(4096) std::array<std::byte, 4096> page = {};
  const Region unregistered(page.data(), 100, nullptr);
  Request send, receive;
  EXPECT_EQ(gpus.world.b->accepted->PostReceive({1, 0}, {.out = unregistered.view()}, &receive),
            Posted::kAccepted);
  EXPECT_EQ(gpus.world.a->out->PostSend({1, 0}, gpus.from_region.view().Slice(0, 100), &send),
            Posted::kAccepted);
  ASSERT_TRUE(gpus.world.Until([&] { return send.done() && receive.done(); }));
  EXPECT_THAT(std::string(send.status().message()),
              AllOf(HasSubstr("100 bytes of a device's memory"), HasSubstr("registered")));
}

// ---- Flushes

TEST(GpuMemoryTest, ASecondFlushReadsNothingAndHostMemoryNeedsNone) {
  GpuWorld gpus(Quick(1));
  int reads = 0;
  CountReads(gpus, &reads);
  ASSERT_TRUE(gpus.Carry(1000));
  ASSERT_TRUE(gpus.Flush().ok());
  EXPECT_EQ(reads, 1);
  ASSERT_TRUE(gpus.Flush().ok());
  EXPECT_EQ(reads, 1);
  ASSERT_TRUE(gpus.Carry(1000));
  ASSERT_TRUE(gpus.Flush().ok());
  EXPECT_EQ(reads, 2);
  std::vector<std::byte> host(1000);
  auto region = gpus.world.b->transport().Register(host.data(), host.size());
  ASSERT_TRUE(region.ok());
  ASSERT_TRUE(gpus.Carry(gpus.from_region.view().Slice(0, 1000), region->view()));
  Request flush;
  gpus.world.b->accepted->Flush(region->view(), &flush);
  EXPECT_TRUE(flush.done() && flush.status().ok());
  EXPECT_EQ(reads, 2);
}

TEST(GpuMemoryTest, ARailThatHasLostAQueuePairIsReadAgain) {
  WorldOptions options = Quick(1);
  options.settings.back() = "verbs.queue_pairs=1";
  GpuWorld gpus(options);
  int reads = 0;
  CountReads(gpus, &reads);
  ASSERT_TRUE(gpus.Carry(1000));
  ASSERT_TRUE(gpus.Flush().ok());
  const int before = reads;
  // What it had written last may have been found without a completion.
  const uint32_t lost = gpus.world.fabric.QueuePairs(World::Device(1, 0)).front();
  gpus.world.fabric.PushEvent(World::Device(1, 0), {NicEventKind::kQueuePairFatal, 1, lost});
  ASSERT_TRUE(gpus.world.Until([&] {
    const std::vector<uint32_t> pairs = gpus.world.fabric.QueuePairs(World::Device(1, 0));
    return std::count(pairs.begin(), pairs.end(), lost) == 0;
  }));
  ASSERT_TRUE(gpus.Flush().ok());
  EXPECT_EQ(reads, before + 1);
}

TEST(GpuMemoryTest, TheSettingEndsFlushes) {
  WorldOptions options = Quick();
  options.settings.emplace_back("verbs.flush=false");
  GpuWorld gpus(options);
  ASSERT_TRUE(gpus.Carry(1000));
  Request flush;
  gpus.world.b->accepted->Flush(gpus.to_region.view(), &flush);
  EXPECT_TRUE(flush.done() && flush.status().ok());
  EXPECT_GT(gpus.world.fabric.unseen_writes(), 0u);
}

TEST(GpuMemoryTest, AFlushSurvivesEveryStatusThatAnotherQueuePairMayNotHave) {
  for (int status : {2, 5, 7, 11, 12, 13, 16, 19, 20, 21}) {
    GpuWorld gpus;
    int reads = 0;
    CountReads(gpus, &reads, [&](int number) {
      ScriptedFate fate;
      fate.fails = number <= 3, fate.arrives = false;
      fate.status = static_cast<NicStatus>(status);
      return fate;
    });
    ASSERT_TRUE(gpus.Carry(kBytes));
    EXPECT_TRUE(gpus.Flush().ok()) << status;
    EXPECT_TRUE(gpus.Same(kBytes)) << status;
    EXPECT_GT(reads, 3) << status;
  }
}

TEST(GpuMemoryTest, AFlushThatTheDeviceRefusesFailsAtOnceByName) {
  for (int status : {1, 4, 8, 9, 10}) {
    GpuWorld gpus(Quick(1));
    int reads = 0;
    CountReads(gpus, &reads, [&](int) {
      ScriptedFate fate;
      fate.fails = true, fate.arrives = false;
      fate.status = static_cast<NicStatus>(status);
      return fate;
    });
    ASSERT_TRUE(gpus.Carry(1000));
    const absl::Status flushed = gpus.Flush(absl::Milliseconds(100));
    EXPECT_EQ(flushed.code(), absl::StatusCode::kInternal) << flushed;
    EXPECT_THAT(std::string(flushed.message()),
                AllOf(HasSubstr("host1_rail0 port 1"), HasSubstr(absl::StrCat("error ", status))));
    // Others are not harmed.
    gpus.world.fabric.set_on_transfer(nullptr);
    EXPECT_TRUE(gpus.Flush().ok());
    EXPECT_TRUE(gpus.Same(1000));
  }
}

TEST(GpuMemoryTest, EveryCallOfAFlushMayFailAFewTimes) {
  for (const char* call : {"register", "query_port", "query_gids", "create_queue_pair", "to_init",
                           "to_rtr", "to_rts", "post_receives", "post_reads"}) {
    GpuWorld gpus;
    ASSERT_TRUE(gpus.Carry(kBytes));
    int left = 3;
    gpus.world.fabric.set_on_call([&](const std::string& name, const std::string& on) {
      if (name != call || on != World::Device(1, 0) || left == 0) return absl::OkStatus();
      --left;
      return absl::UnavailableError(absl::StrCat("ibv_", name, ": scripted"));
    });
    EXPECT_TRUE(gpus.Flush().ok()) << call;
    EXPECT_EQ(left, 0) << call;
    EXPECT_TRUE(gpus.Same(kBytes)) << call;
  }
}

TEST(GpuMemoryTest, AFlushThatNeverWorksEndsInTimeAndSaysWhatWasTried) {
  GpuWorld gpus;
  ASSERT_TRUE(gpus.Carry(kBytes));
  gpus.world.fabric.set_on_call([&](const std::string& name, const std::string&) {
    return name == "to_rtr" ? absl::UnavailableError("ibv_modify_qp to RTR: no route")
                            : absl::OkStatus();
  });
  const absl::Status flushed = gpus.Flush(absl::Milliseconds(1100));
  EXPECT_EQ(flushed.code(), absl::StatusCode::kDeadlineExceeded) << flushed;
  EXPECT_THAT(std::string(flushed.message()),
              AllOf(HasSubstr("verbs.give_up_after"), HasSubstr("host1_rail0 port 1, GID ::ffff:"),
                    HasSubstr("host1_rail1"), HasSubstr("no route")));
}

TEST(GpuMemoryTest, AReadThatNeverCompletesIsReadAgain) {
  GpuWorld gpus(Quick(1));
  int reads = 0;
  CountReads(gpus, &reads, [](int number) {
    ScriptedFate fate;
    fate.lose_send = number == 1;
    return fate;
  });
  ASSERT_TRUE(gpus.Carry(1000));
  EXPECT_TRUE(gpus.Flush().ok());
  EXPECT_EQ(reads, 2);
}

// The process is stopped while a read is on its way.
TEST(GpuMemoryTest, AStallDoesNotCountTowardsTheLimitOfAFlush) {
  GpuWorld gpus(Quick(1));
  int reads = 0;
  CountReads(gpus, &reads, [&gpus](int) {
    gpus.world.Stall(absl::Hours(1));
    ScriptedFate fate;
    fate.hold_ticks = 10;
    return fate;
  });
  ASSERT_TRUE(gpus.Carry(1000));
  const absl::Status flushed = gpus.Flush(absl::Hours(2));
  EXPECT_TRUE(flushed.ok()) << flushed;
  EXPECT_EQ(reads, 1);
}

TEST(GpuMemoryTest, CompletionsThatComeTwiceEndNothingElse) {
  GpuWorld gpus(Quick(1));
  int reads = 0;
  CountReads(gpus, &reads, [](int) {
    ScriptedFate fate;
    fate.twice = true;
    return fate;
  });
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(gpus.Carry(1000));
    ASSERT_TRUE(gpus.Flush().ok());
    EXPECT_EQ(gpus.world.fabric.unseen_writes(), 0u) << round;
  }
}

TEST(GpuMemoryTest, ARailWhoseDeviceHasFailedHoldsUpNoFlush) {
  GpuWorld gpus;
  ASSERT_TRUE(gpus.Carry(kBytes));
  gpus.world.fabric.PushEvent(World::Device(1, 0), {NicEventKind::kDeviceLost, 1, 0});
  for (int turn = 0; turn < 50; ++turn) gpus.world.Turn();
  int reads = 0;
  CountReads(gpus, &reads);
  EXPECT_TRUE(gpus.Flush().ok());
  EXPECT_EQ(reads, 1);
}

TEST(GpuMemoryTest, AFlushEndsWithItsLink) {
  GpuWorld gpus;
  ASSERT_TRUE(gpus.Carry(1000));
  int reads = 0;
  CountReads(gpus, &reads, [](int) {
    ScriptedFate fate;
    fate.hold_ticks = 1 << 20;
    return fate;
  });
  auto flush = std::make_unique<Request>();
  gpus.world.b->accepted->Flush(gpus.to_region.view(), flush.get());
  for (int turn = 0; turn < 3; ++turn) gpus.world.Turn();
  EXPECT_FALSE(flush->done());
  gpus.world.b->accepted.reset();
  ASSERT_TRUE(flush->done());
  EXPECT_EQ(flush->status().code(), absl::StatusCode::kCancelled);
  flush.reset();  // nothing writes it any more
  gpus.to_region = Region();
  for (int turn = 0; turn < 2000; ++turn) gpus.world.Turn();
}

}  // namespace
}  // namespace weft::net
