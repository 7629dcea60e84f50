// RDMA devices as the kernel shows them under /sys, without opening one: ports, GIDs, counters,
// what congestion control their drivers are set to, and the network interfaces they belong to.
// Works where libibverbs is not installed and in containers without /dev/infiniband.
//
// Sources: Documentation/ABI/stable/sysfs-class-infiniband of Linux; for congestion control the
// "ecn" folder of an interface that NVIDIA's out-of-tree driver makes, else mlx5's cc_params in
// debugfs (drivers/infiniband/hw/mlx5/cong.c; root alone may read it).
#ifndef WEFT_NET_ROCE_DEVICES_H_
#define WEFT_NET_ROCE_DEVICES_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::net {

struct RdmaGid {
  int index = 0;
  std::string gid;        // as in /sys: "0000:0000:0000:0000:0000:ffff:0a01:0001"
  std::string type;       // "IB/RoCE v1", "RoCE v2"; empty: not readable, as in some containers
  std::string interface;  // the network interface that it is an address of; empty: not readable

  bool unset() const;       // all zero
  bool link_local() const;  // fe80::/10
  bool ipv4() const;        // ::ffff:a.b.c.d
  bool roce_v2() const { return type == "RoCE v2"; }
};

// "10.1.0.1" of an IPv4-mapped GID; others as they are.
std::string ShortGid(const RdmaGid& gid);

// What a device is set to, and what sets it.
struct NicSetting {
  int64_t value = 0;
  std::string path;  // of its file, with the root
  // There is no file, and the path is the device's PCI address (adaptive_retransmission.h).
  bool in_firmware = false;
};

// As the driver takes it, too.
inline constexpr int64_t kNoTrafficClass = -1;

struct RdmaPort {
  int number = 1;
  std::string state;     // "ACTIVE", "DOWN", "INIT", ...; empty: not readable
  std::string physical;  // "LinkUp", "Disabled", "Polling", ...
  bool ethernet = false;
  double gbps = 0;                          // 0: not known
  std::vector<RdmaGid> gids;                // those that are set, by index
  std::map<std::string, int64_t> counters;  // of counters/ and hw_counters/
  // Forced on all queue pairs, or kNoTrafficClass: mlx5's tc/1/traffic_class.
  std::optional<NicSetting> traffic_class;

  bool active() const { return state == "ACTIVE"; }
};

// What a NIC's DCQCN is set to.
struct EcnSettings {
  // By priority (802.1p): whether it answers marks with CNPs (roce_np), and slows down at CNPs
  // (roce_rp). Nothing where the driver does not tell.
  std::array<std::optional<NicSetting>, 8> notifies{}, reacts{};
  std::map<std::string, NicSetting> parameters;  // by their names in roce/tuning.h

  bool known() const { return !parameters.empty() || switches_known(); }
  bool switches_known() const;
};

struct NetInterface {
  std::string name;
  int mtu = 0;        // bytes; 0: not known
  std::string state;  // operstate: "up", "down"
  EcnSettings ecn;
};

struct RdmaDevice {
  std::string name;      // "mlx5_0"
  std::string firmware;  // "28.39.1002"; may be empty
  std::string board;     // "MT_0000000838", or the driver's name for it; may be empty
  std::string node_guid;
  std::string pci;                                    // "0000:3b:00.0"; empty: no PCI device (rxe)
  int numa = -1;                                      // -1: not known
  bool nvidia = false;                                // ConnectX, BlueField: by PCI vendor
  std::optional<NicSetting> adaptive_retransmission;  // nothing before ReadFirmware()
  std::vector<RdmaPort> ports;
  std::vector<NetInterface> interfaces;  // by name
  std::vector<std::string> verbs;        // "uverbs0": its nodes under /dev/infiniband
};

// By name, numbers in order: mlx5_2 before mlx5_10. Empty where the kernel has no RDMA. `root` is
// put before /sys: for tests, and for a copy of another host's. Errors: kPermissionDenied and the
// like when the folder is there and cannot be read; what is missing within is left out.
absl::StatusOr<std::vector<RdmaDevice>> ReadRdmaDevices(const std::string& root = "");

// What ConnectX devices of this host keep in their firmware, where it can be read. The first error
// is returned, what could be read stays. No copy of another host, please.
absl::Status ReadFirmware(std::vector<RdmaDevice>& devices);

// "0000:3b:00.0"; empty: no PCI device, or none of that name.
std::string PciAddress(const std::string& device, const std::string& root = "");

// The number that a setting's file holds, alone or after a '=' ("Global tclass=106"). DataLoss:
// what it holds instead.
absl::StatusOr<int64_t> ReadNicSetting(const std::string& path);

// The kernel module by which RDMA devices register GPU memory by its address ("nvidia_peermem");
// empty: none is loaded. Without one there is DMA-BUF.
std::string PeerMemoryModule(const std::string& root = "");

// The largest RoCE MTU (256 to 4096) of packets that fit an interface's MTU, 0 when none does: the
// kernel's rule (iboe_get_mtu), which leaves 96 bytes for the headers of every kind of packet.
int RoceMtu(int interface_mtu);

}  // namespace weft::net

#endif  // WEFT_NET_ROCE_DEVICES_H_
