// Adaptive retransmission: ConnectX NICs send again after times that they fit to what they see, far
// sooner than a queue pair's timeout, which then is the upper bound (MegaScale, section 3.6, turns
// it on for links that flap).
//
// It is a switch of the device's firmware, for all queue pairs of all processes until the device is
// reset: field roce_adp_retrans_en of register ROCE_ACCL (NVIDIA, "Adaptive Retransmission:
// Parameters Control"). No verb reads or sets it, nor a file of the kernel; NVIDIA's mlxreg does,
// or mstreg of mstflint, as root.
#ifndef WEFT_NET_ROCE_ADAPTIVE_RETRANSMISSION_H_
#define WEFT_NET_ROCE_ADAPTIVE_RETRANSMISSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::net {

// Whether the device at a PCI address, "0000:3b:00.0", has it on. Takes some hundred milliseconds,
// 10 s at most. Errors: kNotFound: neither program is installed; kUnimplemented: the firmware has
// no such switch; kDeadlineExceeded; kUnavailable: the program's words (no such device, no
// permission, ...).
absl::StatusOr<bool> ReadAdaptiveRetransmission(const std::string& pci);

// Sets it and reads it back. Errors: those, and kFailedPrecondition: the firmware did not keep it.
absl::Status WriteAdaptiveRetransmission(const std::string& pci, bool on);

}  // namespace weft::net

#endif  // WEFT_NET_ROCE_ADAPTIVE_RETRANSMISSION_H_
