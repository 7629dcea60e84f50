#include "tools/observe/host_readings.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/read_file.h"
#include "tools/observe/host_counters.h"
#include "tools/observe/job_view.h"

namespace weft::observe {
namespace {

// Lines "name value"; those wanted by name.
void TakeFile(const std::string& path, std::initializer_list<const char*> wanted, RankView* rank,
              int64_t now_ns) {
  std::ifstream in(path);
  std::string line;
  for (int lines = 0; lines < 256 && std::getline(in, line); ++lines) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    double value = 0;
    if (words.size() != 2 || !absl::SimpleAtod(words[1], &value)) continue;
    for (const char* name : wanted) {
      if (words[0] == name) rank->readings[{"cgroup", name}].Take(value, now_ns);
    }
  }
}

// The path by version 2 ("0::/path"); version 1 names its controllers between the colons.
std::string CgroupOf(const std::string& root, int64_t pid, absl::string_view controller) {
  std::ifstream in(absl::StrCat(root, "/proc/", pid, "/cgroup"));
  std::string line;
  while (std::getline(in, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) return absl::StrCat(root, "/sys/fs/cgroup", parts[2], "/");
    for (absl::string_view name : absl::StrSplit(parts[1], ',')) {
      if (name == controller) {
        return absl::StrCat(root, "/sys/fs/cgroup/", controller, parts[2], "/");
      }
    }
  }
  return "";
}

bool IsHere(const RankView& rank) { return rank.state.known && rank.state.exists; }

}  // namespace

HostReadings::HostReadings(std::string root, const std::string& exporter)
    : root_(std::move(root)), kernel_log_(root_ + "/dev/kmsg") {
  if (exporter.empty()) return;
  absl::StatusOr<HttpAddress> address = ParseHttpAddress(exporter);
  if (address.ok()) {
    exporter_.emplace(*std::move(address));
  } else {
    WEFT_LOG_WARN("records.dcgm_exporter: ", address.status().message());
  }
}

void HostReadings::TakePorts(absl::Span<RankView* const> ranks, int64_t now_ns) const {
  const HostCounters host = ReadHostCounters(root_);
  for (RankView* rank : ranks) {
    for (const auto& [port, counters] : host.rdma) {
      for (const auto& [name, value] : counters) {
        rank->readings[{absl::StrCat("nic/", port), name}].Take(static_cast<double>(value), now_ns);
      }
    }
  }
}

void HostReadings::TakeCgroup(RankView* rank, int64_t now_ns) const {
  const std::string cpu = CgroupOf(root_, rank->process.pid, "cpu");
  if (!cpu.empty()) TakeFile(cpu + "cpu.stat", {"nr_throttled"}, rank, now_ns);
  const std::string memory = CgroupOf(root_, rank->process.pid, "memory");
  if (memory.empty()) return;
  TakeFile(memory + "memory.events", {"oom_kill"}, rank, now_ns);
  TakeFile(memory + "memory.oom_control", {"oom_kill"}, rank, now_ns);
}

void HostReadings::TakeKernelLog(absl::Span<RankView* const> ranks) {
  for (const KernelMessage& message : kernel_log_.Read()) {
    const std::optional<KernelTrouble> trouble = ParseKernelTrouble(message.text);
    if (!trouble.has_value()) continue;
    const bool names_rank = std::any_of(ranks.begin(), ranks.end(), [&](const RankView* rank) {
      return trouble->process != 0 && rank->process.pid == trouble->process;
    });
    // What the kernel ended for want of memory was no rank, and no rank's trouble.
    if (!names_rank && trouble->name == "oom_kill") continue;
    for (RankView* rank : ranks) {
      if (message.time_ns < rank->process.monotonic_ns) continue;
      if (names_rank && rank->process.pid != trouble->process) continue;
      Reading& reading = rank->readings[{trouble->source, trouble->name}];
      if (!reading.known) reading.Take(0, message.time_ns);
      reading.Take(trouble->number > 0 ? trouble->number : reading.last + 1, message.time_ns);
    }
  }
}

void HostReadings::TakeDevices(absl::Span<RankView* const> ranks, int64_t now_ns) {
  if (!exporter_.has_value()) return;
  const std::vector<DeviceValue>& values = exporter_->Read(absl::FromUnixNanos(now_ns));
  for (RankView* rank : ranks) {
    const std::string path = absl::StrCat(root_, "/proc/", rank->process.pid, "/environ");
    const int device = DeviceOfEnvironment(ReadFile(path, KiB(256)).value_or(""));
    for (const DeviceValue& value : values) {
      if (device >= 0 && value.device != device) continue;
      rank->readings[{absl::StrCat("gpu/", value.device), value.name}].Take(value.value, now_ns);
    }
  }
}

void HostReadings::Take(absl::Span<RankView* const> ranks, int64_t now_ns) {
  // The kernel's words of a process come when it is gone, too.
  TakeKernelLog(ranks);
  std::vector<RankView*> here;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(here),
               [](const RankView* rank) { return IsHere(*rank); });
  if (here.empty()) return;
  TakePorts(here, now_ns);
  TakeDevices(here, now_ns);
  for (RankView* rank : here) TakeCgroup(rank, now_ns);
}

}  // namespace weft::observe
