// Probes of flows over a fabric that is known: which way each of its flows takes.
#ifndef WEFT_TOOLS_TOPO_FLOW_PROBING_H_
#define WEFT_TOOLS_TOPO_FLOW_PROBING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "tools/topo/job_hosts.h"
#include "topology/discovery/probed_flows.h"
#include "topology/ecmp/hash_file.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/routes.h"

namespace weft::topo {

// The fabric, what is known of it, and which of its hosts the job's are.
struct KnownFabric {
  std::unique_ptr<topology::Fabric> fabric;
  topology::HashFile file;
  std::unique_ptr<topology::Routes> routes;
  std::map<topology::SeenNic, topology::Endpoint> endpoint;
};

// Reads the texts of a folder's fabric.toml and hashes.txt. FailedPrecondition: they are of other
// hosts than the job's.
absl::StatusOr<KnownFabric> ReadKnownFabric(const std::string& fabric, const std::string& hashes,
                                            const std::string& folder, const JobHosts& job);

// Probes flows, none from a source port that it has probed the same target from before. Both must
// outlive it.
class FlowProbing {
 public:
  FlowProbing(JobHosts& job, const KnownFabric& known) : job_(job), known_(known) {}

  // Every rank. The flows of all hosts; a target that cannot be probed is told by rank 0.
  // `alike`: every host probes from the same ports.
  absl::StatusOr<std::vector<topology::ProbedFlow>> Flows(const std::string& what, int ports,
                                                          uint64_t salt, bool alike);
  // Every rank. For tables of the switches `wanted`: flows from every NIC whose ways may pass one
  // of them to every NIC beyond, kTableFlows for each path between the two; each is asked for
  // twice, and given where both answers agree. At most kTableTargetsMost targets of a NIC.
  absl::StatusOr<std::vector<topology::ProbedFlow>> TableFlows(const std::set<NodeId>& wanted);
  static constexpr int kTableFlows = 12;
  static constexpr size_t kTableTargetsMost = 256;
  int64_t asked() const { return asked_; }  // flows of all hosts, in the last call
  // The flows of TableFlows() that were answered twice, and those whose two answers differed.
  int64_t twice() const { return twice_; }
  int64_t differing() const { return differing_; }

 private:
  nlohmann::json ProbeOwn(int ports, uint64_t salt, bool alike);
  nlohmann::json ProbeForTables(const std::set<NodeId>& wanted);
  absl::StatusOr<std::vector<topology::ProbedFlow>> Gathered(
      const std::vector<nlohmann::json>& all);
  topology::ProbedFlow Read(int host, const nlohmann::json& row) const;

  JobHosts& job_;
  const KnownFabric& known_;
  std::map<std::pair<topology::SeenNic, topology::SeenNic>, std::set<uint16_t>> probed_;
  int64_t asked_ = 0, twice_ = 0, differing_ = 0;
};

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_FLOW_PROBING_H_
