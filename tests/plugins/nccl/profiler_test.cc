// The profiler in every version of NCCL's table, driven as NCCL does, and what is then in the ring.
#include "plugins/nccl/profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/record_files.h"
#include "plugins/nccl/abi/profiler.h"
#include "tests/scratch_folder.h"

// NOLINTBEGIN(readability-identifier-naming): NCCL's names.
extern "C" {
extern const weft::nccl::abi::ProfilerV1 ncclProfiler_v1;
extern const weft::nccl::abi::ProfilerV2 ncclProfiler_v2;
extern const weft::nccl::abi::ProfilerV3 ncclProfiler_v3;
extern const weft::nccl::abi::ProfilerV4 ncclProfiler_v4;
extern const weft::nccl::abi::ProfilerV5 ncclProfiler_v5, ncclProfiler_v6;
}
// NOLINTEND(readability-identifier-naming)

namespace weft::nccl {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr uint64_t kHash = 0x1234'5678'9abc'def0;

// NCCL, of one version.
class Nccl {
 public:
  virtual ~Nccl() = default;
  virtual void* Init(uint64_t hash, int rank, int ranks, int* mask) = 0;
  virtual void Finalize(void* context) = 0;
  // "AllReduce" of `count` float32; `channels` with kernels to come.
  virtual void* StartCollective(void* context, const char* function, size_t count,
                                int channels = 0) = 0;
  virtual void* StartMessage(void* context, bool sends, int peer, size_t bytes) = 0;
  virtual void* StartOther(void* context, uint64_t type, void* parent) = 0;
  virtual void* StartOperation(void* context, void* call, int peer, bool sends,
                               int pid = getpid()) = 0;
  // One message of the operation, number `step`: with `polls` polls for the peer; not `whole`: it
  // goes no further than that.
  virtual void Message(void* context, void* operation, bool sends, int step, size_t bytes,
                       int polls = 1, bool whole = true) = 0;
  virtual void Stop(void* event) = 0;
};

template <typename Table, typename Event, typename State>
class NcclOf : public Nccl {
 public:
  static constexpr bool kOld = std::is_same_v<State, abi::ProfilerStateV1>;

  explicit NcclOf(const Table& table) : table_(table) {}

  void* Init(uint64_t hash, int rank, int ranks, int* mask) override {
    void* context = nullptr;
    if constexpr (requires { table_.init(&context, mask); }) {
      EXPECT_EQ(table_.init(&context, mask), abi::kSuccess);
    } else if constexpr (requires { table_.init(&context, mask, "", hash, 1, 1, 1, nullptr); }) {
      EXPECT_EQ(table_.init(&context, mask, "default pg", hash, 2, ranks, rank, nullptr),
                abi::kSuccess);
    } else {
      EXPECT_EQ(table_.init(&context, hash, mask, "default pg", 2, ranks, rank, nullptr),
                abi::kSuccess);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    about_[context] = {hash, rank};
    return context;
  }
  void Finalize(void* context) override { EXPECT_EQ(table_.finalize(context), abi::kSuccess); }

  void* StartCollective(void* context, const char* function, size_t count, int channels) override {
    Event event = EventOf(abi::kEventCollective, context);
    auto& what = event.collective;
    what = {};
    what.function = FunctionOf<decltype(what.function)>(function);
    what.type = TypeOf<decltype(what.type)>();
    what.count = count;
    if constexpr (requires { what.channels; }) what.channels = static_cast<uint8_t>(channels);
    Name(context, what);
    return Start(context, event);
  }
  void* StartMessage(void* context, bool sends, int peer, size_t bytes) override {
    Event event = EventOf(abi::kEventMessage, context);
    auto& what = event.message;
    what = {};
    what.function = FunctionOf<decltype(what.function)>(sends ? "Send" : "Recv");
    what.type = TypeOf<decltype(what.type)>();
    what.count = bytes / sizeof(float);
    what.peer = peer;
    Name(context, what);
    return Start(context, event);
  }
  void* StartOther(void* context, uint64_t type, void* parent) override {
    Event event = EventOf(type, context);
    event.parent = parent;
    event.operation = {};
    return Start(context, event);
  }
  void* StartOperation(void* context, void* call, int peer, bool sends, int pid) override {
    Event event = EventOf(abi::kEventProxyOperation, context);
    event.parent = call;
    event.operation = {.pid = pid,
                       .channel = 0,
                       .peer = peer,
                       .steps = 4,
                       .chunk_bytes = 1024,
                       .is_send = sends ? 1 : 0};
    return Start(context, event);
  }
  void Message(void* context, void* operation, bool sends, int step, size_t bytes, int polls,
               bool whole) override {
    if constexpr (kOld) {
      size_t& sum = SumOf(operation);
      const auto record = [&](int state) {
        State arguments{.operation = {.bytes = sum, .steps = step + 1}};
        EXPECT_EQ(table_.record_event_state(operation, state, &arguments), abi::kSuccess);
      };
      if (sends) record(abi::kOperationSendPosted);
      for (int i = 0; sends && i < polls; ++i) record(abi::kOperationSendPeerWait);
      if (!sends) record(abi::kOperationReceivePosted);
      if (!whole) return;
      sum += bytes;
      record(sends ? abi::kOperationSendTransmitted : abi::kOperationReceiveReceived);
      record(sends ? abi::kOperationSendDone : abi::kOperationReceiveDone);
    } else {
      Event event = EventOf(abi::kEventProxyStep, context);
      event.parent = operation;
      event.step.step = step;
      void* handle = Start(context, event);
      ASSERT_NE(handle, nullptr);
      const auto record = [&](int state, size_t value) {
        State arguments{.step = {.bytes = value}};
        EXPECT_EQ(table_.record_event_state(handle, state, &arguments), abi::kSuccess);
      };
      if (sends) record(abi::kStepSendGpuWait, 0);
      for (int i = 0; sends && i < polls; ++i) record(abi::kStepSendPeerWait, 0);
      if (!sends) record(abi::kStepReceiveWait, 0);
      if (!whole) return;
      record(sends ? abi::kStepSendWait : abi::kStepReceiveFlushWait, bytes);
      if (!sends) record(abi::kStepReceiveGpuWait, bytes);
      Stop(handle);
    }
  }
  void Stop(void* event) override { EXPECT_EQ(table_.stop_event(event), abi::kSuccess); }

 private:
  struct About {
    uint64_t hash = 0;
    int rank = 0;
  };
  size_t& SumOf(void* operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // NCCL goes on where an earlier operation has stopped.
    return bytes_.try_emplace(operation, 1'000'000).first->second;
  }
  About AboutOf(void* context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return about_[context];
  }
  Event EventOf(uint64_t type, void* context) {
    Event event{};
    event.type = static_cast<decltype(event.type)>(type);
    event.rank = AboutOf(context).rank;
    return event;
  }
  void* Start(void* context, Event& event) {
    int rubbish = 0;
    void* handle = &rubbish;
    EXPECT_EQ(table_.start_event(context, &handle, &event), abi::kSuccess);
    EXPECT_NE(handle, static_cast<void*>(&rubbish)) << "NCCL would stop what it left there";
    return handle;
  }
  template <typename Call>
  void Name(void* context, Call& call) {
    if constexpr (requires { call.comm_hash; }) {
      call.comm_name = "default pg";
      call.comm_hash = AboutOf(context).hash;
    }
  }
  template <typename Function>
  static Function FunctionOf(absl::string_view name) {
    if constexpr (std::is_same_v<Function, uint8_t>) {
      return name == "AllReduce"   ? abi::kFunctionAllReduce
             : name == "Broadcast" ? abi::kFunctionBroadcast
             : name == "Send"      ? abi::kFunctionSend
                                   : abi::kFunctionReceive;
    } else {
      return name.data();
    }
  }
  template <typename Type>
  static Type TypeOf() {
    if constexpr (std::is_same_v<Type, uint8_t>) {
      return 7;
    } else {
      return "ncclFloat32";
    }
  }

  const Table& table_;
  std::mutex mutex_;
  std::map<void*, About> about_;   // by context
  std::map<void*, size_t> bytes_;  // of an operation up to now
};

std::unique_ptr<Nccl> NcclOfVersion(int version) {
  using namespace abi;
  switch (version) {
    case 1:
      return std::make_unique<NcclOf<ProfilerV1, ProfilerEventV1, ProfilerStateV1>>(
          ncclProfiler_v1);
    case 2:
      return std::make_unique<NcclOf<ProfilerV2, ProfilerEventV2, ProfilerStateV1>>(
          ncclProfiler_v2);
    case 3:
      return std::make_unique<NcclOf<ProfilerV3, ProfilerEventV3, ProfilerStateV1>>(
          ncclProfiler_v3);
    case 4:
      return std::make_unique<NcclOf<ProfilerV4, ProfilerEventV4, ProfilerStateV4>>(
          ncclProfiler_v4);
    default:
      return std::make_unique<NcclOf<ProfilerV5, ProfilerEventV5, ProfilerStateV4>>(
          version == 5 ? ncclProfiler_v5 : ncclProfiler_v6);
  }
}

// What the only ring of the folder says.
struct Ring {
  std::unique_ptr<RecordReader> reader;
  RecordProcess process;
  std::vector<CallRecord> begun, ended;
  std::map<std::pair<int, bool>, FlowRecord> flows;  // the newest

  std::string Name(RecordName name) const { return reader->Name(name); }
};

class ProfilerTables : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}) {
      unsetenv(name);
    }
    setenv("WEFT_JOB_ID", "test", 1);
    setenv("WEFT_RECORDS_FOLDER", (folder_ / "rings").c_str(), 1);
    setenv("WEFT_NCCL_PROFILER", "kernels", 1);
    setenv("WEFT_RECORDS_ENABLED", "true", 1);
  }
  void Begin(int rank = 1, int ranks = 4) {
    context_ = nccl_->Init(kHash, rank, ranks, &mask_);
    ASSERT_NE(context_, nullptr);
  }
  Ring Read() {
    Profiler::OfProcess().Tick(SystemClock::Nanoseconds());
    Ring ring;
    const std::vector<std::string> files = RecordFilesIn(folder_ / "rings");
    EXPECT_THAT(files, SizeIs(1));
    if (files.size() != 1) return ring;
    auto reader = RecordReader::Open(files[0]);
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return ring;
    ring.reader = *std::move(reader);
    ring.process = ring.reader->process();
    for (const Record& record : ring.reader->Read()) {
      switch (record.kind()) {
        case RecordKind::kCall:
          ring.begun.push_back(record.As<CallRecord>());
          break;
        case RecordKind::kDone:
          ring.ended.push_back(record.As<CallRecord>());
          break;
        case RecordKind::kFlow: {
          const auto flow = record.As<FlowRecord>();
          ring.flows[{flow.peer, flow.sends != 0}] = flow;
          break;
        }
        default:
          break;
      }
    }
    return ring;
  }
  // The operations of a call with a neighbour: `steps` messages of `bytes` each way.
  void Exchange(void* call, int peer, int steps, size_t bytes) {
    for (bool sends : {true, false}) {
      void* operation = nccl_->StartOperation(context_, call, peer, sends);
      ASSERT_NE(operation, nullptr);
      for (int step = 0; step < steps; ++step) {
        nccl_->Message(context_, operation, sends, step, bytes);
      }
      nccl_->Stop(operation);
    }
  }
  bool old() const { return GetParam() < 4; }

  ScratchFolder folder_;
  std::unique_ptr<Nccl> nccl_ = NcclOfVersion(GetParam());
  void* context_ = nullptr;
  int mask_ = -1;
};

TEST_P(ProfilerTables, ACollectiveEndsWithTheLastOfItsOperations) {
  Begin();
  void* group = nccl_->StartOther(context_, abi::kEventGroup, nullptr);
  EXPECT_NE(group, nullptr) << "NCCL up to 2.27 shows no calls without one";
  void* call = nccl_->StartCollective(context_, "AllReduce", 1000);
  ASSERT_NE(call, nullptr);
  void* operation = nccl_->StartOperation(context_, call, 2, true);
  nccl_->Stop(call);  // enqueued
  nccl_->Stop(group);
  nccl_->Message(context_, operation, true, 0, 2000);
  nccl_->Message(context_, operation, true, 1, 2000);
  Ring ring = Read();
  EXPECT_EQ(ring.process.job, "test/nccl");
  EXPECT_EQ(ring.process.rank, 1);
  ASSERT_THAT(ring.begun, SizeIs(1));
  EXPECT_THAT(ring.ended, IsEmpty()) << "enqueued is not done";
  const int64_t before_ns = SystemClock::Nanoseconds();
  nccl_->Stop(operation);
  ring = Read();
  ASSERT_THAT(ring.ended, SizeIs(1));
  const CallRecord& ended = ring.ended[0];
  EXPECT_EQ(ring.Name(ended.name), "all_reduce");
  EXPECT_THAT(ring.Name(ended.group), StartsWith("default_pg-"));
  EXPECT_EQ(ended.bytes, 4000u);
  EXPECT_EQ(ended.count, 1000u);
  EXPECT_EQ(ended.sequence, 0u);
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.start_ns, ring.begun[0].start_ns);
  EXPECT_GE(ended.end_ns, before_ns);
  const FlowRecord flow = ring.flows.at({2, true});
  EXPECT_EQ(flow.bytes_matched, 4000u);
  EXPECT_EQ(flow.bytes_done, 4000u);
  EXPECT_EQ(flow.outstanding, 0);
  EXPECT_EQ(ring.Name(flow.name), absl::StrCat("nccl ", ring.Name(ended.group)));
  nccl_->Finalize(context_);
  EXPECT_THAT(RecordFilesIn(folder_ / "rings"), IsEmpty()) << "it ended in good order";
}

TEST_P(ProfilerTables, OperationsThatEndBeforeTheirCallIsEnqueuedDoNotEndIt) {
  Begin();
  void* call = nccl_->StartCollective(context_, "Broadcast", 1);
  Exchange(call, 0, 3, 100);
  EXPECT_THAT(Read().ended, IsEmpty());
  nccl_->Stop(call);
  EXPECT_THAT(Read().ended, SizeIs(1));
  nccl_->Finalize(context_);
}

TEST_P(ProfilerTables, AnOperationThatComesLateOpensItsCallAgain) {
  Begin();
  void* call = nccl_->StartCollective(context_, "AllReduce", 1);
  nccl_->Stop(call);
  Exchange(call, 2, 1, 4);
  void* late = nccl_->StartOperation(context_, call, 2, true);
  Ring ring = Read();
  EXPECT_GT(ring.begun.size(), ring.ended.size());
  const int64_t before_ns = SystemClock::Nanoseconds();
  nccl_->Stop(late);
  ring = Read();
  EXPECT_EQ(ring.begun.size(), ring.ended.size());
  EXPECT_GE(ring.ended.back().end_ns, before_ns);
  for (const CallRecord& record : ring.ended) EXPECT_EQ(record.start_ns, ring.begun[0].start_ns);
  nccl_->Finalize(context_);
}

TEST_P(ProfilerTables, CollectivesAreNumberedByCommunicatorWhateverTheyAre) {
  Begin();
  int mask = 0;
  void* other = nccl_->Init(kHash + 1, 0, 2, &mask);
  std::vector<void*> calls;
  for (const char* function : {"AllReduce", "Broadcast", "AllReduce"}) {
    calls.push_back(nccl_->StartCollective(context_, function, 1));
    calls.push_back(nccl_->StartCollective(other, function, 1));
  }
  const Ring ring = Read();
  std::map<std::string, std::vector<uint32_t>> sequences;
  for (const CallRecord& record : ring.begun) {
    sequences[ring.Name(record.group)].push_back(record.sequence);
  }
  ASSERT_THAT(sequences, SizeIs(2));
  for (const auto& [group, numbers] : sequences) EXPECT_THAT(numbers, ElementsAre(0, 1, 2));
  // Which of the job's ranks the members are is found by these.
  const std::string lines = testing::PrintToString(ring.process.lines);
  EXPECT_THAT(lines, HasSubstr(old() ? " 1 0\"" : "group default_pg-"));
  EXPECT_THAT(lines, HasSubstr("member default_pg-"));
  for (void* call : calls) nccl_->Stop(call);
  nccl_->Finalize(other);
  nccl_->Finalize(context_);
}

TEST_P(ProfilerTables, MessagesHavePeersAndTheirBytes) {
  Begin();
  void* send = nccl_->StartMessage(context_, true, 3, 4096);
  void* receive = nccl_->StartMessage(context_, false, 0, 8192);
  Exchange(send, 3, 1, 4096);
  Exchange(receive, 0, 2, 4096);
  nccl_->Stop(send);
  nccl_->Stop(receive);
  const Ring ring = Read();
  ASSERT_THAT(ring.ended, SizeIs(2));
  EXPECT_EQ(ring.Name(ring.ended[0].name), "send");
  EXPECT_EQ(ring.ended[0].peer, 3);
  EXPECT_EQ(ring.ended[0].bytes, 4096u);
  EXPECT_EQ(ring.Name(ring.ended[1].name), "receive");
  EXPECT_EQ(ring.ended[1].peer, 0);
  EXPECT_EQ(ring.flows.at({0, false}).bytes_done, 8192u);
  EXPECT_EQ(ring.flows.at({0, true}).bytes_done, 8192u);
  nccl_->Finalize(context_);
}

TEST_P(ProfilerTables, AMessageThatWaitsForItsPeerIsOneHoweverOftenNcclLooks) {
  Begin();
  void* call = nccl_->StartCollective(context_, "AllReduce", 1);
  void* sends = nccl_->StartOperation(context_, call, 2, true);
  void* receives = nccl_->StartOperation(context_, call, 2, false);
  nccl_->Message(context_, sends, true, 0, 100);
  nccl_->Message(context_, sends, true, 1, 100, /*polls=*/1000, /*whole=*/false);
  nccl_->Message(context_, receives, false, 0, 100, 1, /*whole=*/false);
  Ring ring = Read();
  const FlowRecord out = ring.flows.at({2, true}), in = ring.flows.at({2, false});
  EXPECT_EQ(out.outstanding, 1);
  EXPECT_EQ(out.waiting, 1);
  EXPECT_EQ(out.bytes_done, 100u);
  EXPECT_EQ(in.outstanding, 1);
  EXPECT_EQ(in.waiting, 1);
  // Steps whose end is never said end with their operation.
  nccl_->Stop(sends);
  nccl_->Stop(receives);
  nccl_->Stop(call);
  ring = Read();
  EXPECT_EQ(ring.flows.at({2, true}).outstanding, 0);
  EXPECT_EQ(ring.flows.at({2, false}).outstanding, 0);
  EXPECT_THAT(ring.ended, SizeIs(1));
  nccl_->Finalize(context_);
}

TEST_P(ProfilerTables, ACallThatNcclGivesUpIsAborted) {
  Begin();
  void* call = nccl_->StartCollective(context_, "AllReduce", 1);
  void* operation = nccl_->StartOperation(context_, call, 2, true);
  nccl_->Stop(call);
  nccl_->Finalize(context_);
  const Ring ring = Read();  // left behind for who asks why
  EXPECT_TRUE(ring.process.failed);
  ASSERT_THAT(ring.ended, SizeIs(1));
  EXPECT_EQ(ring.ended[0].code, static_cast<uint8_t>(absl::StatusCode::kAborted));
  nccl_->Stop(operation);  // after its communicator
  nccl_->Stop(call);
}

TEST_P(ProfilerTables, ACallWithoutNetworkEndsWhenItWasEnqueued) {
  Begin();
  void* call = nccl_->StartCollective(context_, "AllReduce", 1);
  nccl_->Stop(call);
  const int64_t now_ns = SystemClock::Nanoseconds();
  Profiler::OfProcess().Tick(now_ns + 1'000'000'000);
  const Ring ring = Read();
  ASSERT_THAT(ring.ended, SizeIs(1));
  EXPECT_LE(ring.ended[0].end_ns, now_ns);
  nccl_->Finalize(context_);
}

TEST_P(ProfilerTables, WhatFindsNoRoomIsCountedAndHarmless) {
  Begin();
  const uint64_t before = Profiler::OfProcess().dropped();
  std::vector<void*> calls, operations;
  for (size_t i = 0; i < ProfiledCalls::kCallsMax + 100; ++i) {
    calls.push_back(nccl_->StartCollective(context_, "AllReduce", 1));
    operations.push_back(nccl_->StartOperation(context_, calls.back(), 2, true));
  }
  EXPECT_EQ(calls.back(), nullptr);
  EXPECT_EQ(operations.back(), nullptr);
  EXPECT_GE(Profiler::OfProcess().dropped() - before, 200u);
  EXPECT_THAT(Read().process.lines, Contains(StartsWith("dropped ")));
  nccl_->Message(context_, operations[0], true, 0, 10);
  for (void* operation : operations) nccl_->Stop(operation);
  for (void* call : calls) nccl_->Stop(call);
  for (void* call : calls) nccl_->Stop(call);  // twice
  void* next = nccl_->StartCollective(context_, "AllReduce", 77);
  ASSERT_NE(next, nullptr);
  Exchange(next, 2, 1, 4);
  nccl_->Stop(next);
  const Ring ring = Read();
  EXPECT_EQ(ring.ended.back().count, 77u);
  EXPECT_EQ(ring.ended.back().sequence, ProfiledCalls::kCallsMax + 100)
      << "what was dropped counts";
  nccl_->Finalize(context_);
}

TEST_P(ProfilerTables, HandlesThatAreNoneDoNothing) {
  Begin();
  int rubbish = 0;
  for (void* handle : {static_cast<void*>(nullptr), static_cast<void*>(&rubbish), context_}) {
    nccl_->Stop(handle);
    for (uint64_t type : {abi::kEventProxyStep, abi::kEventKernelChannel, abi::kEventNet,
                          abi::kEventProxyControl}) {
      EXPECT_EQ(nccl_->StartOther(context_, type, handle), nullptr);
    }
  }
  if (!old()) {
    EXPECT_EQ(nccl_->StartCollective(&rubbish, "AllReduce", 1), nullptr);
  }
  void* call = nccl_->StartCollective(context_, "AllReduce", 1);
  EXPECT_EQ(nccl_->StartOperation(context_, call, 2, true, getpid() + 1), nullptr)
      << "of another process";
  void* operation = nccl_->StartOperation(context_, nullptr, 2, true);
  ASSERT_NE(operation, nullptr) << "a flow counts without its call";
  nccl_->Stop(operation);
  nccl_->Stop(operation);
  nccl_->Stop(call);
  nccl_->Finalize(context_);
}

TEST_P(ProfilerTables, AsksForNothingWhereRecordsAreOff) {
  for (const char* name : {"WEFT_RECORDS_ENABLED", "WEFT_NCCL_PROFILER"}) {
    SetUp();
    setenv(name, name[5] == 'R' ? "false" : "off", 1);
    EXPECT_EQ(nccl_->Init(kHash, 0, 2, &mask_), nullptr);
    EXPECT_EQ(mask_, 0);
    EXPECT_EQ(nccl_->StartOther(nullptr, abi::kEventProxyStep, nullptr), nullptr);
    nccl_->Finalize(nullptr);
  }
  EXPECT_THAT(RecordFilesIn(folder_ / "rings"), IsEmpty());
}

TEST_P(ProfilerTables, TheLaunchersRankCounts) {
  setenv("RANK", "5", 1);
  setenv("WORLD_SIZE", "8", 1);
  Begin(1, 2);
  nccl_->Stop(nccl_->StartCollective(context_, "AllReduce", 1));
  const Ring ring = Read();
  EXPECT_EQ(ring.process.rank, 5);
  EXPECT_EQ(ring.process.world_size, 8);
  EXPECT_THAT(ring.process.lines, Contains(StartsWith("member default_pg-")));
  nccl_->Finalize(context_);
  SetUp();
}

// A thread that calls, a thread that moves, for each of several communicators, and the sampler.
TEST_P(ProfilerTables, ManyThreadsCountEverythingOnce) {
  constexpr int kCommunicators = 3, kCalls = 200, kSteps = 5;
  struct Run {
    std::unique_ptr<Nccl> nccl;
    void* context = nullptr;
  };
  std::vector<Run> runs(kCommunicators);
  int mask = 0;
  for (int i = 0; i < kCommunicators; ++i) {
    runs[i].nccl = NcclOfVersion(GetParam());
    runs[i].context = runs[i].nccl->Init(kHash + i, i, 4, &mask);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kCommunicators; ++i) {
    threads.emplace_back([&run = runs[i], i] {
      for (int k = 0; k < kCalls; ++k) {
        void* call = run.nccl->StartCollective(run.context, "AllReduce", 1);
        std::thread proxy;
        const auto move = [&] {
          void* operation = run.nccl->StartOperation(run.context, call, 10 + i, true);
          for (int step = 0; step < kSteps; ++step) {
            run.nccl->Message(run.context, operation, true, step, 7);
          }
          run.nccl->Stop(operation);
        };
        if (k % 10 == 0) proxy = std::thread(move);
        if (k % 10 != 0) move();
        run.nccl->Stop(call);
        if (proxy.joinable()) proxy.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Ring ring = Read();
  std::set<std::pair<std::string, uint32_t>> begun, ended;
  for (const CallRecord& call : ring.begun) begun.emplace(ring.Name(call.group), call.sequence);
  for (const CallRecord& call : ring.ended) ended.emplace(ring.Name(call.group), call.sequence);
  EXPECT_EQ(ended.size(), static_cast<size_t>(kCommunicators * kCalls));
  EXPECT_EQ(begun, ended);
  for (int i = 0; i < kCommunicators; ++i) {
    const FlowRecord flow = ring.flows.at({10 + i, true});
    EXPECT_EQ(flow.bytes_done, static_cast<uint64_t>(kCalls * kSteps * 7));
    EXPECT_EQ(flow.outstanding, 0);
  }
  for (Run& run : runs) run.nccl->Finalize(run.context);
  EXPECT_THAT(RecordFilesIn(folder_ / "rings"), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, ProfilerTables, testing::Range(1, 7),
                         [](const auto& info) { return absl::StrCat("v", info.param); });

// From NCCL 2.27 on.
class ProfilerKernels : public ProfilerTables {};

TEST_P(ProfilerKernels, ACallLastsFromItsFirstKernelToItsLast) {
  Begin();
  EXPECT_NE(mask_ & abi::kEventKernelChannel, 0u);
  void* call = nccl_->StartCollective(context_, "AllReduce", 1, /*channels=*/2);
  nccl_->Stop(call);
  EXPECT_THAT(Read().begun, IsEmpty()) << "it is behind other work of its GPU";
  const int64_t before_ns = SystemClock::Nanoseconds();
  void* first = nccl_->StartOther(context_, abi::kEventKernelChannel, call);
  Exchange(call, 2, 2, 4);
  nccl_->Stop(first);
  Ring ring = Read();
  ASSERT_THAT(ring.begun, SizeIs(1));
  EXPECT_GE(ring.begun[0].start_ns, before_ns);
  EXPECT_THAT(ring.ended, IsEmpty()) << "one of its two channels has not begun";
  void* second = nccl_->StartOther(context_, abi::kEventKernelChannel, call);
  nccl_->Stop(second);
  ring = Read();
  ASSERT_THAT(ring.begun, SizeIs(1));
  ASSERT_THAT(ring.ended, SizeIs(1));
  EXPECT_EQ(ring.ended[0].start_ns, ring.begun[0].start_ns);
  nccl_->Finalize(context_);
}

TEST_P(ProfilerKernels, AKernelThatComesAfterALongTimeStillBeginsItsCall) {
  Begin();
  void* call = nccl_->StartCollective(context_, "AllReduce", 1, /*channels=*/1);
  nccl_->Stop(call);
  const int64_t later_ns = SystemClock::Nanoseconds() + 60'000'000'000;
  Profiler::OfProcess().Tick(later_ns);
  Ring ring = Read();
  EXPECT_THAT(ring.begun, IsEmpty());
  EXPECT_THAT(ring.ended, IsEmpty());
  void* kernel = nccl_->StartOther(context_, abi::kEventKernelChannel, call);
  EXPECT_THAT(Read().begun, SizeIs(1));
  nccl_->Stop(kernel);
  EXPECT_THAT(Read().ended, SizeIs(1));
  nccl_->Finalize(context_);
}

TEST_P(ProfilerKernels, KernelsAreNotAskedForWhereTheSettingSaysSo) {
  setenv("WEFT_NCCL_PROFILER", "network", 1);
  Begin();
  EXPECT_EQ(mask_ & abi::kEventKernelChannel, 0u);
  void* call = nccl_->StartCollective(context_, "AllReduce", 1, /*channels=*/2);
  Exchange(call, 2, 1, 4);
  nccl_->Stop(call);
  EXPECT_THAT(Read().ended, SizeIs(1));
  nccl_->Finalize(context_);
}

INSTANTIATE_TEST_SUITE_P(, ProfilerKernels, testing::Range(4, 7),
                         [](const auto& info) { return absl::StrCat("v", info.param); });

}  // namespace
}  // namespace weft::nccl
