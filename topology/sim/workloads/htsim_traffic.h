// Reads htsim's traffic lists ("connection matrices", *.cm) as they are.
//
//   Nodes 16                 header, in any order; Triggers may be left out when there are none
//   Connections 3
//   Triggers 1
//   2->11 id 1 start 0 size 2000000 send_done_trigger 1
//   2->4 id 2 trigger 1 size 2000000
//   2->5 id 3 trigger 1 size 2000000 prio 1
//   trigger id 1 oneshot
//
// Node i is the fabric's i-th endpoint (Fabric::Endpoints). A connection starts at `start`
// (picoseconds) or when `trigger` fires; when it has ended it activates `send_done_trigger` and
// `recv_done_trigger`, here both when the last byte has arrived. A trigger fires
//   oneshot      all that wait for it, when its one activator has ended
//   multishot    one that waits for it each time, in the order of the file
//   barrier      all that wait for it, after `count` activations
// `msg` (a message of a connection that several lines share), `prio` and `addon` change no time
// here and are skipped. `failure` lines name switches of htsim's own fabrics: an error; give faults
// to the simulator instead.
//
// Grammar: sim/datacenter/connection_matrix.cpp of Broadcom/csg-htsim and ultraethernet/uet-htsim.
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_HTSIM_TRAFFIC_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_HTSIM_TRAFFIC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/workload.h"

namespace weft::topology {

// `name` stands before the line number in errors.
absl::StatusOr<Workload> ParseHtsimTraffic(absl::string_view text, absl::string_view name,
                                           const Fabric& fabric);
absl::StatusOr<Workload> ReadHtsimTraffic(const std::string& path, const Fabric& fabric);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_HTSIM_TRAFFIC_H_
