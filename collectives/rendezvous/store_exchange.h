// What an exchange is answered with (StoreOp::kExchange): a set of ranks (rank_set.h), encoded, and
// then the value of each of them, ascending. It has what was wanted and may have more, so that one
// memory file does for all ranks of a host, and one text for all who want nearly everything.
// Nothing here does I/O or has threads.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_STORE_EXCHANGE_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_STORE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/rank_set.h"
#include "collectives/rendezvous/store_budget.h"
#include "collectives/rendezvous/store_protocol.h"

namespace weft::collectives {

// `values` are those of `ranks`. The reply is charged to `budget`, if there is one.
StoreReply EncodeExchanged(const RankSet& ranks, const std::vector<absl::string_view>& values,
                           const std::shared_ptr<StoreBudget>& budget = nullptr);

// The values of `wanted`, of an exchange of `size` ranks, out of such a reply's. kInternal: it is
// none, or lacks some of them.
absl::StatusOr<std::vector<absl::string_view>> PickExchanged(
    const std::vector<absl::string_view>& reply, int32_t size, const RankSet& wanted);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_STORE_EXCHANGE_H_
