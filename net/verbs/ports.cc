#include "net/verbs/ports.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/natural_less.h"
#include "base/status.h"
#include "net/roce/devices.h"
#include "net/verbs/rails.h"

namespace weft::net {
namespace {

// Appends one device's usable ports; why the others cannot be used goes to `reasons`.
void ListPortsOf(Nic& nic, const std::string& name, const VerbsOptions& options,
                 std::vector<VerbsPort>* out, std::string* reasons) {
  const auto because = [&](int port, absl::string_view why) {
    absl::StrAppend(reasons, reasons->empty() ? "" : "; ", name,
                    port > 0 ? absl::StrCat(" port ", port) : "", ": ", why);
  };
  Rail rail;
  auto device = nic.Open(name);
  auto limits = device.ok() ? (*device)->Limits() : device.status();
  if (!limits.ok()) return because(0, limits.status().message());
  rail.device = *std::move(device);
  for (int number = 1; number <= limits->ports; ++number) {
    if (!DeviceIsWanted(options.devices, name, number)) {
      because(number, absl::StrCat(options.devices_origin, " leaves it out"));
      continue;
    }
    absl::Status usable = ExaminePort(*rail.device, number, options, &rail);
    if (!usable.ok()) {
      because(number, usable.message());
      continue;
    }
    out->push_back({name, number, rail.port.gbps, limits->queue_pairs,
                    rail.device->ProbeDmaBuf().ok(), !PeerMemoryModule().empty(), rail.Describe()});
  }
}

}  // namespace

absl::StatusOr<std::vector<VerbsPort>> ListPorts(Nic& nic, const VerbsOptions& options) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, nic.DeviceNames());
  std::sort(names.begin(), names.end(), NaturalLess);
  std::vector<VerbsPort> out;
  std::string reasons;
  for (const std::string& name : names) ListPortsOf(nic, name, options, &out, &reasons);
  if (!out.empty()) return out;
  return absl::NotFoundError(absl::StrCat(
      "no RDMA port can be used",
      options.devices.empty()
          ? ""
          : absl::StrCat(" (", options.devices_origin, "=\"", options.devices, "\")"),
      ": ",
      reasons.empty() ? "there is no device; is a driver loaded, and does this container have "
                        "/dev/infiniband?"
                      : reasons));
}

absl::StatusOr<std::vector<VerbsPort>> ListPorts(Nic& nic, const Settings& settings) {
  const Environment environment = [](const char* name) { return std::getenv(name); };
  WEFT_ASSIGN_OR_RETURN(const VerbsOptions options, ReadVerbsOptions(settings, environment));
  return ListPorts(nic, options);
}

}  // namespace weft::net
