// Connections lose their sockets, those of tcp and those beside the other transports' wires, long
// after NCCL has closed its listeners: no data call returns an error.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/plugins/nccl/pair.h"

namespace weft::harness {
namespace {

constexpr size_t kBytesMax = Pair::kBytes;
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

class NcclResume : public testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Transport, NcclResume, testing::ValuesIn(Wires()), NameOfWire);

TEST_P(NcclResume, CutConnectionsAreSurvivedAfterTheListenersAreClosed) {
  const Environment environment = {{"WEFT_TRANSPORT", GetParam().transport},
                                   {"WEFT_TCP_DEAD_AFTER", "1h"},
                                   {"WEFT_TCP_SOCKETS", "2"}};
  constexpr int kConnections = 3, kMessages = 120;
  std::vector<ProxiedConnection> connections;
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
  // How many there are depends on the machine: on a fast one all is over in a tenth of a second.
  EXPECT_GE(cuts, kConnections);
  senders.clear(), receivers.clear();
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
