#include "trainer/groups/parallel_groups.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft {
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
  if (model.ffn % parts != 0) {
    return Refuse(
        absl::StrCat("parallel.tensor = ", parts, " does not divide model.ffn = ", model.ffn));
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
  return {"compute", "communication", "tensor communication", "pipeline communication"};
}

absl::StatusOr<Mesh> MeshOf(const TrainConfig& config, int ranks) {
  WEFT_RETURN_IF_ERROR(CheckModel(config));
  const int tensor = config.tensor_parallel, pipeline = config.pipeline_parallel;
  if (ranks % (tensor * pipeline) != 0) {
    return Refuse(absl::StrCat("parallel.tensor = ", tensor, " x parallel.pipeline = ", pipeline,
                               " = ", tensor * pipeline, " ranks hold one model; the ", ranks,
                               " ranks of this job are no multiple of that"));
  }
  const int data = ranks / (tensor * pipeline);
  if (config.zero_group > 0 && data % std::min(config.zero_group, data) != 0) {
    return Refuse(absl::StrCat("parallel.zero_group = ", config.zero_group, " does not divide the ",
                               data, " data-parallel ranks (", ranks, " ranks / tensor ", tensor,
                               " / pipeline ", pipeline, ")"));
  }
  return Mesh::Create({{Axis::kTensor, tensor}, {Axis::kData, data}, {Axis::kPipeline, pipeline}});
}

ParallelSizes SizesOf(const Mesh& mesh) {
  return {mesh.Size(Axis::kTensor), mesh.Size(Axis::kData), mesh.Size(Axis::kPipeline)};
}

ParallelGroups ParallelGroups::Alone() {
  ParallelGroups groups;
  groups.world = std::make_unique<Group>();
  groups.tensor = std::make_unique<Group>();
  groups.data = std::make_unique<Group>();
  groups.pipeline = std::make_unique<Group>();
  return groups;
}

absl::StatusOr<ParallelGroups> ParallelGroups::Create(
    const TrainConfig& config, const std::shared_ptr<collectives::Endpoint>& endpoint) {
  ParallelGroups groups;
  WEFT_ASSIGN_OR_RETURN(groups.mesh, MeshOf(config, endpoint->world_size()));
  const JobRank mine(endpoint->rank().value());
  // Named after the axes and the group's first rank.
  auto make = [&](const char* name, std::vector<JobRank> members) {
    std::vector<Rank> ranks;
    for (JobRank member : members) ranks.emplace_back(member.value());
    return Group::Create(endpoint, absl::StrCat("train.", name, ".", ranks[0].value()), ranks);
  };
  auto along = [&](const char* name, AxisSet axes) {
    return make(name, groups.mesh.GroupOf(mine, axes).members);
  };
  WEFT_ASSIGN_OR_RETURN(groups.world,
                        along("world", {Axis::kTensor, Axis::kData, Axis::kPipeline}));
  WEFT_ASSIGN_OR_RETURN(groups.tensor, along("tensor", {Axis::kTensor}));
  WEFT_ASSIGN_OR_RETURN(groups.data, along("data", {Axis::kData}));
  WEFT_ASSIGN_OR_RETURN(groups.pipeline, along("pipeline", {Axis::kPipeline}));
  const topology::MeshGroup data = groups.mesh.GroupOf(mine, {Axis::kData});
  const int replicas_of = static_cast<int>(data.members.size());
  if (config.zero_group > 0 && config.zero_group < replicas_of) {
    std::vector<JobRank> shard, replicas;
    for (int i = 0; i < replicas_of; ++i) {
      const JobRank member = data.members[static_cast<size_t>(i)];
      const int position = static_cast<int>(data.position);
      if (i / config.zero_group == position / config.zero_group) shard.push_back(member);
      if (i % config.zero_group == position % config.zero_group) replicas.push_back(member);
    }
    WEFT_ASSIGN_OR_RETURN(groups.shard, make("shard", shard));
    WEFT_ASSIGN_OR_RETURN(groups.replicas, make("replicas", replicas));
  }
  const topology::MeshGroup pipeline = groups.mesh.GroupOf(mine, {Axis::kPipeline});
  const int stages = static_cast<int>(pipeline.members.size());
  const bool at_an_end = pipeline.position == 0 || pipeline.position == stages - 1;
  if (stages > 1 && config.model.tied && at_an_end) {
    WEFT_ASSIGN_OR_RETURN(groups.ends,
                          make("ends", {pipeline.members.front(), pipeline.members.back()}));
  }
  return groups;
}

void ParallelGroups::SetTrace(Trace* trace) {
  world->SetTrace(trace, kComputeTrack, kDataTrack);
  data->SetTrace(trace, kComputeTrack, kDataTrack);
  tensor->SetTrace(trace, kComputeTrack, kTensorTrack);
  pipeline->SetTrace(trace, kComputeTrack, kPipelineTrack);
  for (Group* group : {shard.get(), replicas.get()}) {
    if (group != nullptr) group->SetTrace(trace, kComputeTrack, kDataTrack);
  }
  if (ends != nullptr) ends->SetTrace(trace, kComputeTrack, kPipelineTrack);
}

void ParallelGroups::set_step(int64_t step) {
  for (Group* group : {world.get(), data.get(), tensor.get(), pipeline.get(), ends.get(),
                       shard.get(), replicas.get()}) {
    if (group != nullptr) group->set_step(step);
  }
}

}  // namespace weft
