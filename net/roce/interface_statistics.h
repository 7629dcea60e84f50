// The statistics that the driver of a network interface keeps beyond sysfs, as `ethtool -S` shows
// them, and the pauses among them: how often Ethernet's flow control (IEEE 802.3x; PFC, 802.1Qbb)
// stopped a port.
#ifndef WEFT_NET_ROCE_INTERFACE_STATISTICS_H_
#define WEFT_NET_ROCE_INTERFACE_STATISTICS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace weft::net {

// By the driver's names. Empty: the driver keeps none. Errors: kNotFound: no such interface, in
// this network namespace; the kernel's, by name. Some microseconds to a millisecond: some drivers
// ask the device.
absl::StatusOr<std::map<std::string, int64_t>> ReadInterfaceStatistics(
    const std::string& interface);

// Adds `pauses_received` (the peer, a switch, stopped this port) and `pauses_sent` (this port
// stopped its peer), where a driver counts them: the sum over priorities, and of pauses without a
// priority. Names are those of mlx5, bnxt_en, ice and i40e.
void AddPauses(const std::map<std::string, int64_t>& statistics,
               std::map<std::string, int64_t>* counters);

}  // namespace weft::net

#endif  // WEFT_NET_ROCE_INTERFACE_STATISTICS_H_
