// A connection between two instances of the plugin, over each transport, and what NCCL asks of its
// ends, one by one.
#ifndef WEFT_TESTS_PLUGINS_NCCL_PAIR_H_
#define WEFT_TESTS_PLUGINS_NCCL_PAIR_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "plugins/nccl/peer.h"
#include "tests/net/cutting_proxy.h"
#include "tests/plugins/nccl/instance.h"

namespace weft::harness {

struct Wire {
  const char *transport, *library;
  bool within = false;  // one instance: scripted devices are of one process
};

inline std::vector<Wire> Wires() {
  return {
    {"tcp", WEFT_PLUGIN}, {"multipath", WEFT_PLUGIN},
#if WEFT_HAS_UCX
        {"ucx", WEFT_PLUGIN},
#endif
        {"verbs", WEFT_SCRIPTED_PLUGIN, true},
  };
}
inline std::string NameOfWire(const testing::TestParamInfo<Wire>& wire) {
  return wire.param.transport;
}

// A connection whose way leads through a proxy.
struct ProxiedConnection {
  ProxiedConnection(Instance& a, Instance& b, uint64_t seed) {
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

// Two instances, but for a wire that is within one.
class TwoEnds {
 public:
  TwoEnds(const Wire& wire, Environment environment) {
    environment.emplace_back("WEFT_TRANSPORT", wire.transport);
    a_ = std::make_shared<Instance>(environment, wire.library, /*neighbours=*/true);
    b_ = wire.within ? a_ : std::make_shared<Instance>(environment, wire.library, true);
  }
  Instance& a() { return *a_; }
  Instance& b() { return *b_; }

 private:
  std::shared_ptr<Instance> a_, b_;
};

// One connection, from a to b, each end with memory for its messages.
class Pair {
 public:
  static constexpr size_t kBytes = 2 << 20;
  static constexpr absl::Duration kPatience = absl::Seconds(60);  // a bound on hangs

  explicit Pair(const Wire& wire, const Environment& environment = {})
      : ends_(wire, environment), connection_(ends_.a(), ends_.b(), 1) {
    for (size_t i = 0; i < 2; ++i) {
      memory_[i].resize(kBytes);
      EXPECT_EQ(Api(i).Register(Comm(i), memory_[i].data(), kBytes, &handle_[i]),
                nccl::abi::kSuccess);
    }
    std::fill(memory_[0].begin(), memory_[0].end(), 7);
  }
  ~Pair() {
    for (size_t i = 0; i < 2; ++i) Deregister(i);
  }
  net::CuttingProxy& proxy() { return *connection_.proxy; }
  void* Send(size_t size, int tag) {
    void* request = nullptr;
    EXPECT_EQ(Api(0).Send(Comm(0), memory_[0].data(), size, tag, handle_[0], &request),
              nccl::abi::kSuccess);
    return request;
  }
  void* Receive(size_t size, int tag) {
    void* request = nullptr;
    Received what{{memory_[1].data()}, {handle_[1]}, {size}, {tag}};
    EXPECT_EQ(Api(1).Receive(Comm(1), what, &request), nccl::abi::kSuccess);
    return request;
  }
  // Calls the ends whose requests are given, and no other, until `awaited` is done; false: it is
  // not within kPatience.
  bool Await(void** awaited, void** send, void** receive) {
    const absl::Time give_up = absl::Now() + kPatience;
    while (*awaited != nullptr && absl::Now() < give_up) {
      for (size_t i = 0; i < 2; ++i) {
        void** request = i == 0 ? send : receive;
        bool done = false;
        if (request == nullptr || *request == nullptr) continue;
        EXPECT_EQ(Test(i, *request, &done), nccl::abi::kSuccess) << LastWarning();
        if (done) *request = nullptr;
      }
    }
    return *awaited == nullptr;
  }
  // One call to a request of that end.
  Result Test(size_t end, void* request, bool* done) {
    int is_done = 0, size = 0;
    const Result result = Api(end).Test(request, &is_done, &size);
    *done = is_done != 0;
    return result;
  }
  // Sends, one message after the other, until a call fails; after kPatience none has.
  Result SendUntilItFails(size_t size, int tag) {
    const absl::Time give_up = absl::Now() + kPatience;
    void* request = nullptr;
    Result result = nccl::abi::kSuccess;
    while (result == nccl::abi::kSuccess && absl::Now() < give_up) {
      bool done = false;
      result = request != nullptr
                   ? Test(0, request, &done)
                   : Api(0).Send(Comm(0), memory_[0].data(), size, tag, handle_[0], &request);
      if (done) request = nullptr;
    }
    return result;
  }
  void Deregister(size_t end) {
    if (void* handle = std::exchange(handle_[end], nullptr)) Api(end).Deregister(Comm(end), handle);
  }
  // With all that the proxy holds.
  void LoseSocket() {
    const int before = proxy().cuts();
    proxy().Cut();
    while (proxy().cuts() == before) absl::SleepFor(absl::Milliseconds(1));
    proxy().Hold(false, false);
  }
  // How much of what was sent is in the receiver's memory.
  auto Arrived() const { return std::count(memory_[1].begin(), memory_[1].end(), 7); }

 private:
  NetApi& Api(size_t end) { return (end == 0 ? ends_.a() : ends_.b()).api(); }
  void* Comm(size_t end) const { return end == 0 ? connection_.send : connection_.receive; }

  TwoEnds ends_;
  ProxiedConnection connection_;
  std::array<std::vector<char>, 2> memory_;
  std::array<void*, 2> handle_{};
};

}  // namespace weft::harness

#endif  // WEFT_TESTS_PLUGINS_NCCL_PAIR_H_
