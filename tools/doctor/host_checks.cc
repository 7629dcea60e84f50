#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/doctor/checks.h"
#include "topology/host/binding.h"
#include "topology/host/distance.h"
#include "topology/host/findings.h"

namespace weft::doctor {
namespace {

constexpr Bytes kLockedMemoryWanted = GiB(1);
constexpr Bytes kSharedMemoryWanted = GiB(1);
constexpr int64_t kOpenFilesWanted = 65536;

// The one that NCCL takes: it closes a library that has no table for it, and tries the next. Where
// none has, the first that loads; null: none does.
const NetPlugin* FirstThatLoads(const std::vector<NetPlugin>& plugins) {
  const NetPlugin* first = nullptr;
  for (const NetPlugin& plugin : plugins) {
    if (!plugin.tables.empty()) return &plugin;
    if (first == nullptr && !plugin.path.empty()) first = &plugin;
  }
  return first;
}

void CheckPlugin(const Node& node, Findings& findings) {
  const std::string subject = node.plugin_wish.empty()
                                  ? "NCCL's network plugin"
                                  : absl::StrCat("NCCL_NET_PLUGIN=", node.plugin_wish);
  if (node.plugins.empty()) {
    findings.push_back({Severity::kNote, "plugin-none", subject,
                        "turns plugins off: NCCL uses its own InfiniBand and sockets", ""});
    return;
  }
  const NetPlugin* plugin = FirstThatLoads(node.plugins);
  if (plugin == nullptr) {
    std::vector<std::string> errors;
    errors.reserve(node.plugins.size());
    for (const NetPlugin& tried : node.plugins) errors.push_back(tried.error);
    findings.push_back({node.plugin_wish.empty() ? Severity::kNote : Severity::kError,
                        "plugin-missing", subject,
                        absl::StrCat("loads nothing; NCCL would use its own InfiniBand or sockets "
                                     "without an error (",
                                     absl::StrJoin(errors, "; "), ")"),
                        "put the plugin's folder into LD_LIBRARY_PATH and set NCCL_NET_PLUGIN=weft "
                        "on all hosts (docs/nccl-plugin.md)"});
  } else if (plugin->tables.empty()) {
    findings.push_back({Severity::kError, "plugin-empty", subject,
                        absl::StrCat(plugin->path, " exports no ncclNetPlugin table"),
                        "it is no network plugin, or one for another NCCL"});
  } else {
    findings.push_back(
        {Severity::kNote, "plugin", subject,
         absl::StrCat("loads ", plugin->path, " with ", absl::StrJoin(plugin->tables, ", ")), ""});
  }
}

}  // namespace

void CheckLimits(const Node& node, Findings& findings) {
  const Limits& limits = node.limits;
  if (limits.locked_memory.has_value() && *limits.locked_memory < kLockedMemoryWanted) {
    findings.push_back({node.devices.empty() ? Severity::kNote : Severity::kError, "memlock",
                        "locked memory",
                        absl::StrCat("is limited to ", ToString(*limits.locked_memory),
                                     " (ulimit -l): registering buffers with a NIC will fail"),
                        "set memlock to unlimited (limits.conf, LimitMEMLOCK=infinity of the job "
                        "manager's unit, --ulimit memlock=-1 of a container)"});
  }
  if (limits.open_files.has_value() && *limits.open_files < kOpenFilesWanted) {
    findings.push_back({Severity::kNote, "open-files", "open files",
                        absl::StrCat("are limited to ", *limits.open_files,
                                     " (ulimit -n): too few for jobs above some thousand ranks"),
                        absl::StrCat("raise it to ", kOpenFilesWanted, " or more")});
  }
  if (!limits.shared_memory.has_value()) {
    findings.push_back({Severity::kError, "shm", "/dev/shm", "is not there",
                        "mount it: ranks of one host share memory through it"});
  } else if (limits.shared_memory_free < kSharedMemoryWanted) {
    findings.push_back({Severity::kWarning, "shm", "/dev/shm",
                        absl::StrCat("has ", ToString(limits.shared_memory_free), " free of ",
                                     ToString(*limits.shared_memory)),
                        "a container: start it with --shm-size=8g or --ipc=host; else remove what "
                        "dead jobs left there"});
  }
  if (limits.cgroup_memory.has_value()) {
    findings.push_back({Severity::kNote, "cgroup-memory", "memory of the control group",
                        absl::StrCat("is limited to ", ToString(*limits.cgroup_memory)), ""});
  }
}

void CheckPlaces(const Node& node, Findings& findings) {
  if (node.machine.has_value()) {
    const topology::Distances distances(*node.machine);
    const auto nics = topology::NicsOfGpus(*node.machine, distances);
    for (topology::Finding& finding : topology::FindingsOf(*node.machine, distances, nics)) {
      findings.push_back({Severity::kWarning, ToString(finding.kind), std::move(finding.subject),
                          std::move(finding.sentence), ""});
    }
  }
  if (node.gpu_direct.driver.empty() || node.devices.empty()) return;
  const std::string& module = node.gpu_direct.peer_memory;
  if (!module.empty() || node.gpu_direct.open_driver) {
    findings.push_back({Severity::kNote, "gpudirect", "GPU memory",
                        absl::StrCat("can be registered with NICs: ",
                                     module.empty() ? std::string("the open driver exports DMA-BUF")
                                                    : absl::StrCat(module, " is loaded")),
                        ""});
  } else {
    findings.push_back({Severity::kWarning, "gpudirect", "GPU memory",
                        absl::StrCat("cannot be registered with NICs: neither nvidia_peermem nor "
                                     "the open driver (",
                                     node.gpu_direct.driver, ")"),
                        "modprobe nvidia_peermem, or install the open kernel modules; without, "
                        "every byte goes through host memory"});
  }
}

void CheckSoftware(const Node& node, Findings& findings) {
  for (const LibraryFound& library : node.libraries) {
    if (!library.path.empty()) continue;
    const bool verbs = absl::StrContains(library.name, "ibverbs");
    findings.push_back({verbs && !node.devices.empty() ? Severity::kError : Severity::kNote,
                        "library-missing", library.name,
                        absl::StrCat("does not load: ", library.error),
                        verbs ? "install libibverbs1 and ibverbs-providers"
                              : "programs that bring their own NCCL (PyTorch) do not need it"});
  }
  CheckPlugin(node, findings);
  if (!node.settings_error.empty()) {
    findings.push_back({Severity::kError, "settings", "WEFT_*", node.settings_error,
                        "weft-settings lists what there is"});
  }
}

Findings Examine(const Node& node) {
  Findings findings;
  CheckDevices(node, findings);
  CheckCongestionControl(node, findings);
  CheckRetransmission(node, findings);
  CheckCounters(node, findings);
  CheckLimits(node, findings);
  CheckPlaces(node, findings);
  CheckSoftware(node, findings);
  return findings;
}

}  // namespace weft::doctor
