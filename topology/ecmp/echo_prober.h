// Probes between hosts that both run this program: UDP with a chosen source port, answered by an
// EchoServer, which says how many routers forwarded the probe (its time to live) and, over IPv4,
// the addresses that they recorded in it (RFC 791's Record Route: each router writes the address of
// the interface by which the packet leaves; Linux does, switch silicon mostly drops or ignores such
// packets). No privilege is needed. No router has to answer, so no limit on ICMP errors matters.
#ifndef WEFT_TOPOLOGY_ECMP_ECHO_PROBER_H_
#define WEFT_TOPOLOGY_ECMP_ECHO_PROBER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "topology/ecmp/five_tuple.h"

namespace weft::topology {

struct EchoAnswer {
  bool heard = false;
  int routers = 0;               // that forwarded the probe, by its time to live
  std::vector<IpAddress> route;  // what they recorded, in order; empty: nothing
  absl::Duration rtt;
};

// What an EchoServer received that asked for no answer (udp_load.h).
struct ReceivedLoad {
  Bytes bytes;          // of datagrams, with their IP and UDP headers
  absl::Duration time;  // between the first and the last
};

// Answers probes from a thread of its own until it is destroyed.
class EchoServer {
 public:
  // The error of the system call that failed, with the address: one whose port is in use.
  static absl::StatusOr<std::unique_ptr<EchoServer>> Open(const IpAddress& address, uint16_t port);
  ~EchoServer();
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

  // Since the last ForgetLoad(). Any thread.
  ReceivedLoad load();
  void ForgetLoad();

 private:
  EchoServer(int fd, bool v6);
  void Serve();
  bool ServeOne();  // a datagram that waits; false: none waits

  int fd_;
  const int header_bytes_;
  std::mutex mutex_;  // of the next three
  int64_t load_bytes_ = 0, load_first_ = 0, load_last_ = 0;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

struct EchoProberOptions {
  IpAddress source, target;  // of one family
  uint16_t target_port = kRoceTargetPort;
  bool records_route = true;                         // IPv4
  absl::Duration timeout = absl::Milliseconds(250);  // for the answers of one round
  int rounds = 4;                                    // ports without an answer are asked again
};

// One thread.
class EchoProber {
 public:
  explicit EchoProber(const EchoProberOptions& options) : options_(options) {}
  // An answer for each port, in their order. A port that is in use is not heard. Takes `timeout`
  // for each round in which a probe is lost.
  absl::StatusOr<std::vector<EchoAnswer>> Ask(absl::Span<const uint16_t> ports);
  int64_t sent() const { return sent_; }
  int64_t lost() const { return lost_; }

 private:
  EchoProberOptions options_;
  int64_t sent_ = 0, lost_ = 0;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_ECHO_PROBER_H_
