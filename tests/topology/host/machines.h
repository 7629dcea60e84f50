// Machines to test with, as hwloc's XML: made here, after what such servers look like.
#ifndef WEFT_TESTS_TOPOLOGY_HOST_MACHINES_H_
#define WEFT_TESTS_TOPOLOGY_HOST_MACHINES_H_

#include <string>
#include <utility>
#include <vector>

#include "topology/host/machine.h"

namespace weft::topology {

// What hangs on a PCI bus: a function, or a bridge with what is below it.
struct PciPart {
  std::string busid;
  std::string type;              // hwloc's pci_type
  double gigabytes = 31.507692;  // a second: 16 GT/s x16
  bool bridge = false;
  std::string os_devices;  // <object type="OSDev" .../>, ready
  std::vector<PciPart> children;
};

PciPart GpuPart(const std::string& busid, double gigabytes = 31.507692);
// A ConnectX with the RDMA device `rdma` and the interface `interface`; an empty name: none.
PciPart NicPart(const std::string& busid, const std::string& rdma, const std::string& interface,
                double gigabytes = 31.507692);
PciPart StoragePart(const std::string& busid);
// A switch: its upstream port at `busid`, and for each child a downstream port, numbered from
// device 0 of bus `downstream`.
PciPart SwitchPart(const std::string& busid, const std::string& downstream,
                   std::vector<PciPart> children);
PciPart RootPort(const std::string& busid, PciPart child);

struct TestMachine {
  int packages = 2;
  int numa_per_package = 1;
  int cores_per_numa = 4;
  int pus_per_core = 2;
  long memory_per_numa = 1L << 38;
  std::string vendor = "GenuineIntel";
  int family = 6;
  int model = 143;
  // PCI of NUMA nodes, by number; -1: of the machine, as where locality is not told.
  std::vector<std::pair<int, std::vector<PciPart>>> pci;
  std::string distances;  // elements after the Machine, ready

  std::string ToXml() const;
};

// Two packages; under each two switches, with two GPUs and two NICs each: 8 GPUs, 8 NICs.
TestMachine DgxLike();
// Two packages, each with one switch: two GPUs, one NIC; the second NIC hangs on the other package.
TestMachine DualSocket();
// One package, no locality: a GPU, a virtio NIC.
TestMachine CloudVm();
// Two packages of four NUMA nodes; a GPU and a NIC at every second node, without switches.
TestMachine AmdFourNodes();

Machine Load(const TestMachine& machine);

}  // namespace weft::topology

#endif  // WEFT_TESTS_TOPOLOGY_HOST_MACHINES_H_
