#include "topology/sim/workloads/training_step.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/job/pipeline_replan.h"

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

struct StagePass {
  int stage = 0;
  PipelinePass pass;
};

// The lists of all stages: for passes that take the same time, or, where lists can be made for the
// times that the step's passes take and are shorter then, for these.
absl::StatusOr<PipelineSchedule> ListsOf(const TrainingStep& step) {
  const PipelineSpec spec = step.Pipeline();
  WEFT_ASSIGN_OR_RETURN(PipelineSchedule equal, MakePipelineSchedule(spec));
  if (!DependsOnDurations(spec.kind)) return equal;
  std::vector<PassDurations> durations;
  for (int depth = 0; depth < spec.depth(); ++depth) {
    auto seconds = [&](PassKind kind) {
      return absl::ToDoubleSeconds(PassTime(step, kind, depth == spec.depth() - 1));
    };
    durations.push_back({.forward = seconds(PassKind::kForward),
                         .backward = seconds(PassKind::kBackward),
                         .weight = seconds(PassKind::kWeight)});
  }
  WEFT_ASSIGN_OR_RETURN(PipelineReplan lists, ReplanPipeline(spec, equal, durations));
  return std::move(lists.schedule);
}

// The passes of all stages, each after those it needs: in the order in which they begin when all
// take the same time.
absl::StatusOr<std::vector<StagePass>> OrderOfPasses(const TrainingStep& step) {
  WEFT_ASSIGN_OR_RETURN(const PipelineSchedule schedule, ListsOf(step));
  WEFT_ASSIGN_OR_RETURN(
      const PipelineTiming timing,
      RunPipelineSchedule(step.Pipeline(), schedule, {.forward = 1, .backward = 1, .weight = 1}));
  std::vector<std::pair<double, StagePass>> begins;
  for (size_t stage = 0; stage < timing.stages.size(); ++stage) {
    for (const PipelineTiming::Span& span : timing.stages[stage]) {
      begins.push_back({span.start, {static_cast<int>(stage), span.pass}});
    }
  }
  std::stable_sort(begins.begin(), begins.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<StagePass> order;
  order.reserve(begins.size());
  for (const auto& [start, pass] : begins) order.push_back(pass);
  return order;
}

// Writes a step: for every pass of the pipeline's order, what all replicas do.
class StepWriter {
 public:
  StepWriter(Workload& workload, const TrainingStep& step, std::vector<Endpoint> units)
      : workload_(workload),
        step_(step),
        spec_(step.Pipeline()),
        width_(static_cast<uint16_t>(step.mesh.Size(Axis::kTensor))),
        contexts_(step.mesh.Size(Axis::kContext)),
        replicas_(static_cast<size_t>(step.mesh.GroupSize(kReplicas))),
        context_groups_(step.mesh, {Axis::kContext}),
        expert_groups_(step.mesh, {Axis::kExpert}),
        units_(std::move(units)),
        last_(units_.size(), kNothing),
        received_(units_.size(), kNothing),
        result_(size_t{2} * static_cast<size_t>(spec_.depth()) *
                static_cast<size_t>(spec_.micro_batches) * replicas_) {}

  OperationId Write(const std::vector<StagePass>& order);

 private:
  size_t Unit(int stage, size_t replica) const {
    return static_cast<size_t>(stage) * replicas_ + replica;
  }
  // Result of a forward or backward pass of the model's chunk `depth`.
  OperationId& Result(int depth, PassKind kind, int micro_batch, size_t replica) {
    const int index =
        (depth * spec_.micro_batches + micro_batch) * 2 + (kind == PassKind::kForward ? 0 : 1);
    return result_[static_cast<size_t>(index) * replicas_ + replica];
  }
  int Depth(const StagePass& at) const { return DepthOf(spec_, at.stage, at.pass.chunk); }
  // That pass completes the gradients of its chunk's weights.
  bool CompletesGradients(const StagePass& at) const {
    return at.pass.micro_batch == spec_.micro_batches - 1 &&
           at.pass.kind == (SplitsBackward(spec_.kind) ? PassKind::kWeight : PassKind::kBackward);
  }
  size_t Bucket(int stage, int chunk, int bucket) const {
    const int index = (stage * spec_.chunks + chunk) * step_.buckets + bucket;
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
  void WritePass(const StagePass& at);
  void Compute(const StagePass& at);
  void Exchange(int stage);
  OperationId ContextRing(const StagePass& at, size_t replica, OperationId after);
  void Send(const StagePass& at);
  OperationId Needed(const StagePass& at, size_t replica);

  Workload& workload_;
  const TrainingStep& step_;
  const PipelineSpec spec_;
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
  for (int stage = 0; stage < spec_.stages; ++stage) {
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
  for (int stage = 0; stage < spec_.stages; ++stage) {
    std::vector<OperationId> after;
    for (int chunk = 0; chunk < spec_.chunks; ++chunk) {
      for (int bucket = 0; bucket < step_.buckets; ++bucket) {
        gathered_.push_back(DataRings(stage, chunk, bucket, "all-gather", after));
        after.assign(1, gathered_.back());
      }
    }
  }
  scattered_.resize(static_cast<size_t>(spec_.stages), kNothing);
}

void StepWriter::ScatterGradients(int stage, int chunk, int bucket,
                                  absl::Span<const OperationId> after) {
  OperationId& newest = scattered_[static_cast<size_t>(stage)];
  std::vector<OperationId> all(after.begin(), after.end());
  if (newest != kNothing) all.push_back(newest);
  newest = DataRings(stage, chunk, bucket, "reduce-scatter", all);
}

OperationId StepWriter::ContextRing(const StagePass& at, size_t replica, OperationId after) {
  // The first unit of a ring writes it; the others' passes begin together with it.
  const size_t ring = static_cast<size_t>(at.stage) * context_groups_.members.size() +
                      context_groups_.group[replica];
  const int times = (at.pass.kind == PassKind::kForward ? 1 : 2) * ChunkLayers(step_);
  return workload_.Add({.kind = OperationKind::kRing,
                        .width = width_,
                        .bytes = ContextBytes(step_),
                        .group = context_,
                        .ring = context_rings_[ring],
                        .steps = static_cast<uint32_t>((contexts_ - 1) * times)},
                       {after});
}

// Dispatch to the experts, or back: every replica sends to all others of its expert group.
void StepWriter::Exchange(int stage) {
  std::vector<std::vector<OperationId>> arrived(replicas_);
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const std::vector<size_t>& members = expert_groups_.members[expert_groups_.group[replica]];
    const size_t unit = Unit(stage, replica);
    arrived[replica].push_back(last_[unit]);
    for (size_t shift = 1; shift < members.size(); ++shift) {
      const size_t to = members[(expert_groups_.position[replica] + shift) % members.size()];
      arrived[to].push_back(workload_.Add({.width = width_,
                                           .source = units_[unit],
                                           .target = units_[Unit(stage, to)],
                                           .bytes = ExpertBytes(step_),
                                           .group = expert_},
                                          {last_[unit]}));
    }
  }
  for (size_t replica = 0; replica < replicas_; ++replica) {
    last_[Unit(stage, replica)] =
        workload_.Add({.kind = OperationKind::kJoin, .group = expert_}, arrived[replica]);
  }
}

// What the pass itself takes on every replica, in as many pieces as its parameters come in.
void StepWriter::Compute(const StagePass& at) {
  const auto& [stage, pass] = at;
  const bool first = pass.kind == PassKind::kForward && pass.micro_batch == 0 && !gathered_.empty();
  const bool last = CompletesGradients(at) && !gathered_.empty();
  const int pieces = first || last ? step_.buckets : 1;
  const absl::Duration piece = PassTime(step_, pass.kind, Depth(at) == spec_.depth() - 1) / pieces;
  const uint32_t group = pass.kind == PassKind::kForward ? forward_ : backward_;
  std::vector<std::vector<OperationId>> done(static_cast<size_t>(pieces));
  std::vector<OperationId> rings(context_groups_.members.size());
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const size_t unit = Unit(stage, replica);
    const OperationId begin = last_[unit];
    for (int i = 0; i < pieces; ++i) {
      after_ = Ready(unit);
      received_[unit] = kNothing;
      if (first) {
        const bool all = !step_.overlap_data;
        after_.push_back(
            gathered_[all ? Bucket(stage, spec_.chunks, 0) - 1 : Bucket(stage, pass.chunk, i)]);
      }
      last_[unit] = workload_.Add({.kind = OperationKind::kCompute,
                                   .source = units_[unit],
                                   .duration = piece,
                                   .group = group},
                                  after_);
      done[static_cast<size_t>(i)].push_back(last_[unit]);
    }
    if (contexts_ == 1 || pass.kind == PassKind::kWeight) continue;
    OperationId& ring = rings[context_groups_.group[replica]];
    if (context_groups_.position[replica] == 0) ring = ContextRing(at, replica, begin);
    last_[unit] =
        workload_.Add({.kind = OperationKind::kJoin, .group = group}, {last_[unit], ring});
  }
  if (!last || !step_.overlap_data) return;
  for (int i = 0; i < pieces; ++i) {
    ScatterGradients(stage, pass.chunk, i, done[static_cast<size_t>(i)]);
  }
}

// What a pass needs besides the one before it on its stage: a forward pass the activations of the
// chunk before it, a backward pass the gradients of the chunk behind it.
OperationId StepWriter::Needed(const StagePass& at, size_t replica) {
  const auto& [stage, pass] = at;
  const int depth = Depth(at), last = spec_.depth() - 1;
  if (pass.kind == PassKind::kWeight) return kNothing;
  if (pass.kind == PassKind::kForward) {
    return depth == 0 ? kNothing : Result(depth - 1, pass.kind, pass.micro_batch, replica);
  }
  return depth == last ? Result(depth, PassKind::kForward, pass.micro_batch, replica)
                       : Result(depth + 1, pass.kind, pass.micro_batch, replica);
}

void StepWriter::Send(const StagePass& at) {
  const auto& [stage, pass] = at;
  const int depth = Depth(at), next = depth + (pass.kind == PassKind::kForward ? 1 : -1);
  const bool leaves = next >= 0 && next < spec_.depth();
  const int target = leaves ? PlaceOfDepth(spec_, next).stage : stage;
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const size_t unit = Unit(stage, replica);
    OperationId& result = Result(depth, pass.kind, pass.micro_batch, replica);
    result = last_[unit];
    if (target == stage) continue;
    result = workload_.Add({.width = width_,
                            .source = units_[unit],
                            .target = units_[Unit(target, replica)],
                            .bytes = ActivationBytes(step_),
                            .group = pipeline_},
                           {last_[unit]});
    if (!step_.overlap_pipeline) last_[unit] = result;
  }
}

void StepWriter::WritePass(const StagePass& at) {
  const bool communicates = at.pass.kind != PassKind::kWeight;
  const bool exchanges = communicates && step_.mesh.Size(Axis::kExpert) > 1;
  const bool joins = exchanges || (communicates && contexts_ > 1);  // several wait for it
  for (size_t replica = 0; replica < replicas_; ++replica) {
    const size_t unit = Unit(at.stage, replica);
    received_[unit] = Needed(at, replica);
    if (!joins) continue;
    after_ = Ready(unit);
    received_[unit] = kNothing;
    last_[unit] = workload_.Add({.kind = OperationKind::kJoin}, after_);
  }
  if (exchanges) Exchange(at.stage);
  Compute(at);
  if (exchanges) Exchange(at.stage);
  if (communicates) Send(at);
}

OperationId StepWriter::Write(const std::vector<StagePass>& order) {
  forward_ = workload_.AddGroup("forward");
  backward_ = workload_.AddGroup("backward");
  pipeline_ = workload_.AddGroup("pipeline");
  if (contexts_ > 1) context_ = workload_.AddGroup("context");
  if (step_.mesh.Size(Axis::kExpert) > 1) expert_ = workload_.AddGroup("expert");
  MakeRings();
  GatherParameters();
  for (const StagePass& at : order) WritePass(at);
  if (!step_.overlap_data && replicas_ > 1) {
    for (int stage = 0; stage < spec_.stages; ++stage) {
      const absl::Span<const OperationId> all =
          absl::MakeSpan(last_).subspan(Unit(stage, 0), replicas_);
      for (int chunk = spec_.chunks - 1; chunk >= 0; --chunk) {
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
  WEFT_ASSIGN_OR_RETURN(const std::vector<StagePass> order, OrderOfPasses(step));
  return StepWriter(workload, step, std::move(units)).Write(order);
}

}  // namespace weft::topology
