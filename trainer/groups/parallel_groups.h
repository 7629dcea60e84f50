// The groups of a training job: one an axis of the parallel layout, and one of everybody.
//
// The mesh has the tensor axis innermost, then context, expert, data, pipeline: a tensor group is
// neighbours, which share a host, and data groups come before pipeline groups, as MegaScale lays
// them out (section 2).
#ifndef WEFT_TRAINER_GROUPS_PARALLEL_GROUPS_H_
#define WEFT_TRAINER_GROUPS_PARALLEL_GROUPS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/trace.h"
#include "collectives/endpoint.h"
#include "topology/job/mesh.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"

namespace weft::train {

// Tracks of a training run's trace.
enum TraceTrack {
  kComputeTrack,
  kDataTrack,
  kTensorTrack,
  kPipelineTrack,
  kContextTrack,
  kExpertTrack,
  kBubbleTrack,
  // What metrics.jsonl has in seconds, each on a track of its own: what the rank waited for, by
  // axis, in the order of the axes' tracks; for its batch; and the optimizer.
  kDataExposedTrack,
  kTensorExposedTrack,
  kPipelineExposedTrack,
  kContextExposedTrack,
  kExpertExposedTrack,
  kDataWaitTrack,
  kOptimizerTrack,
  kTraceTracks
};
std::vector<std::string> TraceTrackNames();

// Sizes of the axes. `data` is what the ranks leave.
struct ParallelSizes {
  int tensor = 1;
  int context = 1;
  int data = 1;    // shares of a batch
  int expert = 1;  // of these, those that share the experts of a layer
  int pipeline = 1;
};

// "12 and 16 are": the multiples of `unit` next to `number`, which is none, for messages.
std::string MultiplesAround(int64_t number, int64_t unit);
// InvalidArgument with the arithmetic where the axes do not divide `ranks` or the model.
absl::StatusOr<topology::Mesh> MeshOf(const TrainConfig& config, int ranks);
ParallelSizes SizesOf(const topology::Mesh& mesh);

// Ranks over which the training state of a parameter is sharded: of those that hold it, the ones in
// one group of parallel.zero_group data-parallel ranks.
struct ShardSizes {
  int shared = 1;   // of a parameter that all data-parallel ranks hold
  int experts = 1;  // of an expert's; 0: groups have more and fewer of the ranks that hold it
};
ShardSizes ShardSizesOf(const TrainConfig& config, const ParallelSizes& sizes);

// Ranks that share a GPU with another rank. `hosts` and `gpus`, by rank: the number of its host,
// and where its GPU is there (AddressOf); empty: no GPU, which nobody shares.
int RanksThatShareGpus(const std::vector<int>& hosts, const std::vector<std::string>& gpus);

struct ParallelGroups {
  topology::Mesh mesh;
  std::unique_ptr<Group> world, tensor, context, pipeline;
  std::unique_ptr<Group> data;    // along context, expert, data: all that hold the same parameters
  std::unique_ptr<Group> expert;  // along tensor, expert: all that share the experts of a layer
  int replica = 0;                // place along expert, data: the share of a batch
  // With parallel.zero_group the data axis is two: the ranks that share the training state, and
  // those that hold the same shard of it. Null: all of `data` share it, and each holds a shard of
  // its own.
  std::unique_ptr<Group> shard, replicas;
  // What the groups above are to parameters in general, for those of the experts: `data` along
  // context, data, of which those of one `shard` share the training state, and nothing is shared
  // over `tensor`. Null: the model has none.
  std::unique_ptr<ParallelGroups> experts;
  // First and last stage, which share a tied embedding; null: no such pair, or not this rank.
  std::unique_ptr<Group> ends;
  // Everybody, as `world`, each for a thread in the background: loop/snapshots.h and
  // loop/checkpoints.h, which has another one for what goes on from local disks.
  std::unique_ptr<Group> snapshots, checkpoints, checkpoint_copies;
  std::vector<int> hosts;      // of each rank of the job: the number of its host
  Records* records = nullptr;  // the endpoint's; null: there are none

  // The ranks over which training state is sharded.
  Group& shard_group() const { return shard == nullptr ? *data : *shard; }
  // What moves parameters and gradients along the data axis, those of the experts, too.
  std::vector<Group*> DataGroups() const;

  // A job of one rank.
  static ParallelGroups Alone();
  static absl::StatusOr<ParallelGroups> Create(
      const TrainConfig& config, const std::shared_ptr<collectives::Endpoint>& endpoint);

  // As config.device_collectives says: NCCL's communicators for the groups that move tensors, or
  // none. Called by all ranks, once, when `device` is open. What a rank lacks is an
  // error with kNccl, and said by rank 0 with kAuto. `timeout`: of a collective on the GPU.
  absl::Status OpenDeviceCollectives(const TrainConfig& config, at::Device device,
                                     absl::Duration timeout);

  // After an error on this rank, before it leaves: every group fails with its cause, on all ranks,
  // so that each names the rank at which it began and not the one that it heard of it from. Not for
  // what all ranks know already (IsAgreed). Nothing on this rank's GPU waits for others afterwards.
  void Fail(const absl::Status& why);
  // Afterwards there are no groups, whoever waited for this rank in one has been told, and what was
  // under way touches no tensor any more.
  void Leave();

  void SetTrace(Trace* trace);
  void set_step(int64_t step);

 private:
  std::vector<Group*> All() const;
  void SetOverlap(const OverlapAxes& axes);
  absl::Status UseNccl(const std::shared_ptr<NcclSession>& session, WeftStream* current,
                       absl::Span<const Group::Channel> pipeline_channels);
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_GROUPS_PARALLEL_GROUPS_H_
