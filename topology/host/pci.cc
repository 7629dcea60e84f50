#include "topology/host/pci.h"

#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace weft::topology {
namespace {

struct Generation {
  double gigatransfers;
  double coding;  // payload bits of a bit on the wire
};
// PCI Express Base Specification 6.0, section 4.2.
constexpr std::array<Generation, 6> kGenerations = {{{2.5, 8.0 / 10},
                                                     {5, 8.0 / 10},
                                                     {8, 128.0 / 130},
                                                     {16, 128.0 / 130},
                                                     {32, 128.0 / 130},
                                                     {64, 242.0 / 256}}};
constexpr std::array<int, 5> kLanes = {16, 8, 4, 2, 1};

constexpr uint16_t kNvidia = 0x10de;
constexpr uint16_t kAmd = 0x1002;

// Exactly hexadecimal digits, at most `most` of them.
bool ParseHex(absl::string_view text, size_t most, uint32_t limit, uint32_t& value) {
  if (text.empty() || text.size() > most) return false;
  for (char c : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return absl::SimpleHexAtoi(text, &value) && value <= limit;
}

const char* VendorName(uint16_t vendor) {
  switch (vendor) {
    case 0x10de:
      return "NVIDIA";
    case 0x1002:
    case 0x1022:
      return "AMD";
    case 0x8086:
      return "Intel";
    case 0x15b3:
      return "Mellanox";
    case 0x14e4:
      return "Broadcom";
    case 0x1000:
      return "Broadcom/LSI";
    case 0x10b5:
      return "PLX";
    case 0x11f8:
      return "Microchip";
    case 0x1d0f:
      return "Amazon";
    case 0x1af4:
      return "virtio";
    case 0x1da3:
      return "Habana";
    case 0x144d:
      return "Samsung";
    default:
      return nullptr;
  }
}

}  // namespace

std::string ToString(PciAddress address) {
  return absl::StrFormat("%04x:%02x:%02x.%x", address.domain, address.bus, address.device,
                         address.function);
}

std::optional<PciAddress> ParsePciAddress(absl::string_view text) {
  std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() == 2) parts.insert(parts.begin(), "0");
  if (parts.size() != 3) return std::nullopt;
  std::vector<absl::string_view> last = absl::StrSplit(parts[2], '.');
  uint32_t domain = 0;
  uint32_t bus = 0;
  uint32_t device = 0;
  uint32_t function = 0;
  if (last.size() != 2 || !ParseHex(parts[0], 8, UINT32_MAX, domain) ||
      !ParseHex(parts[1], 2, 0xff, bus) || !ParseHex(last[0], 2, 0x1f, device) ||
      !ParseHex(last[1], 1, 7, function)) {
    return std::nullopt;
  }
  return PciAddress{domain, static_cast<uint8_t>(bus), static_cast<uint8_t>(device),
                    static_cast<uint8_t>(function)};
}

Bandwidth PciLink::bandwidth() const {
  for (const Generation& generation : kGenerations) {
    if (generation.gigatransfers == gigatransfers) {
      return Bandwidth::GigabitsPerSecond(gigatransfers * generation.coding * lanes);
    }
  }
  return Bandwidth();
}

std::string ToString(PciLink link) {
  return absl::StrCat(link.gigatransfers > 0 ? absl::StrFormat("%g GT/s", link.gigatransfers) : "?",
                      " x", link.lanes > 0 ? absl::StrCat(link.lanes) : "?");
}

double ParseTransferRate(absl::string_view text) {
  std::vector<absl::string_view> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  double rate = 0;
  if (words.size() < 2 || words[1] != "GT/s" || !absl::SimpleAtod(words[0], &rate)) return 0;
  for (const Generation& generation : kGenerations) {
    if (generation.gigatransfers == rate) return rate;
  }
  return 0;
}

std::string TransferRateText(double gigatransfers) {
  return gigatransfers > 0 ? absl::StrFormat("%.1f GT/s PCIe", gigatransfers) : "";
}

PciLink LinkOfBandwidth(Bandwidth bandwidth, int lanes_max) {
  constexpr double kTolerance = 0.005;  // 8 GT/s x1 and 5 GT/s x2 differ by 1.5 %
  if (!(bandwidth.bytes_per_second() > 0)) return {};
  for (int lanes : kLanes) {
    if (lanes > lanes_max) continue;
    for (const Generation& generation : kGenerations) {
      PciLink link{generation.gigatransfers, lanes};
      if (std::fabs(link.bandwidth() / bandwidth - 1) < kTolerance) return link;
    }
  }
  return {};
}

const char* ToString(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kSwitch:
      return "switch";
    case DeviceKind::kGpu:
      return "gpu";
    case DeviceKind::kNic:
      return "nic";
    case DeviceKind::kNvSwitch:
      return "nvswitch";
    case DeviceKind::kStorage:
      return "storage";
    case DeviceKind::kOther:
      return "other";
  }
  return "?";
}

DeviceKind KindOf(const PciIdentity& identity) {
  const uint32_t base = identity.class_code >> 16;
  const uint32_t sub = (identity.class_code >> 8) & 0xff;
  const bool gpu_vendor = identity.vendor == kNvidia || identity.vendor == kAmd;
  switch (base) {
    case 0x01:
      return DeviceKind::kStorage;
    case 0x02:
      return DeviceKind::kNic;
    case 0x03:
      return sub == 0x02 || gpu_vendor ? DeviceKind::kGpu : DeviceKind::kOther;
    case 0x12:
      return DeviceKind::kGpu;  // processing accelerators: MI300, Gaudi
    case 0x06:
      if (sub == 0x04) return DeviceKind::kSwitch;
      if (sub == 0x80 && identity.vendor == kNvidia) return DeviceKind::kNvSwitch;
      return DeviceKind::kOther;
    default:
      return DeviceKind::kOther;
  }
}

std::string VendorText(const PciIdentity& identity) {
  if (identity.vendor == 0) return "";
  const char* name = VendorName(identity.vendor);
  return absl::StrCat(name == nullptr ? absl::StrFormat("%04x", identity.vendor) : name,
                      absl::StrFormat(" %04x", identity.device));
}

}  // namespace weft::topology
