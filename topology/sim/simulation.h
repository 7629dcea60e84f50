// The one interface of both levels of simulation: a fabric, a workload and options in; when
// everything ended, and how loaded everything was, out.
//
//   packet level  packet/  every packet through every queue: ECN, PFC, loss, retransmission
//   flow level    flow/    rates that share links max-min fairly, recomputed when a flow comes or
//                          goes
//
// Deterministic: the same arguments give the same bytes of output on any machine.
#ifndef WEFT_TOPOLOGY_SIM_SIMULATION_H_
#define WEFT_TOPOLOGY_SIM_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/workload.h"

namespace weft::topology {

enum class LoadBalance : uint8_t {
  kEcmp,      // one path a flow, by the hash of its addresses and ports
  kSpray,     // one path a packet, at random
  kAdaptive,  // one path a packet, to the emptiest queue
};

// Hashes other than path_choice.h's. Called for each packet at each switch, or once a path.
class PathHash {
 public:
  virtual ~PathHash() = default;
  struct Flow {
    Endpoint source, target;
    uint16_t source_port = 0;  // 0: none was chosen
  };
  // An index into `next`, which has two links at least, in order of id. The same arguments give the
  // same result.
  virtual size_t Choose(NodeId at, const Flow& flow, absl::Span<const LinkId> next) const = 0;
};

// A change of a link at a time, both directions of its cable.
struct LinkFault {
  absl::Duration at;
  LinkId link;
  enum class Kind : uint8_t { kDown, kUp, kBandwidth } kind = Kind::kDown;
  Bandwidth bandwidth;  // kBandwidth
  bool reroute = true;  // switches compute new routes; false: they go on hashing onto a dead link
};

// What both levels understand. Each level's own options derive from it.
struct SimulationOptions {
  uint64_t seed = 1;
  LoadBalance load_balance = LoadBalance::kEcmp;
  Bytes payload{4096};  // of a full packet
  Bytes header{64};     // on the wire, besides
  absl::Duration limit =
      absl::Seconds(20);           // of simulated time; what has not ended by then is unfinished
  std::vector<LinkFault> faults;   // in order of time
  const PathHash* hash = nullptr;  // must outlive the run; null: path_choice.h's
  // Called now and then with simulated time and operations done; false: stop.
  std::function<bool(absl::Duration now, size_t done)> progress;
};

struct OperationResult {
  absl::Duration started = absl::InfiniteDuration();  // when all that it waited for had ended
  absl::Duration ended = absl::InfiniteDuration();    // infinite: unfinished
  // Packet level: when the source of a transfer knew, which is what its completion queue would say
  // and what other simulators call the completion time.
  absl::Duration acknowledged = absl::InfiniteDuration();
  // Packet level: ended - started exactly; a Duration counts quarters of a nanosecond. -1:
  // unfinished, or a ring or a wide transfer.
  int64_t picoseconds = -1;
};

struct LinkResult {
  Bytes bytes;            // carried, headers included
  int64_t packets = 0;    // packet level
  Bytes queue_max;        // likewise
  double queue_mean = 0;  // bytes, over the time until the last operation ended; likewise
  int64_t marked = 0;     // ECN
  int64_t dropped = 0;
  absl::Duration paused;  // by PFC
};

struct SimulationResult {
  std::vector<OperationResult> operations;  // [workload.size()]
  std::vector<LinkResult> links;            // [fabric.links()]
  absl::Duration end;                       // of the last operation that ended
  int64_t unfinished = 0;
  int64_t link_traversals = 0;  // packets times links; 0 at flow level
  int64_t events = 0;
  int64_t retransmissions = 0;
  std::string deadlock;  // PFC: the cycle of links, if one was found
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_SIMULATION_H_
