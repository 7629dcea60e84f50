// How the ranks of a job share the cores of its hosts, and what a config leaves to be chosen by
// that. Arithmetic alone, the same on all ranks; thread-safe.
#ifndef WEFT_TRAINER_PARALLEL_CORE_SHARE_H_
#define WEFT_TRAINER_PARALLEL_CORE_SHARE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/config.h"
#include "trainer/groups/parallel_groups.h"

namespace weft::train {

// What one rank knows.
struct RankCores {
  int host = 0;     // its number
  int cores = 1;    // of that host, that all of the job's ranks there may use
  int threads = 1;  // that compute, of this rank
};

struct CoreShare {
  int hosts = 1;
  int ranks = 1, cores = 1;     // of the host with most ranks a core
  bool has_idle_cores = false;  // on every host: more cores than threads that compute
  bool tensor_in_host = true;   // the ranks of a tensor axis share a host
  bool is_crowded() const { return ranks > cores; }
};

// `ranks` by job rank; `tensor` of them, neighbours, are one tensor axis.
CoreShare ShareOf(absl::Span<const RankCores> ranks, int tensor);

// Sets what `config` leaves open (0):
//
//   parallel.tensor_chunks    One piece where the ranks of a tensor axis share a host and have no
//                             core beside those that compute. Bytes go through shared memory there,
//                             moved by the ranks themselves: a core that moves them multiplies
//                             nothing, so that pieces hide nothing, cut the products, and make the
//                             ranks wait for each other more often. Else kTensorChunks.
//   parallel.tensor_gathered  Kept in the same case, also where the number of pieces is given: to
//                             gather again is work for the same cores. Else it stays open, and rows
//                             are gathered again.
//   train.micro_batch         With a pipeline whose ranks are more than the cores of their one host
//                             (step_plan.h, MicroBatchesOn). Else it stays open.
//
// Where train.device is no CPU, pieces are kTensorChunks and the rest stays open.
void FitToCores(TrainConfig& config, const ParallelSizes& sizes, const CoreShare& share);
// Takes back, where there is no room for it, what of that takes memory. `given`: the config before
// it. False: nothing does.
bool GiveBackMemory(TrainConfig& config, const TrainConfig& given);

// What `config` has of these keys in a job of these sizes, as one word, for a run that goes on
// after a failure or from a checkpoint: its sums are to be the same though a rank may be on another
// host now.
std::string CoreChoiceToWord(const TrainConfig& config, const ParallelSizes& sizes);
// Sets them as the word says; false, and nothing, where it is no such word or of other sizes.
bool TakeCoreChoice(absl::string_view word, const ParallelSizes& sizes, TrainConfig& config);
// The same for the word of a checkpoint, whose run may have had another config: sets what `config`
// leaves open. False, and nothing, where it is no such word, of other sizes, leads to no StepPlan,
// or train.device is no CPU, on which the cores decide nothing.
bool KeepCoreChoice(absl::string_view word, const ParallelSizes& sizes, TrainConfig& config);

// For people: "8 ranks on 2 cores: 2 micro-batches, since other ranks have the cores of a stage
// that waits; the tensor axis exchanges rows in 1 piece". `config` after FitToCores; empty where
// nothing of `given`, the config before it, was chosen by the cores.
std::string DescribeCores(const TrainConfig& given, const TrainConfig& config,
                          const ParallelSizes& sizes, const CoreShare& share);

// For people, of a resumed run: what `kept`, the config after KeepCoreChoice, has otherwise than
// `own`, the same config after FitToCores, by the names of the keys. Empty: nothing.
std::string DescribeKeptChoice(const TrainConfig& kept, const TrainConfig& own,
                               const ParallelSizes& sizes);

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_CORE_SHARE_H_
