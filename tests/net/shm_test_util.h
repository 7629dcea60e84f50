// What the tests of shm share: a pair of transports in one process, pumped by hand.
#ifndef WEFT_TESTS_NET_SHM_TEST_UTIL_H_
#define WEFT_TESTS_NET_SHM_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "net/handshake.h"
#include "net/shm/shm_transport.h"
#include "net/transport.h"

namespace weft::net {

inline absl::Time Now() { return SystemClock().Now(); }

// One rank: a transport, what it was told, and its links by peer.
struct ShmNode : TransportEvents {
  explicit ShmNode(int rank, int world_size = 64,
                   const std::vector<std::pair<std::string, std::string>>& settings = {}) {
    options.self = Rank(rank);
    options.world_size = world_size;
    options.secret.fill(7);
    options.events = this;
    for (const auto& [name, value] : settings) {
      EXPECT_TRUE(options.settings.Set(name, value, "test").ok()) << name;
    }
  }
  void Open() {
    auto made = ShmTransport::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    transport = *std::move(made);
  }

  void OnAccepted(std::unique_ptr<ReceiveLink> link) override {
    accepted.push_back(std::move(link));
  }
  void OnNotice(Link&, absl::string_view bytes) override { notices.emplace_back(bytes); }
  void OnBroken(Link&, const absl::Status& status) override { broken.push_back(status); }
  void OnMismatch(Link&, const absl::Status& status) override { mismatches.push_back(status); }
  bool Wants(uint64_t tag) override { return tag != unwanted; }

  TransportOptions options;
  std::unique_ptr<Transport> transport;
  std::vector<std::unique_ptr<ReceiveLink>> accepted;
  std::vector<std::string> notices;
  std::vector<absl::Status> broken;
  std::vector<absl::Status> mismatches;
  uint64_t unwanted = UINT64_MAX;  // tag
};

// As `rank` of the job that `node` is of.
inline HandshakeIdentity IdentityOf(const ShmNode& node, int rank) {
  return {Rank(rank), node.options.world_size, node.options.secret, HandshakePurpose::kShmLink};
}

// Bounds a hang; no test expects to come near it.
inline constexpr absl::Duration kPatience = absl::Seconds(60);
// For alarm() in forked processes, so that none outlives a test that was killed. Longer than all
// that a test waits for: a process that ends of it would end the test's wait.
inline constexpr unsigned kAlarmSeconds = 300;

// Turns all of them until `done`; false after `limit`, which only a hang reaches.
inline bool PumpUntil(std::vector<ShmNode*> nodes, const std::function<bool()>& done,
                      absl::Duration limit = kPatience) {
  absl::Time end = Now() + limit;
  while (!done()) {
    if (Now() > end) return false;
    for (ShmNode* node : nodes) node->transport->Progress(Now());
  }
  return true;
}

// Turns one, sleeping in between as an owner would.
inline bool SleepUntil(ShmNode* node, const std::function<bool()>& done,
                       absl::Duration limit = kPatience) {
  absl::Time end = Now() + limit;
  while (!done()) {
    if (Now() > end) return false;
    if (node->transport->Progress(Now())) continue;
    if (done()) break;
    if (node->transport->PrepareWait()) {
      absl::Time until = std::min(end, node->transport->NextDeadline());
      auto wait = absl::ToInt64Milliseconds(until - Now()) + 1;
      pollfd fd{node->transport->wait_fd(), POLLIN, 0};
      poll(&fd, 1, static_cast<int>(std::max<int64_t>(0, wait)));
    }
    node->transport->FinishWait();
  }
  return true;
}

inline std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  Random random(seed);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

inline RegionView View(Transport& transport, std::vector<std::byte>& bytes) {
  return transport.Register(bytes.data(), bytes.size())->view();
}

// a -> b, up.
struct ShmPair {
  explicit ShmPair(const std::vector<std::pair<std::string, std::string>>& settings = {})
      : a(0, 64, settings), b(1, 64, settings) {
    a.Open();
    b.Open();
    sender = a.transport->Connect(b.transport->address(), Rank(1), Now());
    EXPECT_TRUE(PumpUntil({&a, &b}, [&] { return !b.accepted.empty(); }));
    if (!b.accepted.empty()) receiver = std::move(b.accepted[0]);
    b.accepted.clear();
  }
  bool Pump(const std::function<bool()>& done) { return PumpUntil({&a, &b}, done); }

  ShmNode a, b;
  std::unique_ptr<SendLink> sender;
  std::unique_ptr<ReceiveLink> receiver;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_SHM_TEST_UTIL_H_
