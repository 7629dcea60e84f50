#include "tools/init/control_plane_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/init/report.h"

namespace weft::init {
namespace {

// Seconds from nothing to all groups, as others say.
struct Published {
  const char* what;
  int ranks;
  const char* seconds;
  const char* source;
};
constexpr Published kPublished[] = {
    {"torch's store, a barrier after each group", 2048, "1047", "MegaScale, NSDI'24, 3.5"},
    {"Redis in its place", 2048, "361", "the same"},
    {"and the groups in an order that needs O(n) barriers", 2048, "< 5", "the same"},
    {"the same", 10000, "< 30", "the same"},
    {"NCCL", 96000, "265", "of NCCLX, arXiv 2510.20171, by a summary"},
};

}  // namespace

nlohmann::ordered_json PrintControlPlane(const Options& options, const ControlPlane& plane) {
  absl::PrintF("simulated: %d ranks on %d hosts, layout %s, a relay a host, %s\n", options.ranks,
               options.hosts, options.mesh.ToText(),
               options.fan_out > 0 ? absl::StrCat(options.fan_out, " of them below another relay")
                                   : "all below the root");
  absl::PrintF("fabric %s\ncosts %s%s\n\n", plane.fabric, ToText(plane.costs),
               options.costs.empty() ? " (measured here)" : "");
  nlohmann::ordered_json phases = nlohmann::ordered_json::object();
  for (size_t p = 0; p < kPhases; ++p) {
    const char* name = ToString(static_cast<Phase>(p));
    phases[name] = plane.phases[p];
    if (static_cast<Phase>(p) == Phase::kGroups)
      continue;  // each rank's own, part of a host's cost
    absl::PrintF("%-12s %10s\n", name, TimeText(plane.phases[p]));
  }
  absl::PrintF("%-12s %10s\n\n", "total", TimeText(plane.total_seconds));
  absl::PrintF(
      "messages over the fabric: %d, %d of them with the root, whose CPU works %s; a "
      "host gets %.1f KB of records, %s\n\n",
      plane.messages, plane.root_messages, TimeText(plane.root_cpu_seconds),
      static_cast<double>(plane.exchange_bytes) * 1e-3,
      options.all_records ? "those of all" : "those that its ranks need");
  absl::PrintF("published, on real clusters (with NCCL's own work, which is not simulated):\n");
  for (const Published& other : kPublished) {
    absl::PrintF("  %6d GPUs %6s s  %s (%s)\n", other.ranks, other.seconds, other.what,
                 other.source);
  }
  return {{"ranks", options.ranks},
          {"hosts", options.hosts},
          {"store", "weft"},
          {"simulated", true},
          {"layout", options.mesh.ToText()},
          {"fabric", plane.fabric},
          {"fan_out", options.fan_out},
          {"costs",
           {{"connection", plane.costs.connection},
            {"message", plane.costs.message},
            {"byte", plane.costs.byte},
            {"host", plane.costs.host},
            {"link", plane.costs.link}}},
          {"phases", phases},
          {"total_seconds", plane.total_seconds},
          {"messages", plane.messages},
          {"root_messages", plane.root_messages},
          {"records", options.all_records ? "all" : "wanted"},
          {"exchange_bytes", plane.exchange_bytes},
          {"server_cpu_seconds", plane.root_cpu_seconds}};
}

}  // namespace weft::init
