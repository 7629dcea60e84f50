#include "topology/host/core_cache.h"

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/first_line.h"
#include "topology/host/affinity.h"

namespace weft::topology {

std::optional<Bytes> CoreCache(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (FirstLine(entry.path() / "level") != "2") continue;
    if (FirstLine(entry.path() / "type") == "Instruction") continue;
    const std::string text = FirstLine(entry.path() / "size");
    absl::string_view number = text;
    int64_t kibibytes = 0;
    if (!absl::ConsumeSuffix(&number, "K") || !absl::SimpleAtoi(number, &kibibytes)) continue;
    if (kibibytes > 0 && kibibytes < int64_t{1} << 30) return Bytes(kibibytes * 1024);
  }
  return std::nullopt;
}

std::optional<Bytes> CoreCache() {
  const absl::StatusOr<CpuSet> cpus = AllowedCpus();
  const int cpu = cpus.ok() && !cpus->empty() ? cpus->front() : 0;
  return CoreCache(absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/cache"));
}

}  // namespace weft::topology
