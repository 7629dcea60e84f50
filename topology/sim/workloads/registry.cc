#include "topology/sim/workloads/registry.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "base/settings.h"
#include "base/status.h"
#include "topology/sim/workloads/parameters.h"
#include "topology/sim/workloads/patterns.h"
#include "topology/sim/workloads/training_step.h"

namespace weft::topology {
namespace {

using Type = ParameterType;

constexpr double kMostBytes = 1e15, kMostEndpoints = 1 << 20;
constexpr double kMostPairs = 20e6;

constexpr Parameter kStart = {"start", Type::kDuration, "0s", 0, 1e4, "", "when it begins"};

constexpr Parameter kPermutation[] = {
    {"bytes", Type::kBytes, "2MB", 0, kMostBytes, "", "of each transfer"},
    kRanksParameter,
    kOrderParameter,
    kStart};
constexpr Parameter kIncast[] = {
    {"fan_in", Type::kCount, "32", 1, kMostEndpoints, "", "senders"},
    {"bytes", Type::kBytes, "1MB", 0, kMostBytes, "", "of each transfer"},
    {"target", Type::kCount, "0", 0, kMostEndpoints, "", "number of the endpoint that receives"},
    {"sources", Type::kChoice, "first", 0, 0, "first|random", "which endpoints send"},
    kStart};
constexpr Parameter kFullMesh[] = {
    {"bytes", Type::kBytes, "64KiB", 0, kMostBytes, "", "from each endpoint to each other"},
    {"shape", Type::kChoice, "parallel", 0, 0, "parallel|shifted|random",
     "all at once; or one after the other, from the next neighbour on or in random order"},
    {"window", Type::kCount, "1", 1, kMostEndpoints, "",
     "transfers of a sender at a time, not parallel"},
    kRanksParameter,
    kOrderParameter,
    kStart};
constexpr Parameter kBackground[] = {
    {"load", Type::kFraction, "0.1", 1e-6, 10, "", "of the first NIC's bandwidth, on average"},
    {"bytes", Type::kBytes, "1MB", 1, kMostBytes, "", "of a transfer, on average"},
    {"sizes", Type::kChoice, "fixed", 0, 0, "fixed|exponential", "their distribution"},
    {"duration", Type::kDuration, "1ms", 0, 1e3, "", "in which transfers begin"},
    kRanksParameter,
    kOrderParameter,
    kStart};
constexpr Parameter kStep[] = {
    {"model", Type::kChoice, "175b", 0, 0, "13b|175b|530b|gpt2-124m|llama-160m",
     "shape; single numbers below override"},
    {"layers", Type::kCount, "", 1, 1e5, "", "transformer blocks"},
    {"hidden", Type::kCount, "", 1, 1e6, "", "width of the model"},
    {"heads", Type::kCount, "", 1, 1e5, "", "attention heads"},
    {"vocabulary", Type::kCount, "", 1, 1e7, "", "tokens that there are"},
    {"sequence", Type::kCount, "", 1, 1e7, "", "tokens of a sequence"},
    {"experts", Type::kCount, "1", 1, 1e4, "", "feed-forward networks of a layer"},
    {"top_k", Type::kCount, "1", 1, 1e4, "", "experts of a token"},
    {"tp", Type::kCount, "8", 1, 64, "", "tensor parallel, within a host"},
    {"pp", Type::kCount, "1", 1, 4096, "", "pipeline stages"},
    {"schedule", Type::kChoice, "auto", 0, 0, "auto|gpipe|1f1b|eager-1f1b|interleaved|zb-h1|zb-v",
     "order of the passes; auto: 1f1b, with vpp > 1 interleaved"},
    {"vpp", Type::kCount, "1", 1, 1024, "", "chunks of a stage; zb-v: 2"},
    {"dp", Type::kCount, "1", 1, 1e6, "", "data parallel replicas"},
    {"cp", Type::kCount, "1", 1, 4096, "", "context parallel"},
    {"ep", Type::kCount, "1", 1, 1e5, "", "expert parallel, out of dp"},
    {"micro_batches", Type::kCount, "8", 1, 1e6, "", "of a replica"},
    {"micro_batch", Type::kCount, "1", 1, 1e4, "", "sequences of each"},
    {"peak", Type::kFraction, "312", 1e-3, 1e6, "", "TFLOP/s of a GPU"},
    {"efficiency", Type::kFraction, "0.62", 1e-4, 1, "", "of the kernels, bubbles not counted"},
    {"recompute", Type::kCount, "0", 0, 1, "", "1: forward again before backward"},
    {"element", Type::kCount, "2", 1, 8, "", "bytes of a number on the wire"},
    {"buckets", Type::kCount, "1", 1, 1000, "", "in which a chunk's parameters travel"},
    {"overlap_data", Type::kCount, "1", 0, 1, "", "0: all-gather first, reduce-scatter last"},
    {"overlap_pipeline", Type::kCount, "1", 0, 1, "", "0: stages wait for what they send"}};

using Context = WorkloadContext;

absl::Status Permutation(const Context& context, const Parameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Endpoint> ranks, RanksOf(context, parameters, 2));
  AddPermutation(context.workload, ranks, parameters.ByteCount("bytes"), parameters.Time("start"),
                 context.seed);
  return absl::OkStatus();
}

absl::Status Incast(const Context& context, const Parameters& parameters) {
  const std::vector<Endpoint> endpoints = context.fabric.Endpoints();
  const int64_t fan_in = parameters.Count("fan_in"), target = parameters.Count("target");
  const int64_t all = static_cast<int64_t>(endpoints.size());
  if (fan_in >= all || target >= all) {
    return absl::InvalidArgumentError(
        absl::StrCat("fan_in=", fan_in, ",target=", target, ": the fabric has ", all,
                     " NICs: wanted are at most ", all - 1, " for either"));
  }
  AddIncast(context.workload, endpoints, static_cast<int>(fan_in), static_cast<int>(target),
            parameters.Choice("sources") == "random", parameters.ByteCount("bytes"),
            parameters.Time("start"), context.seed);
  return absl::OkStatus();
}

absl::Status FullMesh(const Context& context, const Parameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Endpoint> ranks, RanksOf(context, parameters, 2));
  const double pairs = static_cast<double>(ranks.size()) * static_cast<double>(ranks.size() - 1);
  if (pairs > kMostPairs) {
    return absl::ResourceExhaustedError(absl::StrCat("a full mesh of ", ranks.size(), " is ", pairs,
                                                     " transfers; at most ", kMostPairs,
                                                     " are built: take fewer with ranks="));
  }
  const std::string& shape = parameters.Choice("shape");
  AddFullMesh(context.workload, ranks,
              shape == "parallel"  ? FullMeshShape::kParallel
              : shape == "shifted" ? FullMeshShape::kShifted
                                   : FullMeshShape::kRandom,
              static_cast<int>(parameters.Count("window")), parameters.ByteCount("bytes"),
              parameters.Time("start"), context.seed);
  return absl::OkStatus();
}

absl::Status Background(const Context& context, const Parameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Endpoint> ranks, RanksOf(context, parameters, 2));
  BackgroundTraffic traffic{
      .load = parameters.Fraction("load"),
      .rate = context.fabric.link(context.fabric.Ports(ranks[0])[0]).bandwidth,
      .bytes = parameters.ByteCount("bytes"),
      .exponential = parameters.Choice("sizes") == "exponential",
      .start = parameters.Time("start"),
      .duration = parameters.Time("duration")};
  const double transfers = traffic.load * static_cast<double>(ranks.size()) *
                           (traffic.duration / (traffic.bytes / traffic.rate));
  if (!(transfers <= kMostPairs)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "that load is about ", transfers, " transfers; at most ", kMostPairs, " are built"));
  }
  AddBackground(context.workload, ranks, traffic, context.seed);
  return absl::OkStatus();
}

absl::Status Step(const Context& context, const Parameters& parameters) {
  std::string model = parameters.Choice("model");
  if (absl::ascii_isdigit(static_cast<unsigned char>(model[0])))
    model = absl::StrCat("gpt-", model);
  WEFT_ASSIGN_OR_RETURN(const ModelPreset preset, FindModel(model));
  TrainingStep step;
  step.model = preset.shape;
  auto set = [&](const char* name, int64_t& number) {
    if (parameters.Given(name)) number = parameters.Count(name);
  };
  set("layers", step.model.layers);
  set("hidden", step.model.hidden);
  set("heads", step.model.heads);
  set("vocabulary", step.model.vocabulary);
  set("sequence", step.model.sequence);
  auto count = [&](const char* name) { return static_cast<int>(parameters.Count(name)); };
  step.model.experts = count("experts");
  step.model.top_k = count("top_k");
  const int replicas = count("dp"), experts = count("ep");
  if (replicas % experts != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("dp=", replicas, ": not a multiple of ep = ", experts));
  }
  WEFT_ASSIGN_OR_RETURN(step.mesh, Mesh::Create({{Axis::kTensor, count("tp")},
                                                 {Axis::kContext, count("cp")},
                                                 {Axis::kExpert, experts},
                                                 {Axis::kData, replicas / experts},
                                                 {Axis::kPipeline, count("pp")}}));
  step.chunks = count("vpp");
  const std::string& schedule = parameters.Choice("schedule");
  if (schedule != "auto") {
    WEFT_ASSIGN_OR_RETURN(step.schedule, ParsePipelineSchedule(schedule));
    const bool is_v = step.schedule == PipelineScheduleKind::kZeroBubbleV;
    if (is_v && !parameters.Given("vpp")) step.chunks = 2;
  } else if (step.chunks > 1) {
    step.schedule = PipelineScheduleKind::kInterleaved;
  }
  step.micro_batches = count("micro_batches");
  step.micro_batch = count("micro_batch");
  step.peak_flops = parameters.Fraction("peak") * 1e12;
  step.efficiency = parameters.Fraction("efficiency");
  step.recompute = count("recompute") == 1;
  step.element = count("element");
  step.buckets = count("buckets");
  step.overlap_data = count("overlap_data") == 1;
  step.overlap_pipeline = count("overlap_pipeline") == 1;
  return AddTrainingStep(context.workload, context.fabric, step).status();
}

constexpr WorkloadKind kKinds[] = {
    {"permutation", "every endpoint sends to the next of a random cycle", kPermutation,
     Permutation},
    {"incast", "many endpoints send to one", kIncast, Incast},
    {"full_mesh", "every endpoint sends to every other", kFullMesh, FullMesh},
    {"background", "transfers between random endpoints, at random times", kBackground, Background},
    {"step", "a training step of a job with tensor, pipeline, data, context, expert parallelism",
     kStep, Step},
};

std::vector<WorkloadKind> AllKinds(absl::Span<const WorkloadKind> more) {
  std::vector<WorkloadKind> kinds(std::begin(kKinds), std::end(kKinds));
  kinds.insert(kinds.end(), more.begin(), more.end());
  return kinds;
}

absl::Status Add(const Context& context, absl::string_view text,
                 const std::vector<WorkloadKind>& kinds) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  std::vector<std::string> names;
  for (const WorkloadKind& kind : kinds) {
    names.emplace_back(kind.name);
    if (parts.first != kind.name) continue;
    const absl::StatusOr<Parameters> parameters = Parameters::Parse(parts.second, kind.parameters);
    const absl::Status status =
        parameters.ok() ? kind.add(context, *parameters) : parameters.status();
    return status.ok() ? status : Annotate(status, absl::StrCat("workload ", kind.name));
  }
  const std::string name(parts.first.substr(0, 60));
  const std::string nearest = NearestName(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("no workload \"", name, "\"",
                   nearest.empty() ? "" : absl::StrCat(" (nearest: ", nearest, ")"),
                   "; there are: ", absl::StrJoin(names, ", ")));
}

}  // namespace

absl::StatusOr<std::vector<Endpoint>> RanksOf(const WorkloadContext& context,
                                              const Parameters& parameters, size_t least) {
  std::vector<Endpoint> endpoints = context.fabric.Endpoints();
  const size_t wanted = static_cast<size_t>(parameters.Count("ranks"));
  if (wanted > endpoints.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks=", wanted, ": the fabric has ", endpoints.size(), " NICs"));
  }
  if (parameters.Choice("order") == "random") {
    constexpr uint64_t kStream = 0x72616e6b;
    Random random(context.seed, kStream);
    random.Shuffle(endpoints);
  }
  if (wanted > 0) endpoints.resize(wanted);
  if (endpoints.size() < least) {
    return absl::InvalidArgumentError(absl::StrCat("ranks=", endpoints.size(), ": at least ", least,
                                                   " are wanted, and the fabric has ",
                                                   context.fabric.Endpoints().size(), " NICs"));
  }
  return endpoints;
}

absl::StatusOr<Workload> MakeWorkload(absl::string_view text, const Fabric& fabric, uint64_t seed,
                                      absl::Span<const WorkloadKind> more) {
  const std::vector<WorkloadKind> kinds = AllKinds(more);
  Workload workload;
  uint64_t part_seed = seed;  // another one for each, so that two alike do not draw alike
  for (absl::string_view part : absl::StrSplit(text, '+')) {
    WEFT_RETURN_IF_ERROR(Add({workload, fabric, part_seed}, part, kinds));
    part_seed = SplitMix64(part_seed);
  }
  return workload;
}

std::string WorkloadHelp(absl::Span<const WorkloadKind> more) {
  std::string help;
  for (const WorkloadKind& kind : AllKinds(more)) {
    absl::StrAppend(&help, kind.name, ": ", kind.help, "\n",
                    ParametersHelp(kind.parameters, "    "));
  }
  return help;
}

}  // namespace weft::topology
