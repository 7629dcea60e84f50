#include "topology/sim/in_order.h"

namespace weft::topology {

InOrderQueues::Connection InOrderQueues::ConnectionOf(Lane lane) const {
  const Operation& operation = workload_.operation(lane.operation);
  const int more = static_cast<int>(lane.number);
  return {operation.source.host.value(), operation.source.nic + more, operation.target.host.value(),
          operation.target.nic + more, operation.source_port};
}

bool InOrderQueues::Enter(Lane lane) {
  auto [queue, is_free] = waiting_.try_emplace(ConnectionOf(lane));
  if (!is_free) queue->second.push_back(lane);
  return is_free;
}

std::optional<InOrderQueues::Lane> InOrderQueues::Leave(Lane lane) {
  auto queue = waiting_.find(ConnectionOf(lane));
  if (queue->second.empty()) {
    waiting_.erase(queue);
    return std::nullopt;
  }
  const Lane next = queue->second.front();
  queue->second.pop_front();
  return next;
}

}  // namespace weft::topology
