#include "tools/observe/host_readings.h"

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"
#include "tools/observe/host_counters.h"

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

// Of version 2 ("0::/path"); version 1 names its controllers between the colons.
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

}  // namespace

void TakeHostReadings(JobView* view, int64_t now_ns, const std::string& root) {
  const HostCounters host = ReadHostCounters(root);
  for (auto& [number, rank] : view->ranks) {
    if (!rank.state.known || !rank.state.exists) continue;
    for (const auto& [port, counters] : host.rdma) {
      for (const auto& [name, value] : counters) {
        rank.readings[{absl::StrCat("nic/", port), name}].Take(static_cast<double>(value), now_ns);
      }
    }
    const std::string cpu = CgroupOf(root, rank.process.pid, "cpu");
    if (!cpu.empty()) TakeFile(cpu + "cpu.stat", {"nr_throttled"}, &rank, now_ns);
    const std::string memory = CgroupOf(root, rank.process.pid, "memory");
    if (memory.empty()) continue;
    TakeFile(memory + "memory.events", {"oom_kill"}, &rank, now_ns);
    TakeFile(memory + "memory.oom_control", {"oom_kill"}, &rank, now_ns);
  }
}

}  // namespace weft::observe
