// What is wrong with a host, from what was read of it. Pure functions, in the order of the report.
#ifndef WEFT_TOOLS_DOCTOR_CHECKS_H_
#define WEFT_TOOLS_DOCTOR_CHECKS_H_

#include "absl/time/time.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/node.h"

namespace weft::doctor {

// Devices, their nodes, ports, GIDs, MTU.
void CheckDevices(const Node& node, Findings& findings);
// ECN, DCQCN and traffic classes, one device against another.
void CheckCongestionControl(const Node& node, Findings& findings);
// What the firmware does about losses.
void CheckRetransmission(const Node& node, Findings& findings);
// Error counters since the devices started: notes, since they may be old.
void CheckCounters(const Node& node, Findings& findings);
// Error counters that grew within `watched`: warnings.
void CheckGrowth(const PortCounters& before, const PortCounters& after, absl::Duration watched,
                 Findings& findings);
// Locked memory, open files, shared memory, control groups.
void CheckLimits(const Node& node, Findings& findings);
// PCI and NUMA (topology/host/findings.h), and how NICs reach GPU memory.
void CheckPlaces(const Node& node, Findings& findings);
// Libraries, NCCL's plugin, settings.
void CheckSoftware(const Node& node, Findings& findings);

// All of them but the growth.
Findings Examine(const Node& node);

// The GID that NCCL's rule takes for RoCE: an IPv4 address with RoCE v2, the first; else any RoCE
// v2 one that is not link-local; null when there is neither.
const net::RdmaGid* ChosenGid(const net::RdmaPort& port);

}  // namespace weft::doctor

#endif  // WEFT_TOOLS_DOCTOR_CHECKS_H_
