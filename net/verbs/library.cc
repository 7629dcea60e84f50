// The entries of libweft-verbs.so.
#include <memory>
#include <utility>
#include <vector>

#include "net/verbs/ibverbs_nic.h"
#include "net/verbs/pair_transport.h"
#include "net/verbs/ports.h"
#include "net/verbs/verbs.h"
#include "net/verbs/verbs_transport.h"

namespace weft::net {

extern "C" __attribute__((visibility("default"))) void weft_verbs_transport_1(
    const TransportOptions& options, absl::StatusOr<std::unique_ptr<Transport>>* out) {
  *out = VerbsTransport::Create(options, MakeIbverbsNic());
}

extern "C" __attribute__((visibility("default"))) void weft_verbs_ports_1(
    const Settings& settings, absl::StatusOr<std::vector<VerbsPort>>* out) {
  *out = ListPorts(*MakeIbverbsNic(), settings);
}

extern "C" __attribute__((visibility("default"))) void weft_queue_pair_transport_1(
    const TransportOptions& options, absl::StatusOr<std::unique_ptr<Transport>>* out) {
  *out = multipath::PairTransport::Create(options, MakeIbverbsNic());
}

}  // namespace weft::net
