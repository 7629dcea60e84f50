#include "net/verbs/verbs.h"

#include "base/status.h"
#include "net/transport_module.h"

namespace weft::net {
namespace {

constexpr char kLibrary[] = "libweft-verbs.so";
constexpr char kHint[] = "It is built where libibverbs-dev is installed, and needs libibverbs1";

using PortsEntry = void (*)(const Settings& settings, absl::StatusOr<std::vector<VerbsPort>>* out);

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options) {
  static const absl::StatusOr<TransportEntry> entry =
      LoadTransport(kLibrary, "weft_verbs_transport_1", kHint);
  return MakeTransport(entry, "verbs", options);
}

absl::StatusOr<std::vector<VerbsPort>> ListVerbsPorts(const Settings& settings) {
  WEFT_ASSIGN_OR_RETURN(void* entry, LoadModuleEntry(kLibrary, "weft_verbs_ports_1", kHint));
  absl::StatusOr<std::vector<VerbsPort>> out = absl::UnknownError("not listed");
  reinterpret_cast<PortsEntry>(entry)(settings, &out);
  return out;
}

absl::StatusOr<std::unique_ptr<Transport>> CreateQueuePairTransport(
    const TransportOptions& options) {
  static const auto* entry = new absl::StatusOr<TransportEntry>(
      LoadTransport("libweft-verbs.so", "weft_queue_pair_transport_1", kHint));
  return MakeTransport(*entry, "multipath", options);
}

}  // namespace weft::net
