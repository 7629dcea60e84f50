#include "net/verbs/verbs.h"

#include "net/transport_module.h"

namespace weft::net {
namespace {

constexpr char kHint[] = "It is built where libibverbs-dev is installed, and needs libibverbs1";

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options) {
  static const auto* entry = new absl::StatusOr<TransportEntry>(
      LoadTransport("libweft-verbs.so", "weft_verbs_transport_1", kHint));
  return MakeTransport(*entry, "verbs", options);
}

}  // namespace weft::net
