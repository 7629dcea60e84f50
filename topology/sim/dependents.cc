#include "topology/sim/dependents.h"

#include <cstddef>

namespace weft::topology {

Dependents::Dependents(const Workload& workload) : begin_(workload.size() + 1) {
  const size_t count = workload.size();
  for (OperationId id = 0; id < count; ++id) {
    for (OperationId earlier : workload.After(id)) ++begin_[earlier + 1];
  }
  for (size_t i = 0; i < count; ++i) begin_[i + 1] += begin_[i];
  ids_.resize(begin_[count]);
  std::vector<uint32_t> next(begin_.begin(), begin_.end() - 1);
  for (OperationId id = 0; id < count; ++id) {
    for (OperationId earlier : workload.After(id)) ids_[next[earlier]++] = id;
  }
}

}  // namespace weft::topology
