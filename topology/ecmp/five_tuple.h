// What a switch can see of a flow: addresses, ports, protocol and, with IPv6, the flow label.
#ifndef WEFT_TOPOLOGY_ECMP_FIVE_TUPLE_H_
#define WEFT_TOPOLOGY_ECMP_FIVE_TUPLE_H_

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::topology {

inline constexpr uint8_t kProtocolTcp = 6;
inline constexpr uint8_t kProtocolUdp = 17;
inline constexpr uint16_t kRoceTargetPort = 4791;  // RoCEv2's UDP destination port (IBTA A17)

// In network order; an IPv4 address is the first four bytes.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};
  bool v6 = false;

  static constexpr IpAddress V4(uint32_t host_order) {
    return {{static_cast<uint8_t>(host_order >> 24), static_cast<uint8_t>(host_order >> 16),
             static_cast<uint8_t>(host_order >> 8), static_cast<uint8_t>(host_order)},
            false};
  }
  // "10.0.0.1", "fd00::1".
  static absl::StatusOr<IpAddress> Parse(absl::string_view text);
  std::string ToString() const;
  constexpr size_t size() const { return v6 ? 16 : 4; }
  auto operator<=>(const IpAddress&) const = default;
};

struct FiveTuple {
  IpAddress source, target;  // of one family
  uint16_t source_port = 0;
  uint16_t target_port = 0;
  uint8_t protocol = kProtocolUdp;
  uint32_t flow_label = 0;  // IPv6's, 20 bits
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_FIVE_TUPLE_H_
