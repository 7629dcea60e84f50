// The settings of the verbs transport (verbs.*), and NCCL's where they mean the same and ours is
// not set: NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_IB_ROCE_VERSION_NUM, NCCL_IB_ADDR_FAMILY,
// NCCL_IB_ADDR_RANGE, NCCL_IB_QPS_PER_CONNECTION, NCCL_IB_TC, NCCL_IB_FIFO_TC, NCCL_IB_SL,
// NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT, NCCL_IB_PKEY, NCCL_IB_PCI_RELAXED_ORDERING,
// NCCL_GDR_FLUSH_DISABLE.
#ifndef WEFT_NET_VERBS_OPTIONS_H_
#define WEFT_NET_VERBS_OPTIONS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"
#include "net/verbs/nic.h"

namespace weft::net {

inline constexpr int kVerbsLanesMax = 16;  // queue pairs of one link
inline constexpr int kVerbsRailsMax = 8;   // devices of one transport

// Addresses as "10.1.0.0/16" or "fd00::/8" has them; IPv4's as GIDs have them
// (::ffff:10.1.0.0/112).
struct GidRange {
  Gid prefix{};
  int bits = 0;
  std::string text;  // as it was given
  bool Holds(const Gid& gid) const;
};
absl::StatusOr<GidRange> ParseGidRange(absl::string_view text);

struct VerbsOptions {
  std::string devices;                    // as NCCL_IB_HCA
  std::string devices_origin;             // where that was said, for messages
  int gid_index = -1;                     // -1: chosen
  int roce_version = 2;                   // preferred
  bool ipv6 = false;                      // preferred family of GIDs
  std::optional<GidRange> address_range;  // which no other GID is of
  int queue_pairs = 2;                    // of a link; the larger of both sides' counts
  int traffic_class = 0, service_level = 0;
  int clear_to_send_traffic_class = -1;  // -1: as all
  int timeout = 16, retry_count = 7;
  int pkey_index = 0;
  std::optional<bool> adaptive_retransmission;  // of the devices' firmware; nothing: as it is
  bool relaxed_ordering = true;
  bool flush = true;                    // of what came for another device's memory
  size_t piece_min = 0, piece_max = 0;  // bytes, multiples of 128
  size_t eager_max = 0;                 // bytes of messages that do not wait for their receive
  std::string source_ports;             // file, as tcp.source_ports
  bool mlx5dv_source_port = false;      // beside the flow label
  bool path_search = false;             // where they are drawn
  absl::Duration stall_after;
  absl::Duration give_up_after;

  // After this long a queue pair of these settings has given up by itself, generously: the devices'
  // own timers may take up to four times what they are set to.
  absl::Duration DetectionBound() const;
};

using Environment = std::function<const char*(const char* name)>;  // getenv
absl::StatusOr<VerbsOptions> ReadVerbsOptions(const Settings& settings, const Environment& get);

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_OPTIONS_H_
