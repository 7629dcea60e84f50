// The half of hwloc_xml.h that is about CPUs and memory. Internal to topology/host.
#ifndef WEFT_TOPOLOGY_HOST_HWLOC_CPUS_H_
#define WEFT_TOPOLOGY_HOST_HWLOC_CPUS_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/host/machine.h"
#include "topology/host/xml_tree.h"

namespace weft::topology::internal {

// The value of <info name=... value=.../> in `object`; null: it has none.
const std::string* FindInfo(const XmlElement& object, absl::string_view name);

// The attribute as a number; an error of `object` when it is missing or none.
absl::StatusOr<int64_t> NumberOf(const XmlElement& object, absl::string_view attribute);

// The attribute "cpuset"; an error of `object` when it is missing or malformed.
absl::StatusOr<CpuSet> CpusOf(const XmlElement& object);

// Packages, NUMA nodes, caches and cores below `machine`.
absl::Status ReadCpus(const XmlElement& machine, MachineParts& parts);

// The NUMA node that CPUs (of a core, or of what a PCI bus hangs on) belong to: the narrowest that
// has them all; if none has, the only one that has some; else -1: cannot be told.
int NumaNodeOf(const MachineParts& parts, const CpuSet& cpus);

}  // namespace weft::topology::internal

#endif  // WEFT_TOPOLOGY_HOST_HWLOC_CPUS_H_
