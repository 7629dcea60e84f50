#include "topology/sim/workload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/sim/simulation.h"

namespace weft::topology {

OperationId Workload::Add(const Operation& operation, absl::Span<const OperationId> after) {
  const OperationId id = static_cast<OperationId>(operations_.size());
  for (OperationId earlier : after) {
    WEFT_CHECK(earlier < id, "operation " << id << " waits for " << earlier);
  }
  WEFT_CHECK(operation.group < groups_.size(), "group " << operation.group);
  after_.insert(after_.end(), after.begin(), after.end());
  after_begin_.push_back(static_cast<uint32_t>(after_.size()));
  operations_.push_back(operation);
  if (operation.kind == OperationKind::kTransfer) {
    transfers_ += operation.width;
    simple_ &= operation.width == 1;
  } else if (operation.kind == OperationKind::kRing) {
    WEFT_CHECK(operation.ring < rings_.size(), "ring " << operation.ring);
    transfers_ += static_cast<int64_t>(operation.width) * operation.steps *
                  static_cast<int64_t>(rings_[operation.ring].size());
    simple_ = false;
  }
  return id;
}

uint32_t Workload::AddGroup(std::string name) {
  groups_.push_back(std::move(name));
  return static_cast<uint32_t>(groups_.size() - 1);
}

uint32_t Workload::AddRing(std::vector<Endpoint> members) {
  WEFT_CHECK(members.size() >= 2, "a ring of " << members.size());
  rings_.push_back(std::move(members));
  return static_cast<uint32_t>(rings_.size() - 1);
}

absl::Span<const OperationId> Workload::After(OperationId id) const {
  return {after_.data() + after_begin_[id], after_begin_[id + 1] - after_begin_[id]};
}

namespace {

absl::Status CheckEndpoint(const Fabric& fabric, Endpoint endpoint, int width) {
  if (endpoint.host.value() < 0 || endpoint.host.value() >= fabric.nodes()) {
    return absl::NotFoundError(
        absl::StrCat("no node ", endpoint.host.value(), " in a fabric of ", fabric.nodes()));
  }
  const FabricNode& node = fabric.node(endpoint.host);
  if (node.kind != NodeKind::kHost) {
    return absl::InvalidArgumentError(absl::StrCat(node.name, " is a switch, no host"));
  }
  if (endpoint.nic < 0 || endpoint.nic + width > fabric.nics(endpoint.host)) {
    return absl::NotFoundError(absl::StrCat("NICs ", endpoint.nic, " to ", endpoint.nic + width - 1,
                                            " are wanted, and ", node.name, " has ",
                                            fabric.nics(endpoint.host)));
  }
  return absl::OkStatus();
}

absl::Status CheckOperation(const Workload& workload, const Fabric& fabric, const Operation& op) {
  if (op.start < absl::ZeroDuration() || op.start == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("starts at ", absl::FormatDuration(op.start), ", which is no time from 0 on"));
  }
  if (op.kind == OperationKind::kCompute &&
      (op.duration < absl::ZeroDuration() || op.duration == absl::InfiniteDuration())) {
    return absl::InvalidArgumentError(
        absl::StrCat("takes ", absl::FormatDuration(op.duration), ", which is no time from 0 on"));
  }
  if (op.core > workload.cores()) {
    return absl::NotFoundError(
        absl::StrCat("runs on core ", op.core, ", and the workload has ", workload.cores()));
  }
  if (op.kind != OperationKind::kTransfer && op.kind != OperationKind::kRing) {
    return absl::OkStatus();
  }
  if (op.bytes < Bytes(0)) {
    return absl::InvalidArgumentError(absl::StrCat("has ", op.bytes.count(), " bytes"));
  }
  if (op.width == 0) return absl::InvalidArgumentError("has width 0; 1 is one transfer");
  if (op.kind == OperationKind::kTransfer) {
    WEFT_RETURN_IF_ERROR(CheckEndpoint(fabric, op.source, op.width));
    return CheckEndpoint(fabric, op.target, op.width);
  }
  if (op.steps == 0) return absl::InvalidArgumentError("is a ring of 0 steps");
  for (Endpoint member : workload.ring(op.ring)) {
    WEFT_RETURN_IF_ERROR(CheckEndpoint(fabric, member, op.width));
  }
  return absl::OkStatus();
}

Endpoint OnNic(Endpoint endpoint, int more) { return {endpoint.host, endpoint.nic + more}; }

// Writes one wide or ring operation out, between `begin` and the join that it returns.
class Expander {
 public:
  explicit Expander(const Workload& original) : original_(original) {}

  OperationId Write(Workload& out, const Operation& op, OperationId begin) {
    ended_.clear();
    for (int nic = 0; nic < op.width; ++nic) {
      if (op.kind == OperationKind::kRing) {
        WriteRing(out, op, nic, begin);
      } else {
        Operation one = op;
        one.width = 1;
        one.source = OnNic(op.source, nic);
        one.target = OnNic(op.target, nic);
        ended_.push_back(out.Add(one, {begin}));
      }
    }
    return out.Add({.kind = OperationKind::kJoin, .group = op.group}, ended_);
  }

 private:
  void WriteRing(Workload& out, const Operation& op, int nic, OperationId begin) {
    const absl::Span<const Endpoint> members = original_.ring(op.ring);
    const size_t n = members.size();
    std::vector<OperationId> received(n, begin), sent(n);  // by member: in the last step
    for (uint32_t step = 0; step < op.steps; ++step) {
      for (size_t member = 0; member < n; ++member) {
        Operation one{.in_order = true,
                      .source_port = op.source_port,
                      .source = OnNic(members[member], nic),
                      .target = OnNic(members[(member + 1) % n], nic),
                      .bytes = op.bytes,
                      .group = op.group};
        sent[member] = out.Add(one, {received[member]});
      }
      for (size_t member = 0; member < n; ++member) received[(member + 1) % n] = sent[member];
    }
    ended_.insert(ended_.end(), received.begin(), received.end());
  }

  const Workload& original_;
  std::vector<OperationId> ended_;
};

}  // namespace

absl::Status Validate(const Workload& workload, const Fabric& fabric) {
  for (OperationId id = 0; id < workload.size(); ++id) {
    absl::Status status = CheckOperation(workload, fabric, workload.operation(id));
    if (!status.ok()) return Annotate(status, absl::StrCat("operation ", id));
  }
  return absl::OkStatus();
}

SimulationResult Contract(const Expansion& expansion, SimulationResult result) {
  std::vector<OperationResult> operations(expansion.last.size());
  result.unfinished = 0;
  for (OperationId id = 0; id < operations.size(); ++id) {
    const OperationId first = expansion.first[id], last = expansion.last[id];
    OperationResult& whole = operations[id];
    whole = result.operations[last];
    whole.started = result.operations[first].started;
    if (first < last) whole.picoseconds = -1;
    // Its transfers lie between the two.
    for (OperationId part = first; part < last; ++part) {
      whole.acknowledged = std::max(whole.acknowledged, result.operations[part].acknowledged);
    }
    if (whole.ended == absl::InfiniteDuration()) ++result.unfinished;
  }
  result.operations = std::move(operations);
  return result;
}

absl::StatusOr<Expansion> Expand(const Workload& workload, int64_t limit) {
  const int64_t most = workload.transfers() + 2 * static_cast<int64_t>(workload.size());
  if (most > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the workload's rings and wide transfers stand for ", workload.transfers(),
                     " transfers; at most ", limit,
                     " are written out: use the flow level, which takes them as they are"));
  }
  Expansion expansion;
  Workload& out = expansion.workload;
  for (uint32_t group = 1; group < workload.groups(); ++group) out.AddGroup(workload.group(group));
  while (out.cores() < workload.cores()) out.AddCore();
  Expander expander(workload);
  std::vector<OperationId> after;
  for (OperationId id = 0; id < workload.size(); ++id) {
    Operation op = workload.operation(id);
    after.clear();
    for (OperationId earlier : workload.After(id)) after.push_back(expansion.last[earlier]);
    const bool shorthand =
        op.kind == OperationKind::kRing || (op.kind == OperationKind::kTransfer && op.width > 1);
    if (!shorthand) {
      expansion.first.push_back(out.Add(op, after));
      expansion.last.push_back(expansion.first.back());
      continue;
    }
    const OperationId begin =
        out.Add({.kind = OperationKind::kJoin, .start = op.start, .group = op.group}, after);
    op.start = absl::ZeroDuration();
    expansion.first.push_back(begin);
    expansion.last.push_back(expander.Write(out, op, begin));
  }
  return expansion;
}

}  // namespace weft::topology
