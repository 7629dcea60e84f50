#include "tools/train/check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/settings.h"
#include "base/status.h"
#include "base/units.h"
#include "collectives/join.h"
#include "tools/command_line.h"
#include "topology/host/affinity.h"
#include "topology/job/mesh.h"
#include "trainer/data/dataset_info.h"
#include "trainer/data/sampler.h"
#include "trainer/device/device.h"
#include "trainer/files/file.h"
#include "trainer/forecast/run_description.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/run_data.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {
namespace {

// A vocabulary is all that --check needs of the data: what is given, else the data's, else the
// model's or the demo's, and it says so.
void FindVocabulary(int given, const std::vector<DatasetInfo>& data, TrainConfig& config) {
  constexpr int64_t kOfTheDemo = 4096;
  if (given > 0) {
    config.model.vocabulary = given;
  } else if (!data.empty()) {
    config.model.vocabulary = data.front().vocab_size;
  } else {
    const bool is_known = config.model.vocabulary > 0;
    if (!is_known) config.model.vocabulary = kOfTheDemo;
    absl::PrintF("vocabulary    %d, %s, as there is no data at '%s' (--vocabulary)\n",
                 config.model.vocabulary, is_known ? "the model's" : "that of the demo",
                 absl::StrJoin(config.data.prefixes, ", "));
  }
}

// The datasets of the run; none where one of them is not there.
absl::StatusOr<std::vector<DatasetInfo>> FindData(const TrainConfig& config) {
  absl::StatusOr<std::vector<DatasetInfo>> data = ReadDatasetInfos(config.data.prefixes);
  return absl::IsNotFound(data.status()) ? std::vector<DatasetInfo>() : std::move(data);
}

// A line a dataset. InvalidArgument where one is shorter than a sample, as the run has it.
absl::StatusOr<std::string> DescribeData(const TrainConfig& config,
                                         const std::vector<DatasetInfo>& data) {
  std::vector<int64_t> samples;
  for (size_t i = 0; i < data.size(); ++i) {
    const std::string& prefix = config.data.prefixes[i];
    const int64_t sequence = config.model.sequence;
    WEFT_ASSIGN_OR_RETURN(samples.emplace_back(),
                          SamplesPerEpoch(prefix + "_train", data[i].train_tokens, sequence));
    WEFT_RETURN_IF_ERROR(
        SamplesPerEpoch(prefix + "_valid", data[i].validation_tokens, sequence).status());
  }
  std::string text;
  for (const std::string& line : DescribeDatasets(config, samples)) {
    absl::StrAppend(&text, text.empty() ? "data          " : "              ", line, "\n");
  }
  return text;
}

// Bytes of memory that one GPU has, for --check; 0: not known.
absl::StatusOr<Bytes> GpuMemory(const std::string& given_text, const TrainConfig& config) {
  if (!given_text.empty()) {
    Bytes given;
    WEFT_RETURN_IF_ERROR(TakeBytes("--gpu-memory", given_text, given));
    if (given == Bytes(0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--gpu-memory ", given_text, ": a GPU has more than nothing, as 80GiB"));
    }
    if (config.device != DeviceKind::kCuda) {
      return absl::InvalidArgumentError(
          absl::StrCat("--gpu-memory ", given_text,
                       " goes with --set train.device=cuda; this run computes on the CPU"));
    }
    return given;
  }
  if (config.device != DeviceKind::kCuda) return Bytes(0);
  const absl::StatusOr<at::Device> device = OpenDevice(config.device, 0);
  return device.ok() ? MemoryOf(*device).total : Bytes(0);
}

// The ranks that the axes need where none of them is data-parallel alone.
absl::StatusOr<int> FewestRanks(const TrainConfig& config) {
  const int64_t product = int64_t{config.tensor_parallel} * config.context_parallel *
                          config.expert_parallel * config.pipeline_parallel;
  if (product <= topology::kMeshRanksMax) return static_cast<int>(product);
  return absl::InvalidArgumentError(
      absl::StrCat("parallel.tensor = ", config.tensor_parallel, " x parallel.context = ",
                   config.context_parallel, " x parallel.expert = ", config.expert_parallel,
                   " x parallel.pipeline = ", config.pipeline_parallel, " = ", product,
                   " ranks; a job has at most ", topology::kMeshRanksMax));
}

// The schedule of the pipeline as a picture, in the file `svg`.
absl::Status Draw(const TrainConfig& config, int size, const std::string& svg) {
  WEFT_ASSIGN_OR_RETURN(const topology::Mesh mesh, MeshOf(config, size));
  WEFT_ASSIGN_OR_RETURN(const StepPlan plan, StepPlan::Make(config, SizesOf(mesh)));
  WEFT_ASSIGN_OR_RETURN(const std::string picture, DrawPipeline(config, plan));
  if (picture.empty()) {
    return absl::InvalidArgumentError(
        "--svg draws the schedule of a pipeline, and there is none: parallel.pipeline = 1");
  }
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(svg, picture));
  absl::PrintF("schedule      %s\n", svg);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRun(const Command& command) {
  WEFT_ASSIGN_OR_RETURN(TrainConfig config, command.Config());
  WEFT_ASSIGN_OR_RETURN(const std::vector<DatasetInfo> data, FindData(config));
  FindVocabulary(command.vocabulary, data, config);
  WEFT_ASSIGN_OR_RETURN(const std::string datasets, DescribeData(config, data));
  config.threads = GivenThreads(config);
  WEFT_ASSIGN_OR_RETURN(const Bytes gpu, GpuMemory(command.gpu_memory, config));
  WEFT_ASSIGN_OR_RETURN(const Settings settings, Settings::FromEnvironment());
  WEFT_ASSIGN_OR_RETURN(const auto environment, collectives::JobEnvironment::FromEnvironment());
  int size = command.ranks;
  if (size == 0) {
    WEFT_ASSIGN_OR_RETURN(const int fewest, FewestRanks(config));
    size = std::max(environment.world_size, fewest);
  }
  TrainConfig as_run;
  WEFT_ASSIGN_OR_RETURN(
      std::string text,
      DescribeRun(config, size, command.ranks_per_host,
                  environment.recover && size > 1 && settings.Text("recovery.snapshot") == "memory",
                  gpu, JobCores(), &as_run));
  std::fputs((text + datasets).c_str(), stdout);
  return command.svg.empty() ? absl::OkStatus() : Draw(as_run, size, command.svg);
}

}  // namespace weft::train
