// Operation::in_order: of the transfers of one connection one is leaving at a time, and the others
// wait for it in the order in which they were ready.
#ifndef WEFT_TOPOLOGY_SIM_IN_ORDER_H_
#define WEFT_TOPOLOGY_SIM_IN_ORDER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "topology/sim/workload.h"

namespace weft::topology {

class InOrderQueues {
 public:
  struct Lane {
    OperationId operation = 0;
    uint32_t number = 0;  // of a wide transfer: how many NICs beyond its first
  };

  // `workload` must outlive it.
  explicit InOrderQueues(const Workload& workload) : workload_(workload) {}

  // Whether it begins now; else it waits.
  bool Enter(Lane lane);
  // The last byte of `lane` has left: which one begins now, if any waits.
  std::optional<Lane> Leave(Lane lane);

 private:
  using Connection = std::array<int32_t, 5>;
  Connection ConnectionOf(Lane lane) const;

  const Workload& workload_;
  // By connection over which a transfer is leaving: those that wait.
  absl::flat_hash_map<Connection, std::deque<Lane>> waiting_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_IN_ORDER_H_
