#include "topology/host/affinity.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"
#include "base/read_file.h"
#include "base/status.h"

namespace weft {
namespace {

// CONFIG_NR_CPUS of the largest Linux; glibc's own cpu_set_t ends at 1024.
constexpr size_t kCpusMax = 8192;

class Mask {
 public:
  cpu_set_t* get() { return words_.data(); }
  static constexpr size_t size() { return kCpusMax / 8; }
  void Add(int cpu) { CPU_SET_S(static_cast<size_t>(cpu), size(), get()); }
  bool Has(int cpu) { return CPU_ISSET_S(static_cast<size_t>(cpu), size(), get()); }
  int Count() { return CPU_COUNT_S(size(), get()); }

 private:
  std::array<cpu_set_t, kCpusMax / CPU_SETSIZE> words_{};
};
static_assert(sizeof(cpu_set_t) * 8 == CPU_SETSIZE);

absl::Status Bind(pid_t thread, const CpuSet& cpus) {
  Mask mask;
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= static_cast<int>(kCpusMax)) {
      return absl::InvalidArgumentError(absl::StrCat("there is no CPU ", cpu));
    }
    mask.Add(cpu);
  }
  if (sched_setaffinity(thread, Mask::size(), mask.get()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("bind to the CPUs \"", ToString(cpus), "\""));
}

}  // namespace

namespace internal {

std::optional<double> ParseCpuMax(absl::string_view text) {
  std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  double quota = 0;
  double period = 0;
  if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) ||
      !absl::SimpleAtod(words[1], &period) || quota <= 0 || period <= 0) {
    return std::nullopt;
  }
  return quota / period;
}

// Version 2 has one hierarchy ("0::/path"), version 1 one for each set of controllers
// ("4:cpu,cpuacct:/path"). Inside a container the folder of the path is not there, and the quota is
// in the files of the root.
std::optional<double> ControlGroupQuota(absl::string_view groups, const std::string& mount) {
  std::optional<double> tightest;
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    const bool is_cpu =
        std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end();
    if (!is_cpu && !fields[1].empty()) continue;
    const std::string root = is_cpu ? mount + "/cpu" : mount;
    std::filesystem::path folder = absl::StrCat(root, fields[2]);
    for (; absl::StartsWith(folder.string(), root); folder = folder.parent_path()) {
      const std::optional<double> quota =
          ParseCpuMax(is_cpu ? absl::StrCat(FirstLine(folder / "cpu.cfs_quota_us"), " ",
                                            FirstLine(folder / "cpu.cfs_period_us"))
                             : FirstLine(folder / "cpu.max"));
      if (quota.has_value()) tightest = std::min(*quota, tightest.value_or(*quota));
    }
  }
  return tightest;
}

}  // namespace internal

std::string ToString(const CpuSet& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (end - i > 1) absl::StrAppend(&text, "-", cpus[end - 1]);
    i = end;
  }
  return text;
}

absl::StatusOr<CpuSet> AllowedCpus() {
  Mask mask;
  if (sched_getaffinity(0, Mask::size(), mask.get()) != 0) {
    return ErrnoStatus(errno, "read the affinity mask");
  }
  CpuSet cpus;
  const auto count = static_cast<size_t>(mask.Count());
  for (int cpu = 0; cpus.size() < count; ++cpu) {
    if (mask.Has(cpu)) cpus.push_back(cpu);
  }
  return cpus;
}

namespace {

int CountAllowed() {
  const absl::StatusOr<CpuSet> cpus = AllowedCpus();
  return cpus.ok() ? static_cast<int>(cpus->size()) : 1;
}

// The number of cores, `cores` at most, that the control groups give processor time for.
int WithinQuota(int cores) {
  const absl::StatusOr<std::string> groups = ReadFile("/proc/self/cgroup");
  if (const std::optional<double> quota =
          internal::ControlGroupQuota(groups.ok() ? *groups : "", "/sys/fs/cgroup")) {
    cores = static_cast<int>(std::min<double>(cores, std::ceil(*quota)));
  }
  return std::max(cores, 1);
}

}  // namespace

int AllowedCores() { return WithinQuota(CountAllowed()); }

int JobCores() {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    int cores = 0;
    return text != nullptr && absl::SimpleAtoi(text, &cores) ? cores : 0;
  };
  const int cores = number("WEFT_JOB_CORES");
  if (cores > 0) return cores;
  // Slurm's configuration may give a node more CPUs than it has.
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return WithinQuota(std::max(CountAllowed(), std::min(online, number("SLURM_CPUS_ON_NODE"))));
}

absl::Status BindThread(const CpuSet& cpus) { return Bind(0, cpus); }
absl::Status BindThread(int thread, const CpuSet& cpus) { return Bind(thread, cpus); }

}  // namespace weft
