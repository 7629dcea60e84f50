// The devices that NCCL sees: for tcp, the network interfaces of this host, each once. NCCL places
// them in its topology by PCI path and guid, and finds them again by name.
#ifndef WEFT_PLUGINS_NCCL_DEVICE_H_
#define WEFT_PLUGINS_NCCL_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/settings.h"
#include "net/tcp/interface.h"

namespace weft::nccl {

struct Device {
  std::string name;            // "eth0"; unique
  std::string pci_path;        // "/sys/devices/pci0000:00/..."; empty: no PCI device
  uint64_t guid = 0;           // the same for two names of one card
  int speed_mbps = 10000;      // of the link; 10 Gbit/s where the kernel does not know
  net::SocketAddress address;  // port 0
};

// The plugin's settings from WEFT_*, completed by NCCL's own where ours are not given:
// NCCL_SOCKET_FAMILY, and NCCL_SOCKET_NTHREADS times NCCL_SOCKET_NSOCKS_PERTHREAD as tcp.sockets.
// (NCCL_SOCKET_IFNAME is net/tcp's matter.) Appends to `why` what was taken from where.
// NotFound, InvalidArgument: a name or a value that makes no sense, with what would be right.
absl::StatusOr<Settings> PluginSettings(std::string* why);

// Those that tcp.interface or NCCL_SOCKET_IFNAME names, in its order; without either all that other
// hosts may reach, loopback only where there is nothing else. Never empty.
absl::StatusOr<std::vector<Device>> ListDevices(const Settings& settings, std::string* why);

// The same choice from a given list, without what sysfs knows.
absl::StatusOr<std::vector<net::Interface>> ChooseInterfaces(std::vector<net::Interface> interfaces,
                                                             absl::string_view filter,
                                                             absl::string_view family,
                                                             absl::string_view origin);

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_DEVICE_H_
