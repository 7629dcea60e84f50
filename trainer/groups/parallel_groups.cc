#include "trainer/groups/parallel_groups.h"

#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/device/device.h"

namespace weft::train {
namespace {

using topology::Axis;
using topology::AxisSet;
using topology::JobRank;
using topology::Mesh;

absl::Status Refuse(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status CheckModel(const TrainConfig& config) {
  const ModelConfig& model = config.model;
  const int64_t parts = config.tensor_parallel;
  if (model.heads % parts != 0) {
    return Refuse(
        absl::StrCat("parallel.tensor = ", parts, " does not divide model.heads = ", model.heads));
  }
  const int64_t kv_heads = model.KvHeads();
  if (kv_heads % parts != 0 && parts % kv_heads != 0) {
    return Refuse(absl::StrCat("parallel.tensor = ", parts, " and model.kv_heads = ", kv_heads,
                               ": one must divide the other, so that a rank has whole key-value "
                               "heads or a part of the queries of one"));
  }
  // An expert is whole on one rank.
  if (!model.HasExperts() && model.ffn % parts != 0) {
    return Refuse(
        absl::StrCat("parallel.tensor = ", parts, " does not divide model.ffn = ", model.ffn));
  }
  const int64_t sharers = parts * config.expert_parallel;
  if (config.expert_parallel > 1 && !model.HasExperts()) {
    return Refuse(absl::StrCat(
        "parallel.expert = ", config.expert_parallel,
        " shares the experts of a layer, and there are none: model.experts = ", model.experts));
  }
  if (model.HasExperts() && model.experts % sharers != 0) {
    return Refuse(absl::StrCat("parallel.tensor = ", parts,
                               " x parallel.expert = ", config.expert_parallel, " = ", sharers,
                               " ranks share the experts of a layer, which does not divide "
                               "model.experts = ",
                               model.experts));
  }
  const int context = config.context_parallel;
  const bool rings = config.context_method == ContextMethod::kRing;
  const int64_t stretches = rings ? 2 * context : context;
  if (context > 1 && model.sequence % stretches != 0) {
    return Refuse(absl::StrCat(
        "parallel.context = ", context,
        " with parallel.context_method = ", rings ? "ring" : "ulysses", " cuts a sample into ",
        stretches, " stretches, which do not divide model.sequence = ", model.sequence));
  }
  if (context > 1 && !rings && model.heads % (parts * context) != 0) {
    return Refuse(absl::StrCat(
        "parallel.context_method = ulysses gives each rank heads of its own: "
        "parallel.tensor = ",
        parts, " x parallel.context = ", context, " = ", parts * context,
        " does not divide model.heads = ", model.heads, "; ring asks for no such thing"));
  }
  const int64_t depth = int64_t{config.pipeline_parallel} * config.pipeline_chunks;
  if (depth > 1 && model.layers < depth) {
    return Refuse(absl::StrCat("parallel.pipeline = ", config.pipeline_parallel,
                               " with parallel.chunks = ", config.pipeline_chunks, " needs ", depth,
                               " layers or more; model.layers = ", model.layers));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> TraceTrackNames() {
  return {"compute",
          "communication",
          "tensor communication",
          "pipeline communication",
          "context communication",
          "expert communication",
          "bubble",
          "exposed data",
          "exposed tensor",
          "exposed pipeline",
          "exposed context",
          "exposed expert",
          "data wait",
          "optimizer"};
}

std::string MultiplesAround(int64_t number, int64_t unit) {
  const int64_t below = number / unit * unit;
  return below == 0 ? absl::StrCat(unit, " is one")
                    : absl::StrCat(below, " and ", below + unit, " are");
}

absl::StatusOr<Mesh> MeshOf(const TrainConfig& config, int ranks) {
  WEFT_RETURN_IF_ERROR(CheckModel(config));
  const int tensor = config.tensor_parallel, context = config.context_parallel,
            pipeline = config.pipeline_parallel;
  const int64_t together = int64_t{tensor} * context * pipeline;
  if (ranks % together != 0) {
    return Refuse(absl::StrCat("parallel.tensor = ", tensor, " x parallel.context = ", context,
                               " x parallel.pipeline = ", pipeline, " = ", together,
                               " ranks hold one model; the ", ranks,
                               " ranks of this job are no multiple of that; ",
                               MultiplesAround(ranks, together), " (weft-run -n)"));
  }
  const int data = static_cast<int>(ranks / together);
  const int expert = config.expert_parallel;
  if (data % expert != 0) {
    return Refuse(absl::StrCat("parallel.expert = ", expert, " does not divide the ", data,
                               " data-parallel ranks (", ranks, " ranks / ", together,
                               " that hold one model)"));
  }
  const int alike = data * context;  // ranks with the same parameters
  if (config.zero_group > 0 && alike % std::min(config.zero_group, alike) != 0) {
    return Refuse(absl::StrCat("parallel.zero_group = ", config.zero_group, " does not divide the ",
                               alike, " data-parallel ranks (", ranks, " ranks / tensor ", tensor,
                               " / pipeline ", pipeline, ")"));
  }
  const ParallelSizes sizes{tensor, context, data, expert, pipeline};
  if (config.model.HasExperts() && ShardSizesOf(config, sizes).experts == 0) {
    return Refuse(absl::StrCat(
        "parallel.zero_group = ", config.zero_group,
        ": groups of so many ranks have more of the ranks of one expert than of another; "
        "a multiple of parallel.context x parallel.expert = ",
        context * expert, ", or a divisor of parallel.context = ", context, ", is right"));
  }
  return Mesh::Create({{Axis::kTensor, tensor},
                       {Axis::kContext, context},
                       {Axis::kExpert, expert},
                       {Axis::kData, data / expert},
                       {Axis::kPipeline, pipeline}});
}

ParallelSizes SizesOf(const Mesh& mesh) {
  return {mesh.Size(Axis::kTensor), mesh.Size(Axis::kContext),
          mesh.Size(Axis::kData) * mesh.Size(Axis::kExpert), mesh.Size(Axis::kExpert),
          mesh.Size(Axis::kPipeline)};
}

ShardSizes ShardSizesOf(const TrainConfig& config, const ParallelSizes& sizes) {
  const int context = sizes.context, all = context * sizes.data;
  const int group = config.zero_group > 0 ? std::min(config.zero_group, all) : all;
  // Data-parallel ranks are in the order context, expert, data. A group of whole rounds of context
  // x expert has equally many ranks of each expert. A smaller one has, of each expert that it has,
  // the ranks along context or an equal part of them.
  const int round = context * sizes.expert;
  int experts = 0;
  if (sizes.expert == 1 || group % round == 0) {
    experts = group / sizes.expert;
  } else if (group < round && (context % group == 0 || group % context == 0)) {
    experts = std::min(group, context);
  }
  return {.shared = group, .experts = experts};
}

int RanksThatShareGpus(const std::vector<int>& hosts, const std::vector<std::string>& gpus) {
  std::map<std::pair<int, std::string>, int> ranks;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    if (!gpus[rank].empty()) ++ranks[{hosts[rank], gpus[rank]}];
  }
  int sharing = 0;
  for (const auto& [gpu, count] : ranks) sharing += count > 1 ? count : 0;
  return sharing;
}

ParallelGroups ParallelGroups::Alone() {
  ParallelGroups groups;
  groups.world = std::make_unique<Group>();
  groups.snapshots = std::make_unique<Group>();
  groups.checkpoints = std::make_unique<Group>();
  groups.checkpoint_copies = std::make_unique<Group>();
  groups.hosts = {0};
  groups.tensor = std::make_unique<Group>();
  groups.context = std::make_unique<Group>();
  groups.expert = std::make_unique<Group>();
  groups.data = std::make_unique<Group>();
  groups.pipeline = std::make_unique<Group>();
  return groups;
}

absl::StatusOr<ParallelGroups> ParallelGroups::Create(
    const TrainConfig& config, const std::shared_ptr<collectives::Endpoint>& endpoint) {
  ParallelGroups groups;
  WEFT_ASSIGN_OR_RETURN(groups.mesh, MeshOf(config, endpoint->world_size()));
  const JobRank mine(endpoint->rank().value());
  const AxisSet everybody = {Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kData,
                             Axis::kPipeline};
  groups.records = endpoint->records();
  if (groups.records != nullptr) groups.records->Say(absl::StrCat("mesh ", groups.mesh.ToText()));
  // Named after the axes and the group's first rank.
  auto make = [&](const std::string& name, const std::vector<JobRank>& members) {
    std::vector<Rank> ranks;
    for (JobRank member : members) ranks.emplace_back(member.value());
    return Group::Create(endpoint, absl::StrCat("train.", name, ".", ranks[0].value()), ranks);
  };
  auto along = [&](const char* name, AxisSet axes) {
    return make(name, groups.mesh.GroupOf(mine, axes).members);
  };
  WEFT_ASSIGN_OR_RETURN(groups.world, along("world", everybody));
  WEFT_ASSIGN_OR_RETURN(groups.snapshots, along("snapshots", everybody));
  WEFT_ASSIGN_OR_RETURN(groups.checkpoints, along("checkpoints", everybody));
  if (!config.checkpoint_local_folder.empty()) {
    WEFT_ASSIGN_OR_RETURN(groups.checkpoint_copies, along("checkpoint_copies", everybody));
  }
  for (int rank = 0; rank < endpoint->world_size(); ++rank) {
    groups.hosts.push_back(endpoint->host(Rank(rank)));
  }
  WEFT_ASSIGN_OR_RETURN(groups.tensor, along("tensor", {Axis::kTensor}));
  WEFT_ASSIGN_OR_RETURN(groups.context, along("context", {Axis::kContext}));
  WEFT_ASSIGN_OR_RETURN(groups.data, along("data", {Axis::kContext, Axis::kExpert, Axis::kData}));
  WEFT_ASSIGN_OR_RETURN(groups.expert, along("expert", {Axis::kTensor, Axis::kExpert}));
  // Makes `of.shard` and `of.replicas`: each `ranks` neighbours along `axes` share the
  // training state between them.
  auto cut = [&](ParallelGroups& of, const std::string& prefix, AxisSet axes,
                 int ranks) -> absl::Status {
    const topology::MeshGroup data = groups.mesh.GroupOf(mine, axes);
    const int size = static_cast<int>(data.members.size());
    if (ranks == size) return absl::OkStatus();
    const int position = static_cast<int>(data.position);
    std::vector<JobRank> shard, replicas;
    for (int i = 0; i < size; ++i) {
      const JobRank member = data.members[static_cast<size_t>(i)];
      if (i / ranks == position / ranks) shard.push_back(member);
      if (i % ranks == position % ranks) replicas.push_back(member);
    }
    WEFT_ASSIGN_OR_RETURN(of.shard, make(prefix + "shard", shard));
    WEFT_ASSIGN_OR_RETURN(of.replicas, make(prefix + "replicas", replicas));
    return absl::OkStatus();
  };
  const ShardSizes sizes = ShardSizesOf(config, SizesOf(groups.mesh));
  WEFT_RETURN_IF_ERROR(cut(groups, "", {Axis::kContext, Axis::kExpert, Axis::kData}, sizes.shared));
  groups.replica = groups.mesh.PositionIn(mine, {Axis::kExpert, Axis::kData});
  if (config.model.HasExperts()) {
    groups.experts = std::make_unique<ParallelGroups>(Alone());
    WEFT_ASSIGN_OR_RETURN(groups.experts->data,
                          along("expert_data", {Axis::kContext, Axis::kData}));
    WEFT_ASSIGN_OR_RETURN(groups.experts->world, along("expert_world", everybody));
    WEFT_RETURN_IF_ERROR(
        cut(*groups.experts, "expert_", {Axis::kContext, Axis::kData}, sizes.experts));
  }
  WEFT_ASSIGN_OR_RETURN(groups.pipeline, along("pipeline", {Axis::kPipeline}));
  const topology::MeshGroup pipeline = groups.mesh.GroupOf(mine, {Axis::kPipeline});
  const int stages = static_cast<int>(pipeline.members.size());
  const bool at_an_end = pipeline.position == 0 || pipeline.position == stages - 1;
  if (stages > 1 && config.model.tied && at_an_end) {
    WEFT_ASSIGN_OR_RETURN(groups.ends,
                          make("ends", {pipeline.members.front(), pipeline.members.back()}));
  }
  groups.SetOverlap(config.overlap);
  groups.tensor->set_awaited(true);
  return groups;
}

namespace {

// What the schedule of this config sends between stages.
std::vector<Group::Channel> PipelineChannels(const TrainConfig& config) {
  std::vector<Group::Channel> channels;
  for (const topology::PipelineChannel& one : topology::ChannelsOf(
           {config.pipeline_schedule, config.pipeline_parallel, config.pipeline_chunks})) {
    channels.push_back({one.from, one.to, one.number});
  }
  return channels;
}

absl::StatusOr<std::shared_ptr<NcclSession>> OpenSession(const TrainConfig& config,
                                                         at::Device device, int sharing,
                                                         absl::Duration timeout,
                                                         const Group& world) {
  const int gpu = device.has_index() ? device.index() : 0;
  // A group's connections are made with it, not under the messages of others (ConnectForMessages).
  (void)setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<NcclSession> session,
                        NcclSession::Open(gpu, timeout, world.HealthCheck()));
  if (sharing == 0) return session;
  if (config.device_collectives == DeviceCollectives::kAuto) {
    return absl::FailedPreconditionError(
        absl::StrCat(sharing, " ranks share a GPU with another rank, and NCCL wants one a rank"));
  }
  // NCCL takes ranks of one GPU where they seem to be of several hosts.
  const std::string host = absl::StrCat("rank", world.rank());
  (void)setenv("NCCL_HOSTID", host.c_str(), /*overwrite=*/0);
  WEFT_LOG_INFO(sharing, " ranks share a GPU with another rank: NCCL takes each for a host of its ",
                "own (", host, ") and sends over the network");
  return session;
}

}  // namespace

absl::Status ParallelGroups::OpenDeviceCollectives(const TrainConfig& config, at::Device device,
                                                   absl::Duration timeout) {
  const bool is_wanted =
      config.device_collectives == DeviceCollectives::kNccl ||
      (config.device_collectives == DeviceCollectives::kAuto && device.is_cuda());
  if (!is_wanted || world->size() == 1) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> gpus, world->Gather(AddressOf(device)));
  const absl::StatusOr<std::shared_ptr<NcclSession>> session =
      OpenSession(config, device, RanksThatShareGpus(hosts, gpus), timeout, *world);
  absl::Status agreed;
  WEFT_RETURN_IF_ERROR(world->Agree(session.status(), agreed));
  if (agreed.ok()) {
    WEFT_LOG_INFO("GPU tensors go between ranks by NCCL: ", (*session)->device().Describe());
    return UseNccl(*session, CurrentStream(device), PipelineChannels(config));
  }
  if (config.device_collectives == DeviceCollectives::kNccl) {
    return Annotate(agreed, "parallel.collectives = nccl");
  }
  if (world->rank() == 0) {
    WEFT_LOG_WARN("GPU tensors go through host memory between ranks, not by NCCL: ",
                  agreed.message());
  }
  return absl::OkStatus();
}

// Every rank makes its groups' communicators in this order, so that none waits for one that waits
// for it. What computation waits for has a stream of high priority; gradients have not.
absl::Status ParallelGroups::UseNccl(const std::shared_ptr<NcclSession>& session,
                                     WeftStream* current,
                                     absl::Span<const Group::Channel> channels) {
  constexpr Group::NcclUse kAwaited{.high_priority = true};
  constexpr Group::NcclUse kAwaitedMessages{.high_priority = true, .exchanges_messages = true};
  world->WatchNccl(session);  // first: where a group cannot be made, Fail ends those that could
  WEFT_RETURN_IF_ERROR(tensor->UseNccl(session, current, kAwaited));
  for (Group* group : {context.get(), expert.get()}) {
    WEFT_RETURN_IF_ERROR(group->UseNccl(session, current, kAwaitedMessages));
  }
  for (Group* group : DataGroups()) {
    WEFT_RETURN_IF_ERROR(group->UseNccl(session, current, {}));
  }
  if (ends != nullptr) WEFT_RETURN_IF_ERROR(ends->UseNccl(session, current, {}));
  return pipeline->UseNcclChannels(session, current, channels);
}

void ParallelGroups::Fail(const absl::Status& why) {
  world->AbortNccl(why);
  if (IsAgreed(why)) return;
  const int mine = world->rank();
  const Failure failure = FailureOf(why);
  absl::Status cause = why;
  if (failure.rank < 0 || failure.rank == mine) {  // it began here
    cause = WithFailure(
        absl::UnavailableError(absl::StrCat("rank ", mine, " is gone: it failed: ", why.message())),
        {.scope = FailureScope::kProcess, .rank = mine});
  }
  for (Group* group : All()) group->Abort(cause);
}

void ParallelGroups::Leave() {
  for (std::unique_ptr<Group>* group :
       {&world, &snapshots, &checkpoints, &checkpoint_copies, &data, &tensor, &pipeline, &ends,
        &context, &expert, &shard, &replicas}) {
    group->reset();
  }
  experts.reset();
}

std::vector<Group*> ParallelGroups::DataGroups() const {
  std::vector<Group*> along;
  for (Group* group : {data.get(), shard.get(), replicas.get()}) {
    if (group != nullptr) along.push_back(group);
  }
  if (experts == nullptr) return along;
  for (Group* group : experts->DataGroups()) along.push_back(group);
  return along;
}

std::vector<Group*> ParallelGroups::All() const {
  std::vector<Group*> all;
  for (Group* group : {world.get(), data.get(), tensor.get(), context.get(), expert.get(),
                       pipeline.get(), ends.get(), shard.get(), replicas.get(), snapshots.get(),
                       checkpoints.get(), checkpoint_copies.get()}) {
    if (group != nullptr) all.push_back(group);
  }
  if (experts == nullptr) return all;
  for (Group* group : experts->All()) all.push_back(group);
  return all;
}

void ParallelGroups::SetOverlap(const OverlapAxes& axes) {
  tensor->set_overlaps(axes.tensor);
  context->set_overlaps(axes.context);
  expert->set_overlaps(axes.expert);
  for (Group* group : DataGroups()) group->set_overlaps(axes.data);
}

void ParallelGroups::SetTrace(Trace* trace) {
  const auto set = [trace](Group* group, TraceTrack track) {
    constexpr int kFromAxisToExposed = kDataExposedTrack - kDataTrack;
    static_assert(kExpertTrack + kFromAxisToExposed == kExpertExposedTrack);
    if (group == nullptr) return;
    group->SetTrace(
        trace,
        {.compute = kComputeTrack, .collectives = track, .exposed = track + kFromAxisToExposed});
  };
  for (Group* group : {world.get(), data.get(), shard.get(), replicas.get()}) {
    set(group, kDataTrack);
  }
  set(tensor.get(), kTensorTrack);
  set(pipeline.get(), kPipelineTrack);
  set(ends.get(), kPipelineTrack);
  set(context.get(), kContextTrack);
  set(expert.get(), kExpertTrack);
  if (experts != nullptr) experts->SetTrace(trace);
}

void ParallelGroups::set_step(int64_t step) {
  for (Group* group : {world.get(), data.get(), tensor.get(), context.get(), expert.get(),
                       pipeline.get(), ends.get(), shard.get(), replicas.get()}) {
    if (group != nullptr) group->set_step(step);
  }
  if (experts != nullptr) experts->set_step(step);
}

}  // namespace weft::train
