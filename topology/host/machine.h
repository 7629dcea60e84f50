// A host with its devices, as a value: packages, NUMA nodes, caches, cores, and the PCI tree with
// GPUs and NICs. Made from this machine, from a file of another or from a description
// (discover.h), or from NCCL's topology file (nccl_machine.h); what it is good for: distances
// (distance.h), who uses which NIC and CPUs (binding.h), what is odd (findings.h).
//
// The PCI tree is NCCL's. A root port is no element of it: what hangs on one hangs on the NUMA
// node. A switch is one element, under the address of its upstream port.
#ifndef WEFT_TOPOLOGY_HOST_MACHINE_H_
#define WEFT_TOPOLOGY_HOST_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "topology/host/affinity.h"
#include "topology/host/host.h"
#include "topology/host/pci.h"

namespace weft::topology {

// The model of all packages; there are no hosts with two.
struct CpuModel {
  std::string architecture;  // as uname has it: "x86_64", "aarch64"; empty: not known
  std::string vendor;        // as CPUID says: "GenuineIntel", "AuthenticAMD"
  std::string name;          // "Intel(R) Xeon(R) Platinum 8480C"
  int family = 0;            // as /proc/cpuinfo has it; 0: not known
  int model = 0;
};

struct Package {
  int os_index = 0;
};

struct NumaNode {
  int os_index = 0;
  int package = -1;             // index of Machine::packages(); -1: not known
  CpuSet cpus;                  // none: memory alone
  std::optional<Bytes> memory;  // nothing: not known; 0: CPUs alone
};

struct Cache {
  int level = 1;
  char type = 'u';  // 'd'ata, 'i'nstructions, 'u'nified
  Bytes size;
  CpuSet cpus;
};

// One port of a NIC as its users name it: what NCCL calls a net.
struct NicPort {
  std::string name;  // "mlx5_0" of a RDMA device, else the interface: "ens1f0"
  bool rdma = false;
  int number = 1;
  Bandwidth bandwidth;     // of the line; 0: not known
  std::string guid;        // "0x506b4b0300ab1234"; empty: none
  std::optional<bool> up;  // nothing: not known
};

// NVLinks of a GPU to one neighbour.
struct NvLink {
  std::string target;  // a PCI address; of an NVSwitch that a virtual machine hides, no valid one
  DeviceKind target_kind = DeviceKind::kNvSwitch;  // kOther: a CPU (POWER9)
  int count = 0;
};

struct Device {
  DeviceKind kind = DeviceKind::kOther;
  std::string name;                   // "gpu0", "nic3", "switch1": set by Machine::Create
  std::optional<PciAddress> address;  // nothing: not on PCI (virtual NICs)
  int parent = -1;  // the switch that it hangs on, an index of devices(); -1: on the NUMA node
  int numa = -1;    // index of numa_nodes(), the parent's if it has one; -1: not known
  PciIdentity identity;
  PciLink link;      // to its parent, as trained; of a file, as the file has it
  PciLink link_max;  // what both ends of the link can; not known in most files
  std::string model;
  // A NIC's properties:
  std::vector<NicPort> ports;
  std::vector<std::string> interfaces;  // the kernel's network interfaces
  // A GPU's properties, where vendor tools or NCCL told:
  std::vector<NvLink> nvlinks;
  Bandwidth c2c;               // to the CPU, beside PCI (Grace); 0: none
  int index = -1;              // NVML's number
  int compute_capability = 0;  // 90 for 9.0; 0: not known
};

// Beyond any host, with room for virtual functions; distances are a table of all pairs.
inline constexpr size_t kDevicesMax = 2048;
inline constexpr size_t kNumaNodesMax = 256;
inline constexpr size_t kCoresMax = 8192;

struct MachineParts {
  std::string name;  // of the host; may be empty
  CpuModel cpu;
  std::vector<Package> packages;  // none: not known
  std::vector<NumaNode> numa_nodes;
  std::vector<Cache> caches;
  std::vector<HostCore> cores;  // may be empty: a file that knows none
  std::vector<Device> devices;  // a switch before what hangs on it
};

// Immutable; thread-safe.
class Machine {
 public:
  // Puts devices in order (a switch, then what hangs on it; siblings by address) and names them:
  // GPUs by NVML's number where all have one, else in the order of addresses. InvalidArgument: an
  // index that leads nowhere, a parent that is no switch, an address that occurs twice, more of
  // something than there can be.
  static absl::StatusOr<Machine> Create(MachineParts parts);

  const std::string& name() const { return parts_.name; }
  const CpuModel& cpu() const { return parts_.cpu; }
  const std::vector<Package>& packages() const { return parts_.packages; }
  const std::vector<NumaNode>& numa_nodes() const { return parts_.numa_nodes; }
  const std::vector<Cache>& caches() const { return parts_.caches; }
  const std::vector<Device>& devices() const { return parts_.devices; }
  const Device& device(int index) const { return parts_.devices[static_cast<size_t>(index)]; }
  // Indexes of devices(), in the order of their names.
  const std::vector<int>& gpus() const { return gpus_; }
  const std::vector<int>& nics() const { return nics_; }

  // Usable cores; nothing when none is known.
  const std::optional<Host>& host() const { return host_; }

  // "gpu0", "nic1", a port or an interface ("mlx5_0"), a PCI address. NotFound names the nearest.
  absl::StatusOr<int> Find(absl::string_view name) const;

  // "2 packages, 2 NUMA nodes, 112 cores, 224 CPUs (0-223), 8 GPUs, 8 NICs".
  std::string Describe() const;

 private:
  explicit Machine(MachineParts parts);
  MachineParts parts_;
  std::optional<Host> host_;
  std::vector<int> gpus_, nics_;
};

// "nic0 (mlx5_0)": a device for people.
std::string Label(const Device& device);
// All ports together; 0: not known.
Bandwidth LineRate(const Device& nic);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_MACHINE_H_
