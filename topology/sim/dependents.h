// Which operations wait for each operation of a workload: Workload::After() the other way round.
#ifndef WEFT_TOPOLOGY_SIM_DEPENDENTS_H_
#define WEFT_TOPOLOGY_SIM_DEPENDENTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "topology/sim/workload.h"

namespace weft::topology {

class Dependents {
 public:
  explicit Dependents(const Workload& workload);
  // In order of their ids; twice where an operation waits for `id` twice.
  absl::Span<const OperationId> Of(OperationId id) const {
    return {ids_.data() + begin_[id], begin_[id + 1] - begin_[id]};
  }

 private:
  std::vector<uint32_t> begin_;  // [operation + 1] into ids_
  std::vector<OperationId> ids_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_DEPENDENTS_H_
