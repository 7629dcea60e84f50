#include "topology/sim/reachable.h"

#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace weft::topology {

absl::Status CheckReachable(const Workload& workload, const Routes& routes,
                            absl::Span<const LinkFault> faults) {
  if (absl::c_any_of(faults, [](auto& fault) { return fault.kind == LinkFault::Kind::kUp; })) {
    return absl::OkStatus();
  }
  std::string first;
  int64_t cut_off = 0;
  auto check = [&](OperationId id, Endpoint source, Endpoint target) {
    if (source.host == target.host || !routes.First(source, target).empty()) return;
    if (cut_off++ > 0) return;
    const Fabric& fabric = routes.fabric();
    first = absl::StrCat("operation ", id, ": there is no way from ", fabric.node(source.host).name,
                         " to ", fabric.node(target.host).name);
  };
  for (OperationId id = 0; id < workload.size(); ++id) {
    const Operation& operation = workload.operation(id);
    for (int lane = 0; lane < operation.width; ++lane) {
      auto on_lane = [lane](Endpoint at) { return Endpoint{at.host, at.nic + lane}; };
      if (operation.kind == OperationKind::kTransfer) {
        check(id, on_lane(operation.source), on_lane(operation.target));
      } else if (operation.kind == OperationKind::kRing) {
        absl::Span<const Endpoint> ring = workload.ring(operation.ring);
        for (size_t i = 0; i < ring.size(); ++i) {
          check(id, on_lane(ring[i]), on_lane(ring[(i + 1) % ring.size()]));
        }
      }
    }
  }
  if (cut_off == 0) return absl::OkStatus();
  if (cut_off > 1)
    absl::StrAppend(&first, ", and for ", cut_off - 1, " more transfers there is none");
  return absl::NotFoundError(first);
}

}  // namespace weft::topology
