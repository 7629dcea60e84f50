// Readings of the ranks of this host: of the cgroup of each process (throttling, memory), of the
// counters of the host's RDMA ports that tell trouble, of the kernel's log, and of the GPUs where a
// dcgm-exporter serves them (setting records.dcgm_exporter).
#ifndef WEFT_TOOLS_OBSERVE_HOST_READINGS_H_
#define WEFT_TOOLS_OBSERVE_HOST_READINGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "tools/observe/dcgm.h"
#include "tools/observe/kernel_log.h"

namespace weft::observe {

struct RankView;

class HostReadings {
 public:
  // `root` stands before /proc, /sys and /dev, for tests. `exporter`: HOST:PORT; empty: none; one
  // that is no address is said, and is none.
  explicit HostReadings(std::string root = "", const std::string& exporter = "");

  // Adds to ranks whose processes live here, `now_ns` by SystemClock. What a file does not say is
  // left out. Of the kernel's log a rank gets what came after its process began: what names a
  // process, that one alone, the rest every rank of the host.
  void Take(absl::Span<RankView* const> ranks, int64_t now_ns);

 private:
  void TakePorts(absl::Span<RankView* const> ranks, int64_t now_ns) const;
  void TakeCgroup(RankView* rank, int64_t now_ns) const;
  void TakeKernelLog(absl::Span<RankView* const> ranks);
  void TakeDevices(absl::Span<RankView* const> ranks, int64_t now_ns);

  const std::string root_;
  KernelLog kernel_log_;
  std::optional<DcgmExporter> exporter_;
};

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_HOST_READINGS_H_
