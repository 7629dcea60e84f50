#include "tools/doctor/node.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"
#include "base/natural_less.h"
#include "base/settings.h"
#include "base/status.h"
#include "tools/doctor/libraries.h"
#include "topology/host/discover.h"

namespace weft::doctor {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> LimitOf(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

// memory.max of the control group that we are in, or of one above it: the smallest.
std::optional<Bytes> CgroupMemory(const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::optional<Bytes> smallest;
  for (std::string line; std::getline(groups, line);) {
    if (!absl::StartsWith(line, "0::")) continue;  // version 2
    for (fs::path group = line.substr(3);; group = group.parent_path()) {
      int64_t bytes = 0;
      const fs::path folder = root + "/sys/fs/cgroup" + group.string();
      if (absl::SimpleAtoi(FirstLine(folder / "memory.max"), &bytes) &&
          (!smallest.has_value() || Bytes(bytes) < *smallest)) {
        smallest = Bytes(bytes);
      }
      if (!group.has_relative_path()) break;
    }
  }
  return smallest;
}

Limits ReadLimits(const std::string& root) {
  Limits limits;
  if (auto bytes = LimitOf(RLIMIT_MEMLOCK)) limits.locked_memory = Bytes(*bytes);
  limits.open_files = LimitOf(RLIMIT_NOFILE);
  limits.cgroup_memory = CgroupMemory(root);
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    limits.shared_memory = Bytes(static_cast<int64_t>(shm.f_blocks * shm.f_frsize));
    limits.shared_memory_free = Bytes(static_cast<int64_t>(shm.f_bavail * shm.f_frsize));
  }
  return limits;
}

GpuDirect ReadGpuDirect(const std::string& root) {
  GpuDirect direct;
  direct.driver = FirstLine(root + "/proc/driver/nvidia/version");
  direct.open_driver = absl::StrContains(direct.driver, "Open Kernel Module");
  direct.peer_memory = net::PeerMemoryModule(root);
  return direct;
}

void ReadDeviceNodes(const std::string& root, Node& node) {
  std::error_code error;
  fs::directory_iterator entry(root + "/dev/infiniband", error), end;
  node.device_folder = !error;
  for (; !error && entry != end; entry.increment(error)) {
    if (access(entry->path().c_str(), R_OK | W_OK) == 0) {
      node.device_nodes.push_back(entry->path().filename().string());
    }
  }
  std::sort(node.device_nodes.begin(), node.device_nodes.end(), NaturalLess);
}

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::pair<std::string, std::string> parts = absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    bool ours = false;
    for (const char* prefix : {"NCCL_", "UCX_", "WEFT_"}) {
      ours = ours || absl::StartsWith(parts.first, prefix);
    }
    if (ours && !absl::StrContains(parts.first, "SECRET")) variables.insert(std::move(parts));
  }
  return variables;
}

}  // namespace

absl::Status CheckRoot(const std::string& root) {
  std::error_code error;
  if (fs::is_directory(root + "/sys", error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("root ", root, ": there is no folder sys in it, as a copy of a host has"));
}

absl::StatusOr<Node> ReadNode(const std::string& root) {
  WEFT_RETURN_IF_ERROR(CheckRoot(root));
  Node node;
  if (utsname names{}; uname(&names) == 0) {
    node.host = names.nodename;
    node.kernel = names.release;
  }
  if (!root.empty()) {  // a copy says whose it is, where it has these files
    const fs::path kernel = root + "/proc/sys/kernel";
    if (std::string name = FirstLine(kernel / "hostname"); !name.empty()) node.host = name;
    if (std::string name = FirstLine(kernel / "osrelease"); !name.empty()) node.kernel = name;
  }
  WEFT_ASSIGN_OR_RETURN(node.devices, net::ReadRdmaDevices(root));
  if (root.empty()) net::ReadFirmware(node.devices).IgnoreError();  // root's, with a tool
  ReadDeviceNodes(root, node);
  if (auto machine = topology::DiscoverMachine(); machine.ok()) node.machine = *std::move(machine);
  node.limits = ReadLimits(root);
  node.gpu_direct = ReadGpuDirect(root);
  node.environment = ReadEnvironment();
  auto wish = node.environment.find("NCCL_NET_PLUGIN");
  if (wish != node.environment.end()) node.plugin_wish = wish->second;
  node.libraries = FindLibraries();
  node.plugins = FindNetPlugins(node.plugin_wish);
  if (absl::Status settings = Settings::FromEnvironment().status(); !settings.ok()) {
    node.settings_error = std::string(settings.message());
  }
  return node;
}

PortCounters CountersOf(const std::vector<net::RdmaDevice>& devices) {
  PortCounters counters;
  for (const net::RdmaDevice& device : devices) {
    for (const net::RdmaPort& port : device.ports) {
      counters[absl::StrCat(device.name, ":", port.number)] = port.counters;
    }
  }
  return counters;
}

}  // namespace weft::doctor
