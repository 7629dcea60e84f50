// What a simulation is to carry: transfers and computations, with what each waits for. One
// description, run by the packet level and by the flow level alike.
//
// Operations are numbered from 0 in the order in which they were added, and may wait only for
// earlier ones: a workload cannot deadlock by itself.
//
// Two forms are shorthand for many transfers, so that a training step of 12,288 GPUs fits into
// memory: `width` (the same transfer on several NICs side by side) and kRing (every step of a ring
// collective). Expand() writes them out; both levels give the expansion the same meaning.
#ifndef WEFT_TOPOLOGY_SIM_WORKLOAD_H_
#define WEFT_TOPOLOGY_SIM_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

using OperationId = uint32_t;

enum class OperationKind : uint8_t {
  kTransfer,  // `bytes` from source to target; done when the last has arrived
  kCompute,   // takes `duration` at source
  kJoin,      // takes no time: many wait for one that waits for many
  // A ring collective over the endpoints of `ring`. In each of `steps` steps every member sends
  // `bytes` to the next member; it sends for step k + 1 once it has received for step k. So
  // all-gather and reduce-scatter of S bytes over n members are n - 1 steps of S / n, all-reduce is
  // 2(n - 1) of them. Done when every member has received everything.
  kRing,
};

struct Operation {
  OperationKind kind = OperationKind::kTransfer;
  // Transfers: a queue pair sends its messages one after the other. Of all transfers with this flag
  // and the same source, target and source_port, the next begins to leave when the last byte of the
  // one that was ready before it (the smaller id, if at the same time) has left. Without the flag,
  // transfers that are ready at once share the way.
  bool in_order = false;
  // Transfers and rings: that many at once, the i-th (from 0) on NIC + i at every end. `bytes` is
  // what each carries; done when all are.
  uint16_t width = 1;
  // What ECMP hashes besides the addresses; the path planner's choice. 0: whatever a connection of
  // these two endpoints draws from the seed (path_choice.h).
  uint16_t source_port = 0;
  Endpoint source, target;  // kRing: unused
  Bytes bytes;              // kRing: of one step of one member
  absl::Duration duration;
  // kCompute: of a number above 0, all computations of that number take their time one after the
  // other, in the order in which they were ready. 0: all at once.
  uint32_t core = 0;
  // Not before, counted from the start of the simulation.
  absl::Duration start;
  // Operations of one group are reported together (a collective, a job); 0: none.
  uint32_t group = 0;
  uint32_t ring = 0;   // kRing: which of the workload's rings
  uint32_t steps = 0;  // kRing
};

class Workload {
 public:
  // `after`: ids of operations that must have ended first.
  OperationId Add(const Operation& operation, absl::Span<const OperationId> after = {});
  // Names a group; returns its number, from 1.
  uint32_t AddGroup(std::string name);
  // A core that computations share; returns its number, from 1.
  uint32_t AddCore() { return ++cores_; }
  // The members of a ring, in order, at least two; returns its number. Rings may be shared by any
  // number of operations.
  uint32_t AddRing(std::vector<Endpoint> members);

  size_t size() const { return operations_.size(); }
  const Operation& operation(OperationId id) const { return operations_[id]; }
  absl::Span<const OperationId> After(OperationId id) const;
  const std::string& group(uint32_t number) const { return groups_[number]; }
  uint32_t cores() const { return cores_; }
  size_t groups() const { return groups_.size(); }  // with group 0
  absl::Span<const Endpoint> ring(uint32_t number) const { return rings_[number]; }
  size_t rings() const { return rings_.size(); }
  int64_t transfers() const { return transfers_; }  // as expanded
  // Neither widths above 1 nor rings.
  bool simple() const { return simple_; }

 private:
  std::vector<Operation> operations_;
  std::vector<uint32_t> after_begin_{0};
  std::vector<OperationId> after_;
  std::vector<std::string> groups_{""};
  std::vector<std::vector<Endpoint>> rings_;
  uint32_t cores_ = 0;
  int64_t transfers_ = 0;
  bool simple_ = true;
};

// NotFound or InvalidArgument, naming the operation and what is wrong with it: an endpoint that the
// fabric lacks, a negative size or time. Both levels call it before they start.
absl::Status Validate(const Workload& workload, const Fabric& fabric);

struct Expansion {
  Workload workload;  // simple()
  // By operation of the original: what starts when it does, and what ends when it does.
  std::vector<OperationId> first, last;
};
// ResourceExhausted: more than `limit` operations would come of it.
absl::StatusOr<Expansion> Expand(const Workload& workload, int64_t limit = 50'000'000);

// The result of an expansion as one of the original.
struct SimulationResult;
SimulationResult Contract(const Expansion& expansion, SimulationResult result);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOAD_H_
