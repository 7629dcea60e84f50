// Whether the first switch of this host still hashes over the next hops that were planned for. When
// a switch behind it dies and routing learns of it, all flows are hashed over what is left, and no
// socket notices: packets arrive, two flows on one link. So a few probes are sent now and then
// whose time to live ends behind the first switch; an answer names the switch that was chosen. When
// one is not the expected one, more are sent, to hosts under two other switches, and the one set of
// next hops that explains all answers is reported (ConnectionPlan::Leaves).
#ifndef WEFT_TOPOLOGY_PLAN_PATH_WATCH_H_
#define WEFT_TOPOLOGY_PLAN_PATH_WATCH_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "topology/plan/connection_plan.h"

namespace weft::topology {

// Names of what answers behind the first switch, of packets from `source` to `target`, [port]; "":
// nothing.
using AskBehindFirst = std::function<std::vector<std::string>(
    const IpAddress& source, const IpAddress& target, absl::Span<const uint16_t> ports)>;
// By UDP packets (udp_prober.h); waits for answers as long as kPathWatchTimeout.
AskBehindFirst UdpAskBehindFirst();
inline constexpr absl::Duration kPathWatchTimeout = absl::Milliseconds(100);

// Not thread-safe.
class PathWatch {
 public:
  // `plan` must outlive it. `own`: the address of a NIC of this host.
  PathWatch(ConnectionPlan& plan, const IpAddress& own, AskBehindFirst ask, uint64_t seed);
  // There is something to watch: a choice at the first switch, among switches whose names are
  // known.
  bool CanSee() const { return !targets_.empty(); }
  // Asks once; what it finds is reported to the plan.
  void Look();
  // Between two looks: at least `least`, and more where many ranks are under the switch, so that
  // all of them together send it about as many probes.
  absl::Duration Interval(absl::Duration least) const;

 private:
  struct Target {  // a switch with hosts, as seen from the own one
    IpAddress address;
    uint32_t count = 0;                       // of equal next hops
    std::map<uint32_t, std::string> members;  // switches, by index
  };
  using Gone = std::set<std::string>;
  std::vector<uint16_t> Ports(const Target& target, const Gone& gone, size_t count);
  std::string Expected(const Target& target, uint16_t port, const Gone& gone) const;
  FiveTuple Tuple(const Target& target, uint16_t port) const;
  std::vector<std::string> Ask(const Target& target, absl::Span<const uint16_t> ports) const;
  std::optional<Gone> Explain(const Target& target);
  Gone Known() const;

  ConnectionPlan& plan_;
  const IpAddress own_;
  const AskBehindFirst ask_;
  Random random_;
  std::string leaf_;
  int ranks_ = 0;  // under the switch
  std::vector<Target> targets_;
  std::set<std::string> names_;  // of all members
};

// The same by a thread of its own.
class PathWatcher {
 public:
  // The one of this process for the plan and the address, as long as any has it. Null: there is
  // nothing that it could see, or no thread.
  static std::shared_ptr<PathWatcher> Share(std::shared_ptr<ConnectionPlan> plan,
                                            const IpAddress& own, absl::Duration interval);
  ~PathWatcher();
  PathWatcher(const PathWatcher&) = delete;
  PathWatcher& operator=(const PathWatcher&) = delete;

 private:
  PathWatcher(std::shared_ptr<ConnectionPlan> plan, const IpAddress& own, absl::Duration interval);
  void Run();

  const std::shared_ptr<ConnectionPlan> plan_;
  const absl::Duration interval_;
  PathWatch watch_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PLAN_PATH_WATCH_H_
