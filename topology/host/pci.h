// PCI addresses, PCI Express links and what a class code says a function is.
#ifndef WEFT_TOPOLOGY_HOST_PCI_H_
#define WEFT_TOPOLOGY_HOST_PCI_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/units.h"

namespace weft::topology {

// "0000:3b:00.0": domain, bus, device (0 to 31), function (0 to 7), in hexadecimal.
struct PciAddress {
  uint32_t domain = 0;
  uint8_t bus = 0;
  uint8_t device = 0;
  uint8_t function = 0;
  auto operator<=>(const PciAddress&) const = default;
};
std::string ToString(PciAddress address);
// Upper or lower case; the domain may be left out or have up to eight digits, as NVML writes it.
std::optional<PciAddress> ParsePciAddress(absl::string_view text);

// A PCI Express link. A field that is 0 is not known.
struct PciLink {
  double gigatransfers = 0;  // a second and lane: 2.5, 5, 8, 16, 32 or 64
  int lanes = 0;
  bool known() const { return gigatransfers > 0 && lanes > 0; }
  // One way, after line coding (8b/10b up to 5 GT/s, 128b/130b up to 32, 242 of 256 bytes of a FLIT
  // at 64), before packet headers. 0: not known.
  Bandwidth bandwidth() const;
  bool operator==(const PciLink&) const = default;
};
std::string ToString(PciLink link);  // "16 GT/s x8"; "?" for what is not known

// "16.0 GT/s PCIe", "8 GT/s": what /sys and NCCL write. 0: none of the known rates.
double ParseTransferRate(absl::string_view text);
// As Linux writes it since 5.7: "16.0 GT/s PCIe"; empty when not known.
std::string TransferRateText(double gigatransfers);

// hwloc knows the product only, as 31.5 GB/s: the widest link (x16, x8, ...; at most `lanes_max`)
// that gives it. Unknown when none does.
PciLink LinkOfBandwidth(Bandwidth bandwidth, int lanes_max = 16);

// Class (base, sub, interface: 0x030200), vendor and device, each 0 when not known.
struct PciIdentity {
  uint32_t class_code = 0;
  uint16_t vendor = 0;
  uint16_t device = 0;
  uint16_t subsystem_vendor = 0;
  uint16_t subsystem_device = 0;
  bool operator==(const PciIdentity&) const = default;
};

enum class DeviceKind : uint8_t { kSwitch, kGpu, kNic, kNvSwitch, kStorage, kOther };
const char* ToString(DeviceKind kind);  // "switch", "gpu", "nic", "nvswitch", "storage", "other"

// By class and vendor alone. A display of another vendor than NVIDIA and AMD is a management
// controller's, no GPU; NVSwitches are NVIDIA's bridges of class 0x0680.
DeviceKind KindOf(const PciIdentity& identity);

// "NVIDIA H100" is beyond us without vendor tools; "NVIDIA 2330" is not. Empty without a vendor.
std::string VendorText(const PciIdentity& identity);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_PCI_H_
