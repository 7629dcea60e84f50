// The hashes of real switches (../ecmp) as the simulator's, on both levels: which of its equal next
// hops a switch takes for a flow of RoCE then follows from addresses and ports.
//
// A transfer without a source port of its own gets the one of RoCEv2's range that its endpoints and
// the seed give, as a NIC gives it by the numbers of the queue pairs.
#ifndef WEFT_TOPOLOGY_SIM_SWITCH_HASHES_H_
#define WEFT_TOPOLOGY_SIM_SWITCH_HASHES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/ecmp/fabric_hashes.h"
#include "topology/sim/simulation.h"

namespace weft::topology {

class SwitchHashes final : public PathHash {
 public:
  // `name`: "per-tier" (PerTierHash: does not polarise), or one function for all switches as
  // ParseHashFunction() knows them ("crc32", "linux"), each with a seed of its own that follows
  // from `seed`; ":resilient" after it makes its groups resilient. Refers to `fabric`, which must
  // outlive it. InvalidArgument names what is wrong.
  static absl::StatusOr<SwitchHashes> Create(const Fabric& fabric, absl::string_view name,
                                             uint64_t seed);
  static std::string Names();  // for --help

  size_t Choose(NodeId at, const Flow& flow, absl::Span<const LinkId> next) const override;

 private:
  SwitchHashes(FabricHashes hashes, uint64_t seed) : hashes_(std::move(hashes)), seed_(seed) {}
  FabricHashes hashes_;
  uint64_t seed_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_SWITCH_HASHES_H_
