// The entry of libweft-verbs.so.
#include <utility>

#include "net/verbs/ibverbs_nic.h"
#include "net/verbs/verbs.h"
#include "net/verbs/verbs_transport.h"

namespace weft::net {

extern "C" __attribute__((visibility("default"))) void weft_verbs_transport_1(
    const TransportOptions& options, absl::StatusOr<std::unique_ptr<Transport>>* out) {
  *out = VerbsTransport::Create(options, MakeIbverbsNic());
}

}  // namespace weft::net
