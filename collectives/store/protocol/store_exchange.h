// The answer to an exchange (StoreOp::kExchange): an encoded set of ranks (rank_set.h), and then
// the value of each of them, ascending. It holds the requested ranks and may hold more, so that all
// ranks of a host share one memory file, and all clients that request nearly everything share one
// text. Nothing here does I/O or has threads.
#ifndef WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_EXCHANGE_H_
#define WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/store/protocol/store_budget.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/rank_set.h"

namespace weft::collectives {

// `values` are those of `ranks`. The reply is charged to `budget`, if there is one.
StoreReply EncodeExchanged(const RankSet& ranks, const std::vector<absl::string_view>& values,
                           const std::shared_ptr<StoreBudget>& budget = nullptr);

// The values of `wanted`, of an exchange of `size` ranks, out of such a reply's. kInternal: it is
// none, or lacks some of them.
absl::StatusOr<std::vector<absl::string_view>> PickExchanged(
    const std::vector<absl::string_view>& reply, int32_t size, const RankSet& wanted);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_EXCHANGE_H_
