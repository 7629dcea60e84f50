#include "collectives/progress_cpus.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"
#include "base/status.h"
#include "net/tcp/interface.h"
#include "topology/host/cpu_mask.h"

namespace weft::collectives {
namespace {

constexpr int kCpusMax = 8192;  // as cpu_mask.h

// "0-3,8"; empty: it is none.
CpuSet ParseCpuList(absl::string_view text) {
  CpuSet cpus;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= kCpusMax) {
      return {};
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

CpuSet Common(const CpuSet& a, const CpuSet& b) {
  CpuSet common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return common;
}

// The folders of /sys that stand for the NICs of the transport.
std::vector<std::string> NicFolders(const Settings& settings, const std::string& sys) {
  std::vector<std::string> folders;
  if (settings.Text("transport") != "verbs") {
    const absl::StatusOr<net::Interface> interface = net::ChooseInterface(settings);
    if (interface.ok()) folders.push_back(absl::StrCat(sys, "/class/net/", interface->name));
    return folders;
  }
  // Names that verbs.devices lists; all where it says otherwise.
  const std::vector<std::string> wanted =
      absl::StrSplit(settings.Text("verbs.devices"), ',', absl::SkipEmpty());
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(sys + "/class/infiniband", error)) {
    const std::string name = entry.path().filename();
    const bool fits =
        wanted.empty() || wanted[0][0] == '^' ||
        std::any_of(wanted.begin(), wanted.end(), [&](absl::string_view word) {
          const absl::string_view device = word.substr(0, word.find(':'));
          return device[0] == '=' ? name == device.substr(1) : absl::StartsWith(name, device);
        });
    if (fits) folders.push_back(entry.path());
  }
  return folders;
}

}  // namespace

absl::StatusOr<CpuSet> ProgressCpus(const Settings& settings, const CpuSet& process,
                                    const std::string& sys) {
  const std::string& wanted = settings.Text("progress.cpus");
  if (wanted == "free") return process;
  if (wanted != "near") {
    CpuSet cpus = Common(ParseCpuList(wanted), process);
    if (!cpus.empty()) return cpus;
    return absl::InvalidArgumentError(
        absl::StrCat("progress.cpus=", wanted, " is near, free or a list of CPUs of which this ",
                     "process may use one, as ", ToString(process)));
  }
  CpuSet near;
  for (const std::string& folder : NicFolders(settings, sys)) {
    int node = -1;  // as the kernel says where it does not know
    if (!absl::SimpleAtoi(FirstLine(folder + "/device/numa_node"), &node) || node < 0) {
      return process;
    }
    const std::optional<CpuSet> cpus = topology::ParseCpuMask(
        FirstLine(absl::StrCat(sys, "/devices/system/node/node", node, "/cpumap")));
    if (cpus.has_value()) near.insert(near.end(), cpus->begin(), cpus->end());
  }
  std::sort(near.begin(), near.end());
  near.erase(std::unique(near.begin(), near.end()), near.end());
  CpuSet cpus = Common(near, process);
  return cpus.empty() ? process : cpus;
}

}  // namespace weft::collectives
