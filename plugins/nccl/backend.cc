#include "plugins/nccl/backend.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/verbs/options.h"

namespace weft::nccl {
namespace {

constexpr uint32_t kDraws = (kRanks - 1) / kListenersMax;

absl::StatusOr<std::unique_ptr<Backend>> MakeTcp(const Settings& settings, std::string* why) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Device> devices, ListInterfaceDevices(settings, why));
  return CreateTcpBackend(settings, std::move(devices));
}

absl::StatusOr<std::unique_ptr<Backend>> MakeVerbs(const Settings& settings,
                                                   const std::vector<net::VerbsPort>& ports,
                                                   std::string* why) {
  absl::StrAppend(why, settings.Text("transport") == "auto" ? "verbs, as RDMA ports can be used; "
                                                            : "as WEFT_TRANSPORT says; ");
  std::vector<Device> devices = PortDevices(ports);
  if (settings.Bool("verbs.merge_ports") && devices.size() > 1) {
    if (devices.size() > size_t{net::kVerbsRailsMax}) {
      return absl::InvalidArgumentError(absl::StrCat(
          "verbs.merge_ports is true for ", devices.size(), " ports, and ", net::kVerbsRailsMax,
          " can be one device; choose them by verbs.devices or NCCL_IB_HCA"));
    }
    devices = {MergedDevice(devices)};
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    absl::StrAppend(why, i > 0 ? "; " : "", devices[i].description);
  }
  return CreateDomainBackend(HandleTransport::kVerbs, settings, std::move(devices));
}

}  // namespace

Rank DrawRank(uint32_t listener) {
  const net::Nonce random = net::NewNonce();
  uint32_t number = 0;
  std::memcpy(&number, random.data(), sizeof(number));
  return Rank(static_cast<int32_t>(1 + (listener % kListenersMax) * kDraws + number % kDraws));
}

uint32_t ListenerOfRank(Rank rank) { return (static_cast<uint32_t>(rank.value()) - 1) / kDraws; }

const char* ToString(HandleTransport transport) {
  switch (transport) {
    case HandleTransport::kTcp:
      return "tcp";
    case HandleTransport::kVerbs:
      return "verbs";
    case HandleTransport::kUcx:
      return "ucx";
    case HandleTransport::kMultipath:
      return "multipath";
  }
  return "unknown";
}

absl::StatusOr<std::unique_ptr<Backend>> ChooseBackend(const Settings& settings, std::string* why) {
  const std::string& wanted = settings.Text("transport");
  if (wanted == "tcp") return MakeTcp(settings, why);
  if (wanted == "multipath") {
    if (const std::string& wire = settings.Text("multipath.wire"); wire != "udp") {
      return absl::InvalidArgumentError(absl::StrCat("WEFT_MULTIPATH_WIRE=", wire,
                                                     ": the plugin's multipath goes over udp; ",
                                                     "WEFT_TRANSPORT=verbs takes queue pairs"));
    }
    WEFT_ASSIGN_OR_RETURN(std::vector<Device> devices, ListInterfaceDevices(settings, why));
    return CreateDomainBackend(HandleTransport::kMultipath, settings, std::move(devices));
  }
  if (wanted == "ucx") {
    WEFT_ASSIGN_OR_RETURN(std::vector<Device> devices, ListUcxDevices(settings, why));
    return CreateDomainBackend(HandleTransport::kUcx, settings, std::move(devices));
  }
  absl::StatusOr<std::vector<net::VerbsPort>> ports = net::ListVerbsPorts(settings);
  if (ports.ok()) return MakeVerbs(settings, *ports, why);
  // Settings that make no sense are an error also where another transport would do.
  if (wanted == "verbs" || absl::IsInvalidArgument(ports.status())) {
    return Annotate(ports.status(), absl::StrCat("WEFT_TRANSPORT=", wanted));
  }
  absl::StrAppend(why, "not verbs: ", ports.status().message(), "; ");
  return MakeTcp(settings, why);
}

}  // namespace weft::nccl
