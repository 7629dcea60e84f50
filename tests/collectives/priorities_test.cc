// Which of several works goes first, and how many chunks the others may have at a link meanwhile.
#include "collectives/priorities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/executor.h"
#include "tests/collectives/idle_operation.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

class FakeOperation final : public IdleOperation {
 public:
  FakeOperation(const char* name, Priority wanted) : IdleOperation(0), name_(name) {
    priority = wanted;
  }
  std::string Describe() const override { return name_; }
  CallRecord ToRecord() const override { return {.bytes = 1000}; }

 private:
  const char* name_;
};

std::shared_ptr<Operation> Make(const char* name, Priority priority) {
  return std::make_shared<FakeOperation>(name, priority);
}

TEST(PrioritiesTest, TheMoreUrgentComeFirstAndEqualOnesInTheirOrder) {
  std::vector<std::shared_ptr<Operation>> active = {
      Make("low", Priority::kLow), Make("a", Priority::kNormal), Make("high", Priority::kHigh),
      Make("b", Priority::kNormal)};
  Priorities::Order(active);
  std::string order;
  for (const auto& operation : active) order += operation->Describe() + " ";
  EXPECT_EQ(order, "high a b low ");
}

TEST(PrioritiesTest, OthersYieldWhileAMoreUrgentWorkMovesAndNotWhileItWaits) {
  std::vector<std::shared_ptr<Operation>> active = {Make("high", Priority::kHigh),
                                                    Make("normal", Priority::kNormal),
                                                    Make("low", Priority::kLow)};
  constexpr uint32_t kMost = 256;
  Priorities priorities(kMost * kWorksAtLink);
  constexpr int64_t kNow = 1'000'000'000;
  for (const auto& operation : active) operation->moved_ns = kNow;
  const auto windows = [&](int64_t now_ns) {
    priorities.BeginTurn(active, now_ns);
    std::vector<uint32_t> all;
    for (const auto& operation : active) all.push_back(priorities.WindowOf(*operation));
    return all;
  };
  EXPECT_EQ(windows(kNow), (std::vector<uint32_t>{kMost, kYieldingWindow, kYieldingWindow}));
  // The high one waits for its peer, then the normal one too.
  for (size_t i : {1, 2}) active[i]->moved_ns = kNow + 10'000'000;
  EXPECT_EQ(windows(kNow + 10'000'000), (std::vector<uint32_t>{kMost, kMost, kYieldingWindow}));
  active[2]->moved_ns = kNow + 20'000'000;
  EXPECT_EQ(windows(kNow + 20'000'000), (std::vector<uint32_t>{kMost, kMost, kLowWindow}));
  active[0]->verdict = absl::CancelledError("over");
  active[0]->moved_ns = kNow + 20'000'000;
  EXPECT_EQ(windows(kNow + 20'000'000)[1], kMost);
  EXPECT_EQ(priorities.Describe(), "");
  priorities.Count(*active[2], 3'000'000);
  EXPECT_THAT(priorities.Describe(), HasSubstr("priority low: 1 works, 1000 B, 3 ms each"));
}

// A link that takes everything and finishes what it is told to.
class FakeLink final : public net::SendLink {
 public:
  Rank peer() const override { return Rank(1); }
  const absl::Status& status() const override { return status_; }
  net::Posted PostNotice(absl::string_view) override { return net::Posted::kAccepted; }
  void Break(const absl::Status&) override {}
  std::string Describe() const override { return "fake"; }
  net::Posted PostSend(net::MessageKey, const net::SendSource& source,
                       net::Request* request) override {
    request->Begin();
    urgencies.push_back(source.urgency);
    posted.emplace_back(request, source.data.size());
    return net::Posted::kAccepted;
  }
  void FinishFirst() {
    posted.front().first->Finish(absl::OkStatus(), posted.front().second);
    posted.pop_front();
  }
  std::deque<std::pair<net::Request*, size_t>> posted;
  std::vector<uint8_t> urgencies;  // of all that were ever posted

 private:
  absl::Status status_;
};

class FakePeers final : public Peers {
 public:
  net::SendLink* SendTo(Peer& peer) override {
    asked.push_back(peer.rank);
    return &link;
  }
  absl::StatusOr<net::Region> Register(int, void* data, size_t size) override {
    return net::Region(static_cast<std::byte*>(data), size, nullptr);
  }
  void Seek(Group&, int, uint32_t) override {}
  void Offer(Group&, int, uint32_t, uint32_t) override {}
  FakeLink link;
  std::vector<Rank> asked;  // for links to them
};

// In an all-reduce of four ranks the second exchange waits for the first.
TEST(ExecutionTest, OpensAllLinksOfItsScheduleAsItBegins) {
  const CollectiveSpec spec{.kind = CollectiveKind::kAllReduce, .size = 4, .count = 10};
  Execution execution(std::make_shared<Plan>(kRecursiveDoubling.build(spec)));
  std::vector<float> input(10), output(10);
  Peer first{.rank = Rank(1)}, second{.rank = Rank(2)}, other{.rank = Rank(3)};
  const std::vector<Peer*> group = {nullptr, &first, &second, &other};
  FakePeers peers;
  execution.Begin({.input = input.data(),
                   .output = output.data(),
                   .input_length = 10,
                   .output_length = 10,
                   .element = 4,
                   .group = group},
                  peers);
  EXPECT_EQ(peers.asked, (std::vector<Rank>{Rank(1), Rank(2)}));
}

// The root of a broadcast of ten chunks to one peer.
TEST(ExecutionTest, HandsItsChunksAsUrgentAsTheCallAndNoMoreThanTheWindow) {
  CollectiveSpec spec{.kind = CollectiveKind::kBroadcast, .size = 2, .count = 10, .chunk = 1};
  spec.in_place = true;
  Execution execution(std::make_shared<Plan>(kDirect.build(spec)));
  std::vector<float> data(10);
  Peer peer{.rank = Rank(1)};
  const std::vector<Peer*> group = {nullptr, &peer};
  FakePeers peers;
  execution.Begin({.input = data.data(),
                   .output = data.data(),
                   .input_length = 10,
                   .output_length = 10,
                   .element = 4,
                   .urgency = 2,
                   .group = group},
                  peers);
  EXPECT_TRUE(execution.Advance(peers, 2));
  EXPECT_EQ(peers.link.posted.size(), 2u);
  EXPECT_FALSE(execution.Advance(peers, 2));
  peers.link.FinishFirst();
  EXPECT_TRUE(execution.Advance(peers, 2));
  EXPECT_EQ(peers.link.posted.size(), 2u);
  EXPECT_TRUE(execution.Advance(peers));
  EXPECT_EQ(peers.link.posted.size(), 9u);
  while (!peers.link.posted.empty()) peers.link.FinishFirst();
  EXPECT_TRUE(execution.Advance(peers));
  EXPECT_TRUE(execution.done());
  EXPECT_EQ(peers.link.urgencies, std::vector<uint8_t>(10, 2));
}

TEST(PrioritiesTest, NoWorkTakesAllRequestsOfALink) {
  const Priorities priorities(2 * kWorksAtLink), least(1);
  for (const Priority priority : {Priority::kLow, Priority::kNormal, Priority::kHigh}) {
    EXPECT_EQ(priorities.WindowOf(*Make("", priority)), 2u);
    EXPECT_EQ(least.WindowOf(*Make("", priority)), 1u);
  }
}

// Each has more chunks for the other rank than a link holds requests.
TEST(PrioritiesTest, LargeCollectivesOfTwoGroupsMayStartInAnotherOrderOnEachRank) {
  for (const char* transport : {"transport=shm", "transport=tcp"}) {
    RunRanks(2,
             {transport, "transport.requests=64", "collective.algorithm=direct",
              "collective.chunk_bytes=8KiB", "collective.timeout=60s"},
             [&](std::shared_ptr<Endpoint> endpoint) {
               auto one = *Communicator::Create(endpoint, "one", AllRanks(2));
               auto other = *Communicator::Create(endpoint, "other", AllRanks(2));
               ASSERT_TRUE(one->Barrier()->Wait().ok());  // links are there
               constexpr size_t kCount = 1 << 18;         // 128 chunks
               const std::vector<float> mine(kCount, 1);
               std::vector<float> of_one(2 * kCount), of_other(2 * kCount);
               const auto start = [&](Communicator& group, std::vector<float>& all) {
                 return group.AllGather(mine.data(), all.data(), kCount, DataType::kFloat32);
               };
               std::vector<WorkPtr> works;
               if (endpoint->rank() == Rank(0)) works.push_back(start(*one, of_one));
               works.push_back(start(*other, of_other));
               if (endpoint->rank() == Rank(1)) works.push_back(start(*one, of_one));
               for (const WorkPtr& work : works) {
                 const absl::Status status = work->Wait();
                 ASSERT_TRUE(status.ok()) << transport << ": " << status;
               }
               EXPECT_EQ(of_one, std::vector<float>(2 * kCount, 1));
               EXPECT_EQ(of_other, of_one);
             });
  }
}

// All priorities at once, of collectives and messages, on one communicator and on two.
TEST(PrioritiesTest, WorksOfAllPrioritiesGiveTheRightResultsBesideEachOther) {
  for (const char* transport : {"transport=shm", "transport=tcp"}) {
    RunRanks(3, {transport, "collective.chunk_bytes=4KiB", "collective.timeout=60s"},
             [&](std::shared_ptr<Endpoint> endpoint) {
               auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
               auto other = *Communicator::Create(endpoint, "other", AllRanks(3));
               constexpr size_t kCount = 200000;
               std::vector<std::vector<float>> data(6, std::vector<float>(kCount, 1));
               std::vector<WorkPtr> works;
               for (size_t i = 0; i < data.size(); ++i) {
                 Communicator& group = i % 2 == 0 ? *world : *other;
                 group.SetPriority(static_cast<Priority>(i % 3));
                 works.push_back(group.AllReduce(data[i].data(), data[i].data(), kCount,
                                                 DataType::kFloat32, ReduceOp::kSum));
               }
               int sent = world->rank().value(), got = -1;
               world->SetPriority(Priority::kHigh);
               works.push_back(world->Send(&sent, sizeof(sent), GroupRank((sent + 1) % 3), 5));
               works.push_back(world->Receive(&got, sizeof(got), GroupRank((sent + 2) % 3), 5));
               for (const WorkPtr& work : works) {
                 const absl::Status status = work->Wait();
                 EXPECT_TRUE(status.ok()) << status;
               }
               EXPECT_EQ(got, (sent + 2) % 3);
               for (const auto& one : data) {
                 EXPECT_EQ(one, std::vector<float>(kCount, 3));
               }
               const std::string text = endpoint->Describe();
               for (const char* line : {"priority high: ", "priority normal: ", "priority low: "}) {
                 EXPECT_THAT(text, HasSubstr(line));
               }
               world->SetPriority(Priority::kNormal);
               EXPECT_TRUE(world->Barrier()->Wait().ok());
             });
  }
}

// A pipeline's message, and a collective, come before what is left of a state that is being copied
// to another rank. The message is longer than what goes ahead of its receive.
TEST(PrioritiesTest, AnUrgentMessageAndCollectiveOvertakeALowMessageThatIsUnderWay) {
  for (const char* transport : {"transport=shm", "transport=tcp"}) {
    RunRanks(2, {transport, "collective.timeout=60s"}, [&](std::shared_ptr<Endpoint> endpoint) {
      auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
      ASSERT_EQ(world->Barrier()->Wait(), absl::OkStatus());  // links are there
      constexpr size_t kState = 32 << 20, kCount = 100'000;   // 128 MiB, 400 kB
      const bool sends = world->rank() == GroupRank(0);
      const GroupRank peer(sends ? 1 : 0);
      const auto move = [&](std::vector<int>& data, uint32_t tag) {
        const size_t bytes = data.size() * sizeof(int);
        return sends ? world->Send(data.data(), bytes, peer, tag)
                     : world->Receive(data.data(), bytes, peer, tag);
      };
      std::vector<int> state(kState, sends ? 1 : 0), message(kCount, sends ? 7 : 0),
          sum(kCount, sends ? 1 : 2);
      // Bytes move once the receiver, whose calls follow each other at once, wants them.
      int ready = 0;
      if (!sends) {
        ASSERT_EQ(world->Receive(&ready, sizeof(ready), peer, 6)->Wait(), absl::OkStatus());
      }
      world->SetPriority(Priority::kLow);
      const WorkPtr low = move(state, 4);
      world->SetPriority(Priority::kHigh);
      const WorkPtr high = move(message, 5);
      const WorkPtr reduce =
          world->AllReduce(sum.data(), sum.data(), kCount, DataType::kInt32, ReduceOp::kSum);
      if (sends) {
        ASSERT_EQ(world->Send(&ready, sizeof(ready), peer, 6)->Wait(), absl::OkStatus());
      }
      for (const WorkPtr& work : {high, reduce, low}) EXPECT_EQ(work->Wait(), absl::OkStatus());
      // By when they ended: the thread that waits may get its core only after all of them.
      EXPECT_LT(high->end_ns(), low->end_ns()) << transport;
      EXPECT_LT(reduce->end_ns(), low->end_ns()) << transport;
      EXPECT_EQ(message, std::vector<int>(kCount, 7));
      EXPECT_EQ(sum, std::vector<int>(kCount, 3));
      EXPECT_EQ(state, std::vector<int>(kState, 1));
    });
  }
}

}  // namespace
}  // namespace weft::collectives
