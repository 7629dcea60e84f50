// The devices that NCCL sees: network interfaces of this host for tcp and multipath, RDMA ports for
// verbs, either for ucx, each once; and those that NCCL has merged (makeVDevice). NCCL places them
// in its topology by PCI path and guid, and finds them again by name.
#ifndef WEFT_PLUGINS_NCCL_DEVICE_H_
#define WEFT_PLUGINS_NCCL_DEVICE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/settings.h"
#include "net/tcp/interface.h"
#include "net/verbs/verbs.h"
#include "plugins/nccl/abi/common.h"

namespace weft::nccl {

struct Device {
  std::string name;        // "eth0", "mlx5_0", "mlx5_0+mlx5_1"; unique
  std::string pci_path;    // "/sys/devices/pci0000:00/..."; empty: no PCI device
  uint64_t guid = 0;       // the same for two names of one card
  int speed_mbps = 10000;  // of the link; 10 Gbit/s where the kernel does not know
  int port = 0;            // of the card
  int connections_max = 65536;
  int pointers = abi::kPointerHost;  // kinds of memory that it can be given
  SocketAddress address;             // of an interface; port 0
  std::string rail;                  // of an RDMA port, as in verbs.devices: "mlx5_0:1"
  std::vector<int> parts;            // physical devices of a merged one
  bool software = false;             // an RDMA device of the kernel's, such as rxe: on no PCI bus
  std::string description;           // for people, where there is more to say
};

// A list that grows while others read it; what was ever in it stays where it is, and as it is.
class DeviceList {
 public:
  static constexpr size_t kMax = 512;
  explicit DeviceList(std::vector<Device> devices);

  size_t size() const { return size_.load(std::memory_order_acquire); }
  const Device& operator[](int device) const { return *all_[static_cast<size_t>(device)]; }
  // InvalidArgument where there is no such device.
  absl::Status Check(int device) const;
  // Resource exhausted when full. One thread at a time.
  absl::StatusOr<int> Add(Device device);
  // Nobody asks for what was added since the list was made: it is shortened to what was there.
  void ForgetAdded();

 private:
  std::array<std::unique_ptr<const Device>, kMax> all_;
  std::atomic<size_t> size_{0};
  size_t first_size_ = 0;
  std::vector<std::unique_ptr<const Device>> forgotten_;  // whose names NCCL has
};

// The plugin's settings from WEFT_*, completed by NCCL's own where ours are not given:
// NCCL_SOCKET_FAMILY, and NCCL_SOCKET_NTHREADS times NCCL_SOCKET_NSOCKS_PERTHREAD as tcp.sockets.
// (NCCL_SOCKET_IFNAME is net/tcp's matter.) Appends to `why` what was taken from where.
// NotFound, InvalidArgument: a name or a value that makes no sense, with what would be right.
absl::StatusOr<Settings> PluginSettings(std::string* why);

// Interfaces: those that tcp.interface or NCCL_SOCKET_IFNAME names, in its order; without either
// all that other hosts may reach, loopback only where there is nothing else. Never empty.
absl::StatusOr<std::vector<Device>> ListInterfaceDevices(const Settings& settings,
                                                         std::string* why);

// RDMA ports as verbs has them, with what sysfs knows of each.
std::vector<Device> PortDevices(const std::vector<net::VerbsPort>& ports);

// Devices, each for one UCX worker: what ucx.net_devices or UCX_NET_DEVICES lists; else the
// active RDMA ports that NCCL_IB_HCA admits, where there are any; else interfaces.
absl::StatusOr<std::vector<Device>> ListUcxDevices(const Settings& settings, std::string* why);

// All of `parts`, which are physical ones, as one: "a+b", with the sum of their speeds, in the
// place of the first.
Device MergedDevice(const std::vector<Device>& parts);

// The same choice from a given list, without what sysfs knows.
absl::StatusOr<std::vector<net::Interface>> ChooseInterfaces(std::vector<net::Interface> interfaces,
                                                             absl::string_view filter,
                                                             absl::string_view family,
                                                             absl::string_view origin);

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_DEVICE_H_
