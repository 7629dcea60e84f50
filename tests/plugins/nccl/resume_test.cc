// Connections lose their sockets, those of tcp and those beside the other transports' wires, long
// after NCCL has closed its listeners: no data call returns an error.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "plugins/nccl/peer.h"
#include "tests/net/cutting_proxy.h"
#include "tests/plugins/nccl/instance.h"

namespace weft::harness {
namespace {

constexpr size_t kBytesMax = 2 << 20;
constexpr int kInFlight = 4;  // messages of one connection

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// One end of a connection, its memory, and the messages on it; both ends draw the same sizes.
class End {
 public:
  End(Instance& instance, void* comm, bool sends, uint64_t seed, int messages)
      : api_(instance.api()), comm_(comm), sends_(sends), random_(seed), messages_(messages) {
    memory_.resize(kBytesMax * kInFlight);
    EXPECT_EQ(api_.Register(comm_, memory_.data(), memory_.size(), &handle_), nccl::abi::kSuccess);
  }
  ~End() { api_.Deregister(comm_, handle_); }
  bool done() const { return ended_ == messages_ || !wrong_.empty(); }
  const std::string& wrong() const { return wrong_; }

  void Step() {
    if (begun_ < messages_ && begun_ - ended_ < kInFlight) Begin();
    for (Flight& flight : flights_) {
      if (flight.request == nullptr) continue;
      int done = 0, size = 0;
      if (api_.Test(flight.request, &done, &size) != nccl::abi::kSuccess) {
        wrong_ = absl::StrCat("test: ", LastWarning());
        return;
      }
      if (done == 0) continue;
      flight.request = nullptr;
      ++ended_;
      if (sends_) {  // what would still be read here is found at the other end
        std::memset(At(flight), 0xDD, flight.size);
      } else if (static_cast<size_t>(size) != flight.size || !IsRight(flight)) {
        wrong_ = absl::StrCat("message ", flight.number, " of ", flight.size, " bytes is wrong");
      }
    }
  }

 private:
  struct Flight {
    void* request = nullptr;
    int number = 0;
    size_t size = 0;
    bool begun = false;
  };
  char* At(const Flight& flight) {
    return memory_.data() + (&flight - flights_.data()) * kBytesMax;
  }
  static char ByteOf(const Flight& flight, size_t i) {
    return static_cast<char>((i * 131 + static_cast<size_t>(flight.number) * 7) >> 3);
  }
  bool IsRight(const Flight& flight) {
    for (size_t i = 0; i < flight.size; ++i) {
      if (At(flight)[i] != ByteOf(flight, i)) return false;
    }
    return true;
  }
  void Begin() {
    Flight& flight = flights_[static_cast<size_t>(begun_ % kInFlight)];
    if (flight.request != nullptr) return;
    if (!flight.begun) {
      flight.begun = true;
      flight.number = begun_;
      flight.size = random_.Below(random_.Below(2) == 0 ? 200 : kBytesMax);
      for (size_t i = 0; sends_ && i < flight.size; ++i) At(flight)[i] = ByteOf(flight, i);
      if (!sends_) std::memset(At(flight), 0, flight.size);
    }
    nccl::abi::Result result;
    if (sends_) {
      result = api_.Send(comm_, At(flight), flight.size, 0, handle_, &flight.request);
    } else {
      Received what{{At(flight)}, {handle_}, {kBytesMax}, {0}};
      result = api_.Receive(comm_, what, &flight.request);
    }
    if (result != nccl::abi::kSuccess) wrong_ = absl::StrCat("post: ", LastWarning());
    if (flight.request == nullptr) return;
    flight.begun = false;
    ++begun_;
  }

  NetApi& api_;
  void* const comm_;
  const bool sends_;
  Random random_;
  const int messages_;
  std::vector<char> memory_;
  void* handle_ = nullptr;
  int begun_ = 0, ended_ = 0;
  std::array<Flight, kInFlight> flights_;
  std::string wrong_;
};

// A connection whose way leads through a proxy.
struct Connection {
  Connection(Instance& a, Instance& b, uint64_t seed) {
    Listening listening;
    EXPECT_EQ(b.api().Listen(b.context(), 0, listening.handle.data(), &listening.comm),
              nccl::abi::kSuccess)
        << LastWarning();
    nccl::Handle handle;
    std::memcpy(&handle, listening.handle.data(), sizeof(handle));
    proxy = std::make_unique<net::CuttingProxy>(absl::StrCat("127.0.0.1:", handle.port), seed);
    handle.port = static_cast<uint16_t>(proxy->address().port());
    std::memcpy(listening.handle.data(), &handle, sizeof(handle));
    auto [send, receive] = Meet(a, listening.handle, &b, &listening);
    EXPECT_NE(send.comm, nullptr) << send.warning;
    EXPECT_NE(receive.comm, nullptr) << receive.warning;
    this->send = send.comm, this->receive = receive.comm;
    EXPECT_EQ(b.api().CloseListen(listening.comm), nccl::abi::kSuccess);
  }
  std::unique_ptr<net::CuttingProxy> proxy;
  void *send = nullptr, *receive = nullptr;
};

struct Wire {
  const char *transport, *library;
  bool within = false;  // one instance: scripted devices are of one process
};

class NcclResume : public testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Transport, NcclResume,
                         testing::Values(Wire{"tcp", WEFT_PLUGIN}, Wire{"multipath", WEFT_PLUGIN},
#if WEFT_HAS_UCX
                                         Wire{"ucx", WEFT_PLUGIN},
#endif
                                         Wire{"verbs", WEFT_SCRIPTED_PLUGIN, true}),
                         [](const auto& wire) { return std::string(wire.param.transport); });

TEST_P(NcclResume, CutConnectionsAreSurvivedAfterTheListenersAreClosed) {
  const Environment environment = {{"WEFT_TRANSPORT", GetParam().transport},
                                   {"WEFT_TCP_DEAD_AFTER", "1h"},
                                   {"WEFT_TCP_SOCKETS", "2"}};
  constexpr int kConnections = 3, kMessages = 60;
  std::vector<Connection> connections;
  Instance a(environment, GetParam().library, /*neighbours=*/true);
  std::unique_ptr<Instance> other;
  if (!GetParam().within) other = std::make_unique<Instance>(environment, GetParam().library, true);
  Instance& b = other ? *other : a;
  for (uint64_t i = 0; i < kConnections; ++i) connections.emplace_back(a, b, i);
  std::vector<std::unique_ptr<End>> senders, receivers;
  for (uint64_t i = 0; i < kConnections; ++i) {
    senders.push_back(std::make_unique<End>(a, connections[i].send, true, i, kMessages));
    receivers.push_back(std::make_unique<End>(b, connections[i].receive, false, i, kMessages));
  }
  // Each end has a thread, as each NCCL communicator does, and is not called any more once it is
  // done.
  std::atomic<int> over = 0;
  std::vector<std::thread> threads;
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  auto drive = [&over, give_up](End& end) {
    while (!end.done() && absl::Now() < give_up) end.Step();
    ++over;
  };
  for (auto& end : senders) threads.emplace_back(drive, std::ref(*end));
  for (auto& end : receivers) threads.emplace_back(drive, std::ref(*end));
  Random random(1);
  // No more than so many: on a busy machine each would come before the last was made good.
  for (int left = 100; over < 2 * kConnections; --left) {
    if (left > 0) connections[random.Below(kConnections)].proxy->Cut();
    absl::SleepFor(absl::Milliseconds(1 + random.Below(20)));
  }
  for (std::thread& thread : threads) thread.join();
  int cuts = 0;
  for (size_t i = 0; i < kConnections; ++i) {
    EXPECT_TRUE(senders[i]->done() && receivers[i]->done()) << "connection " << i << " is stuck";
    EXPECT_EQ(senders[i]->wrong(), "");
    EXPECT_EQ(receivers[i]->wrong(), "");
    cuts += connections[i].proxy->cuts();
  }
  EXPECT_GT(cuts, 3 * kConnections);
  senders.clear(), receivers.clear();
}

// A connection of one socket, and what NCCL asks of its ends.
class Pair {
 public:
  Pair() : connection_(a_, b_, 1) {
    for (size_t i = 0; i < 2; ++i) {
      memory_[i].resize(kBytesMax);
      EXPECT_EQ(End(i).api().Register(Comm(i), memory_[i].data(), kBytesMax, &handle_[i]),
                nccl::abi::kSuccess);
    }
    std::fill(memory_[0].begin(), memory_[0].end(), 7);
  }
  ~Pair() {
    for (size_t i = 0; i < 2; ++i) End(i).api().Deregister(Comm(i), handle_[i]);
  }
  net::CuttingProxy& proxy() { return *connection_.proxy; }

  void* Send(size_t size, int tag) {
    void* request = nullptr;
    EXPECT_EQ(a_.api().Send(Comm(0), memory_[0].data(), size, tag, handle_[0], &request),
              nccl::abi::kSuccess);
    return request;
  }
  void* Receive(size_t size, int tag) {
    void* request = nullptr;
    Received what{{memory_[1].data()}, {handle_[1]}, {size}, {tag}};
    EXPECT_EQ(b_.api().Receive(Comm(1), what, &request), nccl::abi::kSuccess);
    return request;
  }
  // Calls these ends, and no other, until `awaited` is done; false: it is not within 20 s.
  bool Await(void** awaited, void** send, void** receive) {
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    while (*awaited != nullptr && absl::Now() < give_up) {
      for (auto [end, request] : {std::pair(&a_, send), std::pair(&b_, receive)}) {
        int done = 0, size = 0;
        if (request == nullptr || *request == nullptr) continue;
        EXPECT_EQ(end->api().Test(*request, &done, &size), nccl::abi::kSuccess) << LastWarning();
        if (done != 0) *request = nullptr;
      }
    }
    return *awaited == nullptr;
  }
  // With all that the proxy holds.
  void LoseSocket() {
    const int before = proxy().cuts();
    proxy().Cut();
    while (proxy().cuts() == before) absl::SleepFor(absl::Milliseconds(1));
    proxy().Hold(false, false);
  }
  bool Arrived(size_t size) const {
    return std::equal(memory_[1].begin(), memory_[1].begin() + static_cast<std::ptrdiff_t>(size),
                      memory_[0].begin());
  }

 private:
  Instance& End(size_t i) { return i == 0 ? a_ : b_; }
  void* Comm(size_t i) const { return i == 0 ? connection_.send : connection_.receive; }

  const Environment environment_ = {{"WEFT_TRANSPORT", "tcp"}, {"WEFT_TCP_SOCKETS", "1"}};
  Instance a_{environment_}, b_{environment_};
  Connection connection_;
  std::array<std::vector<char>, 2> memory_;
  std::array<void*, 2> handle_{};
};

constexpr size_t kSmall = 100;      // done once it is copied
constexpr size_t kLarge = 1 << 20;  // done once the other side has taken it

// As it is when a collective is over for one rank and not for the other.
TEST(NcclTcp, ASenderThatIsNotCalledAnyMoreSaysAgainWhatWasLost) {
  Pair pair;
  pair.proxy().Hold(/*client=*/true, /*server=*/false);
  void *receive = pair.Receive(kSmall, 1), *send = pair.Send(kSmall, 1);
  ASSERT_TRUE(pair.Await(&send, &send, nullptr));
  pair.LoseSocket();
  EXPECT_TRUE(pair.Await(&receive, nullptr, &receive));
  EXPECT_TRUE(pair.Arrived(kSmall));
}

TEST(NcclTcp, AReceiverThatIsNotCalledAnyMoreSaysAgainWhatItHas) {
  Pair pair;
  void *large = pair.Receive(kLarge, 2), *small = pair.Receive(kSmall, 1);
  void* send = pair.Send(kSmall, 1);
  ASSERT_TRUE(pair.Await(&small, &send, &small));
  // The large one's clear-to-send has come before the small one's.
  pair.proxy().Hold(/*client=*/false, /*server=*/true);
  send = pair.Send(kLarge, 2);
  ASSERT_TRUE(pair.Await(&large, &send, &large));
  ASSERT_NE(send, nullptr) << "it has not been told that all is taken";
  pair.LoseSocket();
  EXPECT_TRUE(pair.Await(&send, &send, nullptr));
  EXPECT_TRUE(pair.Arrived(kLarge));
}

TEST(NcclTcp, ListenersShareOneSocketHoweverManyThereAre) {
  const int before = OpenDescriptors();
  {
    Instance one(Environment{{"WEFT_TRANSPORT", "tcp"}});
    Listen(one);
    const int with_one = OpenDescriptors();
    for (int i = 0; i < 50; ++i) Listen(one);
    EXPECT_EQ(OpenDescriptors(), with_one);
  }
  EXPECT_EQ(OpenDescriptors(), before);  // nothing is left once the library is unloaded
}

}  // namespace
}  // namespace weft::harness
