#include "topology/sim/workloads/training_step.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/sim/workloads/pipeline_order.h"

namespace weft::topology {
namespace {

constexpr int64_t kMostOperations = 30'000'000;
constexpr OperationId kNothing = UINT32_MAX;
// The axes along which ranks of a stage do the same: a replica is a position in such a group.
constexpr AxisSet kReplicas = {Axis::kData, Axis::kExpert, Axis::kContext};

// The groups of replicas along some of these axes; the same in every stage.
struct ReplicaGroups {
  ReplicaGroups(const Mesh& mesh, AxisSet axes);

  std::vector<std::vector<size_t>> members;  // by group: replicas
  std::vector<size_t> group, position;       // by replica
};

ReplicaGroups::ReplicaGroups(const Mesh& mesh, AxisSet axes) {
  const std::vector<JobRank> replicas = mesh.GroupOf(JobRank(0), kReplicas).members;
  group.resize(replicas.size());
  position.resize(replicas.size());
  for (const JobRank first : replicas) {
    if (mesh.PositionIn(first, axes) > 0) continue;
    std::vector<size_t>& all = members.emplace_back();
    for (const JobRank rank : mesh.GroupOf(first, axes).members) {
      const auto replica = static_cast<size_t>(mesh.PositionIn(rank, kReplicas));
      group[replica] = members.size() - 1;
      position[replica] = all.size();
      all.push_back(replica);
    }
  }
}

// Writes a step: for every pass of the pipeline's order, what all replicas do.
class StepWriter {
 public:
  StepWriter(Workload& workload, const TrainingStep& step, std::vector<Endpoint> units)
      : workload_(workload),
        step_(step),
        shape_{step.mesh.Size(Axis::kPipeline), step.chunks, step.micro_batches},
        width_(static_cast<uint16_t>(step.mesh.Size(Axis::kTensor))),
        contexts_(step.mesh.Size(Axis::kContext)),
        replicas_(static_cast<size_t>(step.mesh.GroupSize(kReplicas))),
        context_groups_(step.mesh, {Axis::kContext}),
        expert_groups_(step.mesh, {Axis::kExpert}),
        units_(std::move(units)),
        last_(units_.size(), kNothing),
        received_(units_.size(), kNothing),
        result_(size_t{2} * static_cast<size_t>(shape_.stages) *
                static_cast<size_t>(shape_.chunks) * static_cast<size_t>(shape_.micro_batches) *
                replicas_) {}

  OperationId Write(const std::vector<Pass>& order);

 private:
  size_t Unit(int stage, size_t replica) const {
    return static_cast<size_t>(stage) * replicas_ + replica;
  }
  size_t Result(const Pass& pass, size_t replica) const {
    const int index =
        ((pass.stage * shape_.chunks + pass.chunk) * shape_.micro_batches + pass.micro_batch) * 2 +
        (pass.backward ? 1 : 0);
    return static_cast<size_t>(index) * replicas_ + replica;
  }
  size_t Bucket(int stage, int chunk, int bucket) const {
    const int index = (stage * shape_.chunks + chunk) * step_.buckets + bucket;
    return static_cast<size_t>(index);
  }
  std::vector<OperationId> Ready(size_t unit) const {
    std::vector<OperationId> after;
    if (last_[unit] != kNothing) after.push_back(last_[unit]);
    if (received_[unit] != kNothing) after.push_back(received_[unit]);
    return after;
  }
  void MakeRings();
  void GatherParameters();
  void ScatterGradients(int stage, int chunk, int bucket, absl::Span<const OperationId> after);
  OperationId DataRings(int stage, int chunk, int bucket, const char* name,
                        absl::Span<const OperationId> after);
  void WritePass(const Pass& pass);
  void Compute(const Pass& pass);
  void Exchange(const Pass& pass);
  OperationId ContextRing(const Pass& pass, size_t replica, OperationId after);
  void Send(const Pass& pass);
  bool PassAfter(const Pass& pass, Pass& next) const;

  Workload& workload_;
  const TrainingStep& step_;
  const PipelineShape shape_;
  const uint16_t width_;
  const int contexts_;     // places of the context axis
  const size_t replicas_;  // of a stage
  const ReplicaGroups context_groups_, expert_groups_;
  const std::vector<Endpoint> units_;  // by stage and replica: the first NIC of a tensor group

  std::vector<OperationId> last_;      // by unit: what its next pass comes after
  std::vector<OperationId> received_;  // by unit: what else it comes after
  std::vector<OperationId> result_;    // by pass and replica: what the pass that needs it waits for
  std::vector<OperationId> gathered_;  // by stage, chunk and bucket
  std::vector<OperationId> scattered_;               // the newest of each stage
  std::vector<uint32_t> data_rings_;                 // by stage
  std::vector<std::vector<uint32_t>> expert_rings_;  // by stage: over replicas of one expert each
  std::vector<uint32_t> context_rings_;              // by stage and data replica
  uint32_t forward_ = 0, backward_ = 0, pipeline_ = 0, context_ = 0, expert_ = 0;
  std::vector<OperationId> after_, arrived_;
};

void StepWriter::MakeRings() {
  const ReplicaGroups same_experts(step_.mesh, {Axis::kData, Axis::kContext});
  for (int stage = 0; stage < shape_.stages; ++stage) {
    const auto begin = units_.begin() + static_cast<ptrdiff_t>(Unit(stage, 0));
    if (replicas_ > 1) {
      data_rings_.push_back(workload_.AddRing({begin, begin + static_cast<ptrdiff_t>(replicas_)}));
    }
    auto ring_of = [&](const std::vector<size_t>& replicas) {
      std::vector<Endpoint> members;
      for (size_t replica : replicas) members.push_back(units_[Unit(stage, replica)]);
      return workload_.AddRing(members);
    };
    for (const auto& members : context_groups_.members) {
      if (members.size() > 1) context_rings_.push_back(ring_of(members));
    }
    if (!step_.model.HasExperts()) continue;
    expert_rings_.emplace_back();
    for (const auto& members : same_experts.members) {
      if (members.size() > 1) expert_rings_.back().push_back(ring_of(members));
    }
  }
}

// A bucket of a chunk's parameters or gradients, round all replicas.
OperationId StepWriter::DataRings(int stage, int chunk, int bucket, const char* name,
                                  absl::Span<const OperationId> after) {
  const uint32_t group =
      workload_.AddGroup(step_.buckets == 1 ? absl::StrCat(name, " stage ", stage, " chunk ", chunk)
                                            : absl::StrCat(name, " stage ", stage, " chunk ", chunk,
                                                           " bucket ", bucket));
  std::vector<OperationId> rings;
  auto add = [&](uint32_t ring, Bytes bytes) {
    const int64_t members = static_cast<int64_t>(workload_.ring(ring).size());
    const int64_t parts = members * step_.buckets;
    rings.push_back(workload_.Add({.kind = OperationKind::kRing,
                                   .width = width_,
                                   .bytes = Bytes((bytes.count() + parts - 1) / parts),
                                   .group = group,
                                   .ring = ring,
                                   .steps = static_cast<uint32_t>(members - 1)},
                                  after));
  };
  add(data_rings_[static_cast<size_t>(stage)], DenseChunkBytes(step_, stage, chunk));
  if (!expert_rings_.empty()) {
    for (uint32_t ring : expert_rings_[static_cast<size_t>(stage)])
      add(ring, ExpertChunkBytes(step_));
  }
  if (rings.size() == 1) return rings[0];
  return workload_.Add({.kind = OperationKind::kJoin, .group = group}, rings);
}

void StepWriter::GatherParameters() {
  if (replicas_ == 1) return;
  for (int stage = 0; stage < shape_.stages; ++stage) {
    std::vector<OperationId> after;
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      for (int bucket = 0; bucket < step_.buckets; ++bucket) {
        gathered_.push_back(DataRings(stage, chunk, bucket, "all-gather", after));
        after.assign(1, gathered_.back());
      }
    }
  }
  scattered_.resize(static_cast<size_t>(shape_.stages), kNothing);
}

void StepWriter::ScatterGradients(int stage, int chunk, int bucket,
                                  absl::Span<const OperationId> after) {
  OperationId& newest = scattered_[static_cast<size_t>(stage)];
  std::vector<OperationId> all(after.begin(), after.end());
  if (newest != kNothing) all.push_back(newest);
  newest = DataRings(stage, chunk, bucket, "reduce-scatter", all);
}

OperationId StepWriter::ContextRing(const Pass& pass, size_t replica, OperationId after) {
  // The first unit of a ring writes it; the others' passes begin together with it.
  const size_t ring = static_cast<size_t>(pass.stage) * context_groups_.members.size() +
                      context_groups_.group[replica];
  const int times = (pass.backward ? 2 : 1) * ChunkLayers(step_);
  return workload_.Add({.kind = OperationKind::kRing,
                        .width = width_,
                        .bytes = ContextBytes(step_),
                        .group = context_,
                        .ring = context_rings_[ring],
                        .steps = static_cast<uint32_t>((contexts_ - 1) * times)},
                       {after});
}

// Dispatch to the experts, or back: every replica sends to all others of its expert group.
void StepWriter::Exchange(const Pass& pass) {
  std::vector<std::vector<OperationId>> arrived(replicas_);
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const std::vector<size_t>& members = expert_groups_.members[expert_groups_.group[replica]];
    const size_t unit = Unit(pass.stage, replica);
    arrived[replica].push_back(last_[unit]);
    for (size_t shift = 1; shift < members.size(); ++shift) {
      const size_t to = members[(expert_groups_.position[replica] + shift) % members.size()];
      arrived[to].push_back(workload_.Add({.width = width_,
                                           .source = units_[unit],
                                           .target = units_[Unit(pass.stage, to)],
                                           .bytes = ExpertBytes(step_),
                                           .group = expert_},
                                          {last_[unit]}));
    }
  }
  for (size_t replica = 0; replica < replicas_; ++replica) {
    last_[Unit(pass.stage, replica)] =
        workload_.Add({.kind = OperationKind::kJoin, .group = expert_}, arrived[replica]);
  }
}

bool StepWriter::PassAfter(const Pass& pass, Pass& next) const {
  next = pass;
  const int step = pass.backward ? -1 : 1;
  const int stage = pass.stage + step, chunk = pass.chunk + step;
  if (stage >= 0 && stage < shape_.stages) {
    next.stage = static_cast<int16_t>(stage);
    return true;
  }
  next.backward = true;
  if (chunk < 0 || chunk >= shape_.chunks) return !pass.backward;
  next.backward = pass.backward;
  next.chunk = static_cast<int16_t>(chunk);
  next.stage = static_cast<int16_t>(pass.backward ? shape_.stages - 1 : 0);
  return true;
}

// What the pass itself takes on every replica, in as many pieces as its parameters come in.
void StepWriter::Compute(const Pass& pass) {
  const bool first = !pass.backward && pass.micro_batch == 0 && !gathered_.empty();
  const bool last =
      pass.backward && pass.micro_batch == shape_.micro_batches - 1 && !gathered_.empty();
  const bool logits = pass.stage == shape_.stages - 1 && pass.chunk == shape_.chunks - 1;
  const int pieces = first || last ? step_.buckets : 1;
  const absl::Duration piece = PassTime(step_, pass.backward, logits) / pieces;
  const uint32_t group = pass.backward ? backward_ : forward_;
  std::vector<std::vector<OperationId>> done(static_cast<size_t>(pieces));
  std::vector<OperationId> rings(context_groups_.members.size());
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const size_t unit = Unit(pass.stage, replica);
    const OperationId begin = last_[unit];
    for (int i = 0; i < pieces; ++i) {
      after_ = Ready(unit);
      received_[unit] = kNothing;
      if (first) {
        const bool all = !step_.overlap_data;
        after_.push_back(gathered_[all ? Bucket(pass.stage, shape_.chunks, 0) - 1
                                       : Bucket(pass.stage, pass.chunk, i)]);
      }
      last_[unit] = workload_.Add({.kind = OperationKind::kCompute,
                                   .source = units_[unit],
                                   .duration = piece,
                                   .group = group},
                                  after_);
      done[static_cast<size_t>(i)].push_back(last_[unit]);
    }
    if (contexts_ == 1) continue;
    OperationId& ring = rings[context_groups_.group[replica]];
    if (context_groups_.position[replica] == 0) ring = ContextRing(pass, replica, begin);
    last_[unit] =
        workload_.Add({.kind = OperationKind::kJoin, .group = group}, {last_[unit], ring});
  }
  if (!last || !step_.overlap_data) return;
  for (int i = 0; i < pieces; ++i) {
    ScatterGradients(pass.stage, pass.chunk, i, done[static_cast<size_t>(i)]);
  }
}

void StepWriter::Send(const Pass& pass) {
  Pass next;
  if (!PassAfter(pass, next)) return;
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const size_t unit = Unit(pass.stage, replica);
    OperationId& result = result_[Result(pass, replica)];
    result = last_[unit];
    if (next.stage == pass.stage) continue;
    result = workload_.Add({.width = width_,
                            .source = units_[unit],
                            .target = units_[Unit(next.stage, replica)],
                            .bytes = ActivationBytes(step_),
                            .group = pipeline_},
                           {last_[unit]});
    if (!step_.overlap_pipeline) last_[unit] = result;
  }
}

void StepWriter::WritePass(const Pass& pass) {
  Pass needed;
  const bool needs = PassBefore(shape_, pass, needed);
  const bool exchanges = step_.mesh.Size(Axis::kExpert) > 1;
  const bool joins = exchanges || contexts_ > 1;  // several wait for it
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const size_t unit = Unit(pass.stage, replica);
    received_[unit] = needs ? result_[Result(needed, replica)] : kNothing;
    if (!joins) continue;
    after_ = Ready(unit);
    received_[unit] = kNothing;
    last_[unit] = workload_.Add({.kind = OperationKind::kJoin}, after_);
  }
  if (exchanges) Exchange(pass);
  Compute(pass);
  if (exchanges) Exchange(pass);
  Send(pass);
}

OperationId StepWriter::Write(const std::vector<Pass>& order) {
  forward_ = workload_.AddGroup("forward");
  backward_ = workload_.AddGroup("backward");
  pipeline_ = workload_.AddGroup("pipeline");
  if (contexts_ > 1) context_ = workload_.AddGroup("context");
  if (step_.mesh.Size(Axis::kExpert) > 1) expert_ = workload_.AddGroup("expert");
  MakeRings();
  GatherParameters();
  for (const Pass& pass : order) WritePass(pass);
  if (!step_.overlap_data && replicas_ > 1) {
    for (int stage = 0; stage < shape_.stages; ++stage) {
      const absl::Span<const OperationId> all =
          absl::MakeSpan(last_).subspan(Unit(stage, 0), replicas_);
      for (int chunk = shape_.chunks - 1; chunk >= 0; --chunk) {
        for (int i = 0; i < step_.buckets; ++i) ScatterGradients(stage, chunk, i, all);
      }
    }
  }
  std::vector<OperationId> all = last_;
  all.insert(all.end(), scattered_.begin(), scattered_.end());
  return workload_.Add({.kind = OperationKind::kJoin, .group = backward_}, all);
}

// The first NIC of every tensor group, by stage and replica.
absl::StatusOr<std::vector<Endpoint>> PlaceUnits(const Fabric& fabric, const Mesh& mesh) {
  const std::vector<Endpoint> endpoints = fabric.Endpoints();
  if (static_cast<size_t>(mesh.ranks()) > endpoints.size()) {
    return absl::InvalidArgumentError(absl::StrCat(mesh.Describe(), " = ", mesh.ranks(),
                                                   " GPUs, and the fabric has ", endpoints.size(),
                                                   " NICs"));
  }
  const auto replicas = static_cast<size_t>(mesh.GroupSize(kReplicas));
  std::vector<Endpoint> units(static_cast<size_t>(mesh.GroupCount({Axis::kTensor})));
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    if (mesh.CoordinateOf(JobRank(rank), Axis::kTensor) > 0) continue;
    const Endpoint first = endpoints[static_cast<size_t>(rank)];
    int nic = first.nic;
    for (const JobRank member : mesh.GroupOf(JobRank(rank), {Axis::kTensor}).members) {
      const Endpoint& its = endpoints[member.index()];
      if (its.host == first.host && its.nic == nic++) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("tp=", mesh.Size(Axis::kTensor),
                       ": a tensor group stays within one host, and ", fabric.node(first.host).name,
                       " has ", fabric.nics(first.host), " NICs: wanted is a divisor of that"));
    }
    const auto stage = static_cast<size_t>(mesh.CoordinateOf(JobRank(rank), Axis::kPipeline));
    const auto replica = static_cast<size_t>(mesh.PositionIn(JobRank(rank), kReplicas));
    units[stage * replicas + replica] = first;
  }
  return units;
}

// An upper bound, so that absurd layouts fail before they take the memory.
double OperationsOf(const TrainingStep& step) {
  const Mesh& mesh = step.mesh;
  const double replicas = mesh.GroupSize(kReplicas);
  const int experts = mesh.Size(Axis::kExpert);
  const double a_pass =
      3 + (mesh.Size(Axis::kContext) > 1 ? 2 : 0) + (experts > 1 ? 2.0 * experts : 0);
  return 2.0 * mesh.Size(Axis::kPipeline) * step.chunks *
         (step.micro_batches * replicas * a_pass + step.buckets * (1 + replicas + experts));
}

}  // namespace

absl::StatusOr<OperationId> AddTrainingStep(Workload& workload, const Fabric& fabric,
                                            const TrainingStep& step) {
  WEFT_RETURN_IF_ERROR(CheckStep(step));
  if (OperationsOf(step) > static_cast<double>(kMostOperations)) {
    return absl::ResourceExhaustedError(absl::StrCat("the step would take about ",
                                                     OperationsOf(step), " operations; at most ",
                                                     kMostOperations, " are built"));
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<Endpoint> units, PlaceUnits(fabric, step.mesh));
  WEFT_ASSIGN_OR_RETURN(std::vector<Pass> order, PipelineOrder({step.mesh.Size(Axis::kPipeline),
                                                                step.chunks, step.micro_batches}));
  return StepWriter(workload, step, std::move(units)).Write(order);
}

}  // namespace weft::topology
