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

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "base/units.h"
#include "collectives/schedule.h"

namespace weft::collectives::planner {

enum class NcclAlgorithm : uint8_t { kRing, kTree, kPat };
enum class NcclProtocol : uint8_t { kLl, kLl128, kSimple };
const char* ToString(NcclAlgorithm algorithm);  // NCCL's names: "Ring"
const char* ToString(NcclProtocol protocol);

// The network between hosts that are all alike.
struct NcclNetwork {
  int nics = 1;          // of a host
  Bandwidth nic;         // of one
  absl::Duration delay;  // one way, of cables and switches
};

class NcclTimes {
 public:
  // `hosts` >= 2, `ranks` >= `hosts`, spread evenly.
  NcclTimes(int ranks, int hosts, const NcclNetwork& network);

  // `bytes` as NCCL counts them: the whole buffer. Nothing: the algorithm does not do that. NCCL
  // has PAT with one rank a host only. Takes time in the order of the hosts: keep the answer.
  std::optional<absl::Duration> Predict(CollectiveKind kind, uint64_t bytes,
                                        NcclAlgorithm algorithm, NcclProtocol protocol) const;

 private:
  std::optional<double> Nanoseconds(CollectiveKind kind, uint64_t bytes, NcclAlgorithm algorithm,
                                    NcclProtocol protocol) const;

  int ranks_, hosts_, ranks_per_host_;
  NcclNetwork network_;
  std::shared_ptr<const GroupPlace> all_, one_a_host_;
};

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_NCCL_TIMES_H_
