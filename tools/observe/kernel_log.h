// The kernel's log of this host, as /dev/kmsg gives it (Documentation/ABI/testing/dev-kmsg), and
// what of it tells trouble: the words of NVIDIA's driver (Xid), of mlx5, of block devices and file
// systems, of machine checks, of the watchdogs, and of the killer of processes for want of memory.
#ifndef WEFT_TOOLS_OBSERVE_KERNEL_LOG_H_
#define WEFT_TOOLS_OBSERVE_KERNEL_LOG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/file_descriptor.h"

namespace weft::observe {

struct KernelMessage {
  int64_t time_ns = 0;  // of CLOCK_MONOTONIC, but for the time that the host was suspended
  std::string text;
};
// "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT"; lines that belong to the one before are none.
std::optional<KernelMessage> ParseKernelRecord(absl::string_view line);

struct KernelTrouble {
  std::string source;   // "gpu/0000:3b:00", "nic/eth0", "disk/nvme0n1", "memory", "cpu", "kernel"
  std::string name;     // of the reading: "xid", "errors", "oom_kill", "lockups"
  int number = 0;       // of an Xid, which the reading takes; 0: the reading counts
  int64_t process = 0;  // that the message names; 0: none
};
// Without a value where the message tells no trouble that has to do with a job.
std::optional<KernelTrouble> ParseKernelTrouble(absl::string_view text);

class KernelLog {
 public:
  // From the log's beginning. One that cannot be read, as without CAP_SYSLOG, says nothing.
  explicit KernelLog(std::string path = "/dev/kmsg") : path_(std::move(path)) {}

  // What has come since the last call; at most kMessagesMax, the rest with the next call. Waits for
  // nothing.
  std::vector<KernelMessage> Read();
  static constexpr int kMessagesMax = 4096;

 private:
  const std::string path_;
  FileDescriptor file_;
  bool refused_ = false;
  std::string rest_;  // the beginning of a line
};

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_KERNEL_LOG_H_
