// What RoCE NICs are set to for congestion control, what it means, what a fabric wants instead, and
// how it is set, on request.
//
// Names and units: NVIDIA's "Explicit Congestion Notification" page and the parameters of its
// firmware (mlxconfig); mlx5's debugfs has the same under other names. They are DCQCN's (Zhu et
// al., SIGCOMM 2015), as net/cc/dcqcn.h has them.
#ifndef WEFT_NET_ROCE_TUNING_H_
#define WEFT_NET_ROCE_TUNING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "net/cc/dcqcn.h"
#include "net/roce/devices.h"

namespace weft::net {

struct NicParameter {
  absl::string_view name;        // "rpg_time_reset"
  absl::string_view file;        // below an interface's ecn folder: "roce_rp/rpg_time_reset"
  absl::string_view debug_file;  // below mlx5's cc_params: "rp_time_reset"
  absl::string_view unit;        // "us", "Mb/s", "1/1024", "bytes"; empty: a number
  absl::string_view meaning;
  int64_t max = 0;  // of its field
};
absl::Span<const NicParameter> NicParameters();

// What should hold on all NICs of a fabric. Nothing: as it is.
struct NicWishes {
  std::optional<int> priority;           // 0 to 7: DCQCN on for this one, both points
  std::optional<int> traffic_class;      // 0 to 255: DSCP << 2 and the ECN bits
  std::optional<DcqcnParameters> dcqcn;  // as the tuner found them (weft-cc tune)
  std::optional<bool> adaptive_retransmission;
};

// A NIC's value for a parameter that DCQCN's paper has, at a line rate in Gb/s; nothing for others.
// Rates scale with the line. The byte counter has none: a NIC's holds 32,767 bytes at most.
std::optional<int64_t> NicValue(absl::string_view parameter, const DcqcnParameters& dcqcn,
                                double gbps);

struct NicChange {
  std::string device, interface;  // the latter is empty for the whole device
  std::string name;               // of the parameter, "roce_np of priority 3", "traffic class"
  std::string unit, meaning;
  NicSetting now;
  std::optional<int64_t> wanted;  // nothing: no wish

  bool differs() const { return wanted.has_value() && *wanted != now.value; }
};

// Everything that the NICs tell, with the wishes that apply.
std::vector<NicChange> PlanNics(const std::vector<RdmaDevice>& devices, const NicWishes& wishes);

// NotFound: a wish for which no NIC has a setting, and where that would be.
absl::Status CheckWishes(const std::vector<NicChange>& changes, const NicWishes& wishes);

// Writes what differs and reads it back. On an error everything written is put back as it was, and
// the error names the file; what could not be put back is in it, too.
absl::Status ApplyNics(const std::vector<NicChange>& changes);

}  // namespace weft::net

#endif  // WEFT_NET_ROCE_TUNING_H_
