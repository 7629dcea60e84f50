// How long NCCL's own algorithms take by the costs of this planner: each is predicted by the cost
// function of the same algorithm of ours (ring, double binary tree, PAT, and a chain for NCCL's
// ring with a root) on a table of costs for GPUs whose hosts are joined by a network.
//
// NCCL's protocols differ in what a message costs: LL sends a flag with every 4 bytes of data, so
// that it has the least latency and half the bandwidth; LL128 a flag with every 120 bytes, which
// only some hardware can do; Simple no flags, but a fence and a hand-over between GPU and NIC for
// every chunk. Pure functions: every rank that asks the same hears the same.
#ifndef WEFT_COLLECTIVES_PLANNER_NCCL_TIMES_H_
#define WEFT_COLLECTIVES_PLANNER_NCCL_TIMES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/units.h"
#include "collectives/group_place.h"
#include "collectives/schedule.h"

namespace weft::collectives::planner {

enum class NcclAlgorithm : uint8_t { kRing, kTree, kPat };
enum class NcclProtocol : uint8_t { kLl, kLl128, kSimple };
const char* ToString(NcclAlgorithm algorithm);  // NCCL's names: "Ring"
const char* ToString(NcclProtocol protocol);

// The network between hosts that count as alike: each has what the slowest has.
struct NcclNetwork {
  int nics = 1;          // of a host
  Bandwidth nic;         // of one
  absl::Duration delay;  // one way, of cables and switches
  // By host of the communicator: its switch, and the rates of NICs and of the switch's cables
  // (fabric_network.h). Empty: nothing is known of switches.
  std::vector<RankPlace> hosts;
};

class NcclTimes {
 public:
  // `hosts` >= 2, `ranks` >= `hosts`, spread evenly. `network.hosts`: none, or `hosts` of them.
  NcclTimes(int ranks, int hosts, const NcclNetwork& network);

  // `bytes` as NCCL counts them: the whole buffer. Nothing: the algorithm does not do that. NCCL
  // has PAT with one rank a host only. Takes time in the order of the hosts: keep the answer.
  std::optional<absl::Duration> Predict(CollectiveKind kind, uint64_t bytes,
                                        NcclAlgorithm algorithm, NcclProtocol protocol) const;

 private:
  std::optional<double> Nanoseconds(CollectiveKind kind, uint64_t bytes, NcclAlgorithm algorithm,
                                    NcclProtocol protocol) const;

  // A protocol's flags travel as well: to its data all rates are lower.
  struct Places {
    std::shared_ptr<const GroupPlace> all, one_a_host;
  };
  Places PlacesOf(NcclProtocol protocol) const;

  int ranks_, hosts_, ranks_per_host_;
  NcclNetwork network_;
  std::array<Places, 3> places_;  // by protocol
};

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_NCCL_TIMES_H_
