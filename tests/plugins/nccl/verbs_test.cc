// The plugin over scripted RDMA devices: faults that a data call must not show, the one that it
// must, and devices that are merged.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/net/verbs/gpu_memory.h"
#include "tests/net/verbs/scripted_nic.h"
#include "tests/plugins/nccl/instance.h"

namespace weft::harness {
namespace {

using net::NicStatus;
using net::ScriptedFabric;
using net::ScriptedFate;
using net::ScriptedTransfer;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBytesMax = 512 << 10;
constexpr size_t kInFlight = 8;

Environment With(Environment more) {
  more.emplace_back("WEFT_TRANSPORT", "verbs");
  return more;
}

// A host with two devices, and connections from it to itself.
class Host {
 public:
  explicit Host(const Environment& more = {})
      : instance_(With(more), WEFT_SCRIPTED_PLUGIN, /*neighbours=*/true) {
    EXPECT_EQ(instance_.init(), nccl::abi::kSuccess) << instance_.warning();
    void* module =
        dlopen((instance_.folder() / "libweft-verbs.so").c_str(), RTLD_NOW | RTLD_NOLOAD);
    auto find = reinterpret_cast<void (*)(ScriptedFabric**)>(dlsym(module, "weft_scripted_fabric"));
    find(&fabric_);
    dlclose(module);
  }
  ~Host() {
    fabric_->set_on_transfer(nullptr);
    if (send_memory_ != nullptr) api().Deregister(send_, send_memory_);
    if (receive_memory_ != nullptr) api().Deregister(receive_, receive_memory_);
  }

  NetApi& api() { return instance_.api(); }
  Instance& instance() { return instance_; }
  ScriptedFabric& fabric() { return *fabric_; }
  void* send() const { return send_; }
  void* receive() const { return receive_; }

  void Connect(int device) {
    Listening listening = Listen(instance_, device);
    auto [send, receive] = Meet(instance_, listening.handle, &instance_, &listening, device);
    ASSERT_NE(send.comm, nullptr) << send.warning;
    ASSERT_NE(receive.comm, nullptr) << receive.warning;
    send_ = send.comm, receive_ = receive.comm;
    from_.resize(kBytesMax * kInFlight);
    to_.resize(kBytesMax * kInFlight);
    ASSERT_EQ(api().Register(send_, from_.data(), from_.size(), &send_memory_),
              nccl::abi::kSuccess);
    ASSERT_EQ(api().Register(receive_, to_.data(), to_.size(), &receive_memory_),
              nccl::abi::kSuccess);
  }

  // Messages of random sizes, some in flight at a time; `between` is called all the while. The
  // first error of a data call, with what the plugin says in `warning`; wrong bytes fail the test.
  Result Transfer(
      int messages, uint64_t seed, std::string* warning,
      const std::function<void()>& between = [] {}) {
    Random random(seed);
    int begun = 0, ended = 0;
    std::deque<Flight> flights;
    while (ended < messages) {
      between();
      if (begun < messages && flights.size() < kInFlight) {
        Flight next;
        next.slot = static_cast<size_t>(begun++) % kInFlight;
        next.bytes = 1 + random.Below(kBytesMax);
        for (size_t i = 0; i < next.bytes; i += 61) {
          from_[next.slot * kBytesMax + i] = static_cast<char>(random());
          to_[next.slot * kBytesMax + i] = 0;
        }
        flights.push_back(next);
      }
      for (Flight& flight : flights) {
        if (Result result = Step(flight); result != nccl::abi::kSuccess) {
          *warning = LastWarning();
          return result;
        }
      }
      while (!flights.empty() && flights.front().sent && flights.front().received) {
        Check(flights.front());
        flights.pop_front();
        ++ended;
      }
    }
    return nccl::abi::kSuccess;
  }

 private:
  struct Flight {
    size_t slot = 0, bytes = 0;
    void *sending = nullptr, *receiving = nullptr;
    bool sent = false, received = false;
  };

  Result Step(Flight& flight) {
    char* from = from_.data() + flight.slot * kBytesMax;
    char* to = to_.data() + flight.slot * kBytesMax;
    int done = 0, size = 0;
    if (flight.receiving == nullptr && !flight.received) {
      Received what{{to}, {receive_memory_}, {kBytesMax}, {0}};
      if (Result result = api().Receive(receive_, what, &flight.receiving)) return result;
    }
    if (flight.sending == nullptr && !flight.sent) {
      if (Result result = api().Send(send_, from, flight.bytes, 0, send_memory_, &flight.sending)) {
        return result;
      }
    }
    if (flight.sending != nullptr) {
      if (Result result = api().Test(flight.sending, &done, &size)) return result;
      if (done != 0) flight.sent = true, flight.sending = nullptr;
    }
    if (flight.receiving == nullptr) return nccl::abi::kSuccess;
    done = 0;
    if (Result result = api().Test(flight.receiving, &done, &size)) return result;
    if (done == 0) return nccl::abi::kSuccess;
    EXPECT_EQ(static_cast<size_t>(size), flight.bytes);
    flight.received = true, flight.receiving = nullptr;
    return nccl::abi::kSuccess;
  }

  void Check(const Flight& flight) {
    const size_t at = flight.slot * kBytesMax;
    EXPECT_TRUE(std::equal(from_.begin() + at, from_.begin() + at + flight.bytes, to_.begin() + at))
        << flight.bytes << " bytes in slot " << flight.slot;
  }

  Instance instance_;
  ScriptedFabric* fabric_ = nullptr;
  std::vector<char> from_, to_;
  void *send_ = nullptr, *receive_ = nullptr;  // the instance closes them
  void *send_memory_ = nullptr, *receive_memory_ = nullptr;
};

ScriptedFate Lost() {
  ScriptedFate fate;
  fate.fails = true;
  fate.arrives = false;
  return fate;
}

TEST(NcclVerbs, DataCallsDoNotShowWhatTheTransportSurvives) {
  Host host;
  ASSERT_NO_FATAL_FAILURE(host.Connect(0));
  std::atomic<int> transfers{0}, failures{0};
  host.fabric().set_on_transfer([&](const ScriptedTransfer&) {
    ScriptedFate fate;
    const int number = ++transfers;
    if (number % 97 == 0) {  // the acknowledgement is lost, or the data
      fate = Lost();
      fate.arrives = number % 2 == 0;
      ++failures;
    }
    fate.twice = number % 31 == 0;
    fate.late_receive = number % 7;
    return fate;
  });
  std::string warning;
  EXPECT_EQ(host.Transfer(200, 1, &warning), nccl::abi::kSuccess) << warning;
  EXPECT_GT(failures.load(), 5);
}

TEST(NcclVerbs, AnErrorThatIsNotSurvivedNamesBothEndsWhatWasTriedAndTheCause) {
  Host host(Environment{{"WEFT_VERBS_GIVE_UP_AFTER", "200ms"}});
  ASSERT_NO_FATAL_FAILURE(host.Connect(0));
  host.fabric().set_on_transfer([](const ScriptedTransfer&) { return Lost(); });
  std::string warning;
  EXPECT_EQ(host.Transfer(3, 2, &warning), nccl::abi::kRemoteError);
  EXPECT_THAT(warning, AllOf(HasSubstr(absl::StrCat("(pid ", getpid(), ", scripted0)")),
                             HasSubstr("scripted0 port 1, GID ::ffff:10.0."),
                             HasSubstr("queue pair"), HasSubstr("source port")));
  EXPECT_THAT(warning, AllOf(HasSubstr("error 12"), HasSubstr("; tried "),
                             HasSubstr("verbs.give_up_after"), HasSubstr("likely cause: ")));
}

// The classes in which queue pairs send while a connection of a communicator of class `given` is
// made and a message sent; v10 says the class to connect, v11 to init.
std::set<int> ClassesOf(int version, int given, const Environment& environment) {
  Host host(environment);
  CallPage page;
  Watch watch(page, absl::Seconds(60));
  auto api = host.instance().library().Open(version, watch);
  api->traffic_class = given;
  std::set<int> classes;
  std::mutex mutex;
  host.fabric().set_on_transfer([&](const ScriptedTransfer& transfer) {
    std::lock_guard lock(mutex);
    if (transfer.length > 1000) classes.insert(transfer.traffic_class);
    return ScriptedFate{};
  });
  void *context = nullptr, *listening = nullptr, *send = nullptr, *receive = nullptr;
  HandleBytes handle{};
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  EXPECT_EQ(api->Init(2, &context), nccl::abi::kSuccess);
  EXPECT_EQ(api->Listen(context, 0, handle.data(), &listening), nccl::abi::kSuccess);
  while ((send == nullptr || receive == nullptr) && !testing::Test::HasFailure()) {
    if (send == nullptr) {
      EXPECT_EQ(api->Connect(context, 0, handle.data(), &send, nullptr), nccl::abi::kSuccess);
    }
    if (receive == nullptr) {
      EXPECT_EQ(api->Accept(listening, &receive, nullptr), nccl::abi::kSuccess);
    }
  }
  for (const auto& [name, value] : environment) unsetenv(name.c_str());
  std::vector<char> from(5000), to(5000);
  void *from_memory = nullptr, *to_memory = nullptr, *sending = nullptr, *receiving = nullptr;
  EXPECT_EQ(api->Register(send, from.data(), from.size(), &from_memory), nccl::abi::kSuccess);
  EXPECT_EQ(api->Register(receive, to.data(), to.size(), &to_memory), nccl::abi::kSuccess);
  Received what{{to.data()}, {to_memory}, {to.size()}, {0}};
  EXPECT_EQ(api->Receive(receive, what, &receiving), nccl::abi::kSuccess);
  // Either end gets on only while it is asked.
  int sent = 0, received = 0, size = 0;
  while ((sent == 0 || received == 0) && !testing::Test::HasFailure()) {
    if (sending == nullptr) {
      EXPECT_EQ(api->Send(send, from.data(), from.size(), 0, from_memory, &sending),
                nccl::abi::kSuccess);
    } else if (sent == 0) {
      EXPECT_EQ(api->Test(sending, &sent, nullptr), nccl::abi::kSuccess);
    }
    if (received == 0) {
      EXPECT_EQ(api->Test(receiving, &received, &size), nccl::abi::kSuccess);
    }
  }
  api->Deregister(send, from_memory);
  api->Deregister(receive, to_memory);
  api->CloseSend(send);
  api->CloseReceive(receive);
  api->CloseListen(listening);
  api->Finalize(context);
  host.fabric().set_on_transfer(nullptr);
  return classes;
}

TEST(NcclVerbs, ACommunicatorsTrafficClassReachesItsQueuePairs) {
  for (int version : {10, 11, 12}) {
    EXPECT_EQ(ClassesOf(version, 96, {}), std::set<int>{96}) << version;
    EXPECT_EQ(ClassesOf(version, -1, {}), std::set<int>{0}) << version;
  }
  EXPECT_EQ(ClassesOf(11, 96, {{"NCCL_IB_TC", "40"}}), std::set<int>{40}) << "as with NCCL's own";
  EXPECT_EQ(ClassesOf(11, 96, {{"WEFT_VERBS_TRAFFIC_CLASS", "44"}}), std::set<int>{44});
}

TEST(NcclVerbs, ATrafficClassThatIsNoneIsRefused) {
  Host host;
  host.api().traffic_class = 300;
  void* context = nullptr;
  EXPECT_NE(host.api().Init(2, &context), nccl::abi::kSuccess);
  EXPECT_THAT(LastWarning(), HasSubstr("trafficClass is 300"));
}

// ---- Memory of GPUs

constexpr int kHostOrDmaBuf = nccl::abi::kPointerHost | nccl::abi::kPointerDmaBuf;

// With nvidia_peermem loaded on this machine, addresses as well.
int PointersOf(Host& host, int device) {
  Properties properties;
  EXPECT_EQ(host.api().GetProperties(device, &properties), nccl::abi::kSuccess);
  return properties.ptr_support & ~nccl::abi::kPointerCuda;
}

TEST(NcclVerbs, GpuMemoryIsOfferedWhereTheDeviceCanRegisterIt) {
  Host host;
  EXPECT_EQ(PointersOf(host, 0), kHostOrDmaBuf);
  int merged = -1;
  ASSERT_EQ(host.api().MakeVirtualDevice(&merged, {0, 1}), nccl::abi::kSuccess);
  EXPECT_EQ(PointersOf(host, merged), kHostOrDmaBuf);
  Host without(Environment{{"SCRIPTED_NIC_WITHOUT_DMA_BUFS", "1"}});
  EXPECT_EQ(PointersOf(without, 0), nccl::abi::kPointerHost);
}

TEST(NcclVerbs, EveryTableRegistersDmaBufs) {
  Host host;
  ASSERT_NO_FATAL_FAILURE(host.Connect(0));
  CallPage page;
  Watch watch(page, absl::Seconds(60));
  for (int version = kVersionMin; version <= kVersionMax; ++version) {
    net::GpuMemory gpu(1 << 16);
    auto api = host.instance().library().Open(version, watch);
    void* memory = nullptr;
    ASSERT_EQ(api->RegisterDmaBuf(host.receive(), gpu.data(), gpu.size(), 0, gpu.fd(), &memory),
              nccl::abi::kSuccess)
        << version << LastWarning();
    EXPECT_NE(memory, nullptr);
    EXPECT_EQ(api->Deregister(host.receive(), memory), nccl::abi::kSuccess) << version;
    EXPECT_NE(api->RegisterDmaBuf(host.receive(), gpu.data(), gpu.size(), 0, -1, &memory),
              nccl::abi::kSuccess);
    EXPECT_THAT(LastWarning(), HasSubstr("DMA-BUF descriptor -1"));
  }
}

TEST(NcclVerbs, WhatCameForAGpuIsThereWhenItsFlushIsDone) {
  Host host;
  int device = -1;
  ASSERT_EQ(host.api().MakeVirtualDevice(&device, {0, 1}), nccl::abi::kSuccess);
  ASSERT_NO_FATAL_FAILURE(host.Connect(device));
  net::GpuMemory from(1 << 20), to(1 << 20);
  void *from_memory = nullptr, *to_memory = nullptr;
  ASSERT_EQ(
      host.api().RegisterDmaBuf(host.send(), from.data(), from.size(), 0, from.fd(), &from_memory),
      nccl::abi::kSuccess);
  ASSERT_EQ(host.api().RegisterDmaBuf(host.receive(), to.data(), to.size(), 0, to.fd(), &to_memory),
            nccl::abi::kSuccess);
  from.CloseDescriptor();
  to.CloseDescriptor();
  for (int size : {1, 100, 4096, 1 << 20}) {
    from.Fill(static_cast<uint8_t>(size));
    Received what{{to.data()}, {to_memory}, {to.size()}, {0}};
    void *send = nullptr, *receive = nullptr, *flush = nullptr;
    ASSERT_EQ(host.api().Receive(host.receive(), what, &receive), nccl::abi::kSuccess);
    int sent = 0, received = 0, flushed = 0, bytes = 0;
    while (sent == 0 || received == 0) {
      if (send == nullptr) {
        ASSERT_EQ(host.api().Send(host.send(), from.data(), static_cast<size_t>(size), 0,
                                  from_memory, &send),
                  nccl::abi::kSuccess);
      } else if (sent == 0) {
        ASSERT_EQ(host.api().Test(send, &sent, nullptr), nccl::abi::kSuccess) << LastWarning();
      }
      if (received == 0) {
        ASSERT_EQ(host.api().Test(receive, &received, &bytes), nccl::abi::kSuccess);
      }
    }
    EXPECT_EQ(bytes, size);
    EXPECT_GT(host.fabric().unseen_writes(), 0u);
    what.sizes[0] = static_cast<size_t>(bytes);
    ASSERT_EQ(host.api().Flush(host.receive(), what, &flush), nccl::abi::kSuccess);
    ASSERT_NE(flush, nullptr) << "a null request is a flush that is done";
    while (flushed == 0) {
      ASSERT_EQ(host.api().Test(flush, &flushed, nullptr), nccl::abi::kSuccess) << LastWarning();
    }
    EXPECT_EQ(host.fabric().unseen_writes(), 0u);
    EXPECT_TRUE(std::equal(from.seen(), from.seen() + size, to.seen())) << size;
  }
  host.api().Deregister(host.send(), from_memory);
  host.api().Deregister(host.receive(), to_memory);
}

TEST(NcclVerbs, MergedDevicesAreOneDeviceWithAllPorts) {
  Host host;
  int device = -1, count = 0;
  ASSERT_EQ(host.api().MakeVirtualDevice(&device, {0, 1}), nccl::abi::kSuccess) << LastWarning();
  EXPECT_EQ(host.api().Devices(&count), nccl::abi::kSuccess);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(device, 2);
  Properties properties;
  ASSERT_EQ(host.api().GetProperties(device, &properties), nccl::abi::kSuccess);
  EXPECT_EQ(properties.name, "scripted0+scripted1");
  EXPECT_EQ(properties.speed, 200'000);
  EXPECT_EQ(properties.virtual_count, 2);
  ASSERT_NO_FATAL_FAILURE(host.Connect(device));
  std::string warning;
  EXPECT_EQ(host.Transfer(200, 3, &warning), nccl::abi::kSuccess) << warning;
  // Each has its share, how large a one is a matter of what was measured.
  EXPECT_GT(host.fabric().bytes_from("scripted0"), 64u << 10);
  EXPECT_GT(host.fabric().bytes_from("scripted1"), 64u << 10);
  EXPECT_NE(host.api().MakeVirtualDevice(&device, {2, 0}), nccl::abi::kSuccess);
  EXPECT_THAT(LastWarning(), HasSubstr("is merged already"));
  EXPECT_NE(host.api().MakeVirtualDevice(&device, {1, 1}), nccl::abi::kSuccess);
  EXPECT_THAT(LastWarning(), HasSubstr("stands twice"));
}

TEST(NcclVerbs, DevicesAreMergedAnewWhenNcclHasLoadedThePluginAnew) {
  Host host;
  NetApi& api = host.api();
  int device = -1, count = 0;
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    if (round > 0) host.instance().BeginAnew();
    ASSERT_EQ(api.Devices(&count), nccl::abi::kSuccess);
    EXPECT_EQ(count, 2);
    ASSERT_EQ(api.MakeVirtualDevice(&device, {0, 1}), nccl::abi::kSuccess) << LastWarning();
    EXPECT_EQ(device, 2);
    ASSERT_EQ(api.Devices(&count), nccl::abi::kSuccess);
    EXPECT_EQ(count, 3);
  }
  ASSERT_NO_FATAL_FAILURE(host.Connect(device));
  std::string warning;
  EXPECT_EQ(host.Transfer(5, 7, &warning), nccl::abi::kSuccess) << warning;
}

TEST(NcclVerbs, MergedDevicesStayAsLongAsNcclKnowsThem) {
  Host host;
  NetApi& api = host.api();
  int device = -1;
  ASSERT_EQ(api.MakeVirtualDevice(&device, {0, 1}), nccl::abi::kSuccess) << LastWarning();
  const auto expect_there = [&](NetApi& table) {
    int count = 0;
    Properties properties;
    ASSERT_EQ(table.GetProperties(device, &properties), nccl::abi::kSuccess) << LastWarning();
    EXPECT_EQ(properties.name, "scripted0+scripted1");
    ASSERT_EQ(table.Devices(&count), nccl::abi::kSuccess);
    EXPECT_EQ(count, 3);
  };
  {
    SCOPED_TRACE("another communicator comes and goes");
    void* beside = nullptr;
    int count = 0;
    ASSERT_EQ(api.Init(2, &beside), nccl::abi::kSuccess);
    ASSERT_EQ(api.Devices(&count), nccl::abi::kSuccess);
    EXPECT_EQ(count, 3);
    api.Finalize(beside);
    expect_there(api);
  }
  {
    SCOPED_TRACE("NCCL_NET_PLUGIN_REF_COUNT=1: the library stays loaded, and is not asked again");
    host.instance().BeginAnew();
    expect_there(api);
  }
  {
    SCOPED_TRACE("NCCL up to 2.27 never asks again");
    CallPage page;
    Watch watch(page, absl::Seconds(60));
    for (int version : {9, 10}) {
      auto table = host.instance().library().Open(version, watch);
      void* none = nullptr;
      int count = 0;
      ASSERT_EQ(table->Init(3, &none), nccl::abi::kSuccess);
      ASSERT_EQ(table->Devices(&count), nccl::abi::kSuccess);
      EXPECT_EQ(count, 3);
      expect_there(*table);
      table->Finalize(none);
    }
  }
}

TEST(NcclVerbs, AMergedDeviceOutlivesOneOfItsPorts) {
  Host host;
  int device = -1;
  ASSERT_EQ(host.api().MakeVirtualDevice(&device, {0, 1}), nccl::abi::kSuccess) << LastWarning();
  ASSERT_NO_FATAL_FAILURE(host.Connect(device));
  std::string warning;
  EXPECT_EQ(host.Transfer(20, 4, &warning), nccl::abi::kSuccess) << warning;
  host.fabric().set_on_transfer([](const ScriptedTransfer& transfer) {
    return transfer.from == "scripted0" ? Lost() : ScriptedFate{};
  });
  const uint64_t before = host.fabric().bytes_from("scripted0");
  EXPECT_EQ(host.Transfer(50, 5, &warning), nccl::abi::kSuccess) << warning;
  EXPECT_EQ(host.fabric().bytes_from("scripted0"), before);
}

TEST(NcclVerbs, AMergedDeviceStripesByMeasuredSpeed) {
  Host host(Environment{{"WEFT_VERBS_PIECE_MIN", "16KiB"}, {"WEFT_VERBS_PIECE_MAX", "16KiB"}});
  int device = -1;
  ASSERT_EQ(host.api().MakeVirtualDevice(&device, {0, 1}), nccl::abi::kSuccess) << LastWarning();
  ASSERT_NO_FATAL_FAILURE(host.Connect(device));
  host.fabric().SetRate("scripted0", 4e9);
  host.fabric().SetRate("scripted1", 1e9);
  // Devices advance at the same steps, so that their ratio is measured whatever a step takes.
  std::string warning;
  EXPECT_EQ(
      host.Transfer(200, 6, &warning, [&] { host.fabric().Advance(absl::Microseconds(100)); }),
      nccl::abi::kSuccess)
      << warning;
  const auto fast = static_cast<double>(host.fabric().bytes_from("scripted0"));
  const auto slow = static_cast<double>(host.fabric().bytes_from("scripted1"));
  EXPECT_GT(fast, 1.5 * slow);
  EXPECT_GT(slow, 0);
}

}  // namespace
}  // namespace weft::harness
