// This host as hwloc sees it: packages, NUMA nodes, cores and their logical processors (PUs), of
// which this process may use some. Discovery reads /sys and takes up to 50 ms on a large host; who
// needs only the number of CPUs asks topology/host/affinity.h.
#ifndef WEFT_TOPOLOGY_HOST_HOST_H_
#define WEFT_TOPOLOGY_HOST_HOST_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/host/affinity.h"

namespace weft {

struct HostCore {
  int package = 0;    // hwloc's logical number, from 0
  int numa_node = 0;  // likewise; the first of those that are local to the core
  CpuSet cpus;        // those PUs of it that this process may use; never empty
};

// An immutable value; thread-safe.
class Host {
 public:
  // The machine that we run on, cut to the affinity mask of the calling thread.
  static absl::StatusOr<Host> Discover();

  // A machine that is only described, all of it usable: hwloc's synthetic form, as
  // "pack:2 numa:1 core:8 pu:2". For tests, and to plan for another machine.
  static absl::StatusOr<Host> FromSynthetic(absl::string_view description);

  // From cores that somebody else found, as the `cores()` of a larger host. InvalidArgument: none.
  static absl::StatusOr<Host> FromCores(std::vector<HostCore> cores);

  // What is left of this host within `cpus`. NotFound: nothing.
  absl::StatusOr<Host> Within(const CpuSet& cpus) const;

  // Cores with at least one usable PU, neighbours beside each other: by package, then NUMA node,
  // then core.
  const std::vector<HostCore>& cores() const { return cores_; }
  int packages() const { return packages_; }      // with a usable core
  int numa_nodes() const { return numa_nodes_; }  // likewise
  CpuSet cpus() const;                            // every usable PU

  // What the `index`-th of `count` processes should be bound to: equal shares of neighbouring
  // cores; of PUs, once processes outnumber cores; and once they outnumber PUs too, one PU each,
  // which some then share. InvalidArgument unless 0 <= index < count.
  absl::StatusOr<CpuSet> Slice(int index, int count) const;

  // "2 packages, 4 NUMA nodes, 16 cores, 32 CPUs (0-31)".
  std::string Describe() const;

 private:
  explicit Host(std::vector<HostCore> cores);

  std::vector<HostCore> cores_;
  int packages_ = 0;
  int numa_nodes_ = 0;
};

}  // namespace weft

#endif  // WEFT_TOPOLOGY_HOST_HOST_H_
