// Folded Clos fabrics from a handful of numbers. One description covers what is built today:
// leaf-spine and three-tier fat trees, rail-optimised and rail-only leaves, dual-ToR, dual-plane,
// and MegaScale's split down-links; the functions below fill it in for each.
//
//   a pod has `groups` of `hosts_per_group` hosts; a group has its own leaves:
//     one for all NICs, or one for each rail (rail_leaves); times `ports` of a NIC
//   the leaves of a pod reach its `spines`, and these the `cores`, which join the pods
//
// Numbers: hosts h0, h1, ... first, then leaf0, ..., spine0, ..., core0, ...: by pod, then group,
// then rail, then port; spines by pod, then plane; cores by plane. Cables in the same order, hosts'
// first. So node h<i> has id i.
#ifndef WEFT_TOPOLOGY_FABRIC_CLOS_H_
#define WEFT_TOPOLOGY_FABRIC_CLOS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

struct TierSpec {
  Bandwidth bandwidth = Bandwidth::GigabitsPerSecond(400);  // of each cable to the tier below
  absl::Duration delay = absl::Nanoseconds(500);            // of these cables: 100 m of fibre
  int cables = 1;          // between the same two switches, or of one NIC port to its leaf
  Bytes buffer_up;         // of the queue at the lower end of these cables; 0: not stated
  Bytes buffer_down;       // at the upper end
  absl::Duration latency;  // of the tier's switches
  Bytes buffer;            // of the tier's switches; 0: not stated
};

// What of a host or leaf gets spines of its own; paths between planes do not exist.
enum class Planes {
  kOne,
  kByPort,  // dual-plane: port p of every NIC is in plane p
  kByRail,  // rail-only: NIC r of every host is in plane r
};

struct ClosSpec {
  int hosts = 0;  // in all; 0: as many as fit. Pods, groups and their switches without hosts are
                  // not built.
  int hosts_per_group = 16;
  int groups = 8;  // of a pod
  int pods = 1;
  int nics = 1;              // of a host: rails
  int ports = 1;             // of a NIC, each to a leaf of its own
  bool rail_leaves = false;  // a leaf for each rail
  Planes planes = Planes::kOne;
  int spines = 8;  // of a pod, in each plane
  int cores = 0;   // in each plane; 0: two tiers, then one pod. Must divide, or be a multiple of,
                   // `spines`: core c has cables to those spines of every pod that are congruent
                   // to it, as in htsim: c, modulo the smaller of the two numbers
  TierSpec leaf, spine, core;
};

// InvalidArgument names the parameter, its value and what would be right; ResourceExhausted: the
// fabric would have more than kMaxNodes or kMaxLinks.
absl::StatusOr<Fabric> BuildClos(const ClosSpec& spec);

// How many hosts `spec` has room for.
int64_t HostsOf(const ClosSpec& spec);

// MegaScale's fabric (NSDI'24, section 3.6): switches of 64 x 400G, as many up as down; ToR ports
// down are split into 2 x 200G; the eight 200G NICs of a host go to eight ToRs, which serve up to
// 64 hosts. Pods are 32 ToRs and 32 aggregation switches: 256 hosts. The paper does not say how
// many core switches there are: they are as few as the pods' uplinks need.
absl::StatusOr<ClosSpec> MegaScaleClos(int hosts);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_CLOS_H_
