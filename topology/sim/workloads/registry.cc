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
#include "topology/sim/workloads/collectives.h"
#include "topology/sim/workloads/parameters.h"
#include "topology/sim/workloads/patterns.h"
#include "topology/sim/workloads/training_step.h"

namespace weft::topology {
namespace {

using Type = ParameterType;

constexpr double kMostBytes = 1e15, kMostEndpoints = 1 << 20;
constexpr double kMostPairs = 20e6;

// Keys that several workloads share.
#define WEFT_SIM_RANKS                                                                       \
  {"ranks", Type::kCount, "0", 0, kMostEndpoints, "", "endpoints that take part; 0: all"}, { \
    "order", Type::kChoice, "linear", 0, 0, "linear|random", "which: the first, or drawn"    \
  }
#define WEFT_SIM_START \
  { "start", Type::kDuration, "0s", 0, 1e4, "", "when it begins" }

constexpr Parameter kPermutation[] = {
    {"bytes", Type::kBytes, "2MB", 0, kMostBytes, "", "of each transfer"},
    WEFT_SIM_RANKS,
    WEFT_SIM_START};
constexpr Parameter kIncast[] = {
    {"fan_in", Type::kCount, "32", 1, kMostEndpoints, "", "senders"},
    {"bytes", Type::kBytes, "1MB", 0, kMostBytes, "", "of each transfer"},
    {"target", Type::kCount, "0", 0, kMostEndpoints, "", "number of the endpoint that receives"},
    {"sources", Type::kChoice, "first", 0, 0, "first|random", "which endpoints send"},
    WEFT_SIM_START};
constexpr Parameter kAllToAll[] = {
    {"bytes", Type::kBytes, "64KiB", 0, kMostBytes, "", "from each endpoint to each other"},
    {"shape", Type::kChoice, "mesh", 0, 0, "mesh|shifted|random",
     "all at once; or one after the other, from the next neighbour on or in random order"},
    {"window", Type::kCount, "1", 1, kMostEndpoints, "",
     "transfers of a sender at a time, not mesh"},
    WEFT_SIM_RANKS,
    WEFT_SIM_START};
constexpr Parameter kCollective[] = {
    {"op", Type::kChoice, "all_reduce", 0, 0, "all_reduce|reduce_scatter|all_gather|broadcast",
     "what it does"},
    {"algorithm", Type::kChoice, "ring", 0, 0,
     "ring|direct|halving_doubling|recursive_doubling|tree|hierarchical|chain", "how"},
    {"bytes", Type::kBytes, "64MiB", 0, kMostBytes, "", "of a rank's whole buffer"},
    {"chunk", Type::kBytes, "1MiB", 1, kMostBytes, "", "in which tree and chain pipeline"},
    {"group", Type::kCount, "0", 0, kMostEndpoints, "",
     "hierarchical: ranks of a group; 0: the NICs of a host"},
    {"local", Type::kBandwidth, "2400Gbps", 1, 1e6, "", "hierarchical: within a host"},
    {"repeat", Type::kCount, "1", 1, 1000, "", "times, one after the other"},
    WEFT_SIM_RANKS};
constexpr Parameter kBackground[] = {
    {"load", Type::kFraction, "0.1", 1e-6, 10, "", "of the first NIC's bandwidth, on average"},
    {"bytes", Type::kBytes, "1MB", 1, kMostBytes, "", "of a transfer, on average"},
    {"sizes", Type::kChoice, "fixed", 0, 0, "fixed|exponential", "their distribution"},
    {"duration", Type::kDuration, "1ms", 0, 1e3, "", "in which transfers begin"},
    WEFT_SIM_RANKS,
    WEFT_SIM_START};
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
    {"schedule", Type::kChoice, "auto", 0, 0, "auto|gpipe|1f1b|interleaved|zb-h1|zb-v",
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

#undef WEFT_SIM_RANKS
#undef WEFT_SIM_START

struct Context {
  Workload& workload;
  const Fabric& fabric;
  uint64_t seed;
};

absl::StatusOr<std::vector<Endpoint>> Ranks(const Context& context, const Parameters& parameters,
                                            size_t least) {
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

absl::Status Permutation(const Context& context, const Parameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Endpoint> ranks, Ranks(context, parameters, 2));
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

absl::Status AllToAll(const Context& context, const Parameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Endpoint> ranks, Ranks(context, parameters, 2));
  const double pairs = static_cast<double>(ranks.size()) * static_cast<double>(ranks.size() - 1);
  if (pairs > kMostPairs) {
    return absl::ResourceExhaustedError(absl::StrCat("all-to-all of ", ranks.size(), " is ", pairs,
                                                     " transfers; at most ", kMostPairs,
                                                     " are built: take fewer with ranks="));
  }
  const std::string& shape = parameters.Choice("shape");
  AddAllToAll(context.workload, ranks,
              shape == "mesh"      ? AllToAllShape::kMesh
              : shape == "shifted" ? AllToAllShape::kShifted
                                   : AllToAllShape::kRandom,
              static_cast<int>(parameters.Count("window")), parameters.ByteCount("bytes"),
              parameters.Time("start"), context.seed);
  return absl::OkStatus();
}

absl::Status Collective(const Context& context, const Parameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Endpoint> ranks, Ranks(context, parameters, 2));
  static constexpr absl::string_view kOps[] = {"all_reduce", "reduce_scatter", "all_gather",
                                               "broadcast"};
  static constexpr absl::string_view kAlgorithms[] = {
      "ring", "direct", "halving_doubling", "recursive_doubling", "tree", "hierarchical", "chain"};
  auto place = [](const auto& names, absl::string_view name) {
    return std::find(std::begin(names), std::end(names), name) - std::begin(names);
  };
  CollectiveTraffic traffic{.op = static_cast<CollectiveOp>(place(kOps, parameters.Choice("op"))),
                            .algorithm = static_cast<CollectiveAlgorithm>(
                                place(kAlgorithms, parameters.Choice("algorithm"))),
                            .bytes = parameters.ByteCount("bytes"),
                            .chunk = parameters.ByteCount("chunk"),
                            .group = static_cast<int>(parameters.Count("group")),
                            .local = parameters.Rate("local")};
  if (traffic.group == 0) traffic.group = context.fabric.nics(ranks[0].host);
  std::vector<OperationId> after;
  const int64_t repeat = parameters.Count("repeat");
  for (int64_t i = 0; i < repeat; ++i) {
    std::string name = absl::StrCat(parameters.Choice("algorithm"), " ", parameters.Choice("op"));
    if (repeat > 1) absl::StrAppend(&name, " ", i + 1);
    WEFT_ASSIGN_OR_RETURN(const OperationId end,
                          AddCollective(context.workload, ranks, traffic, name, after));
    after.assign(1, end);
  }
  return absl::OkStatus();
}

absl::Status Background(const Context& context, const Parameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Endpoint> ranks, Ranks(context, parameters, 2));
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

struct Entry {
  const char* name;
  const char* help;
  absl::Span<const Parameter> parameters;
  absl::Status (*add)(const Context&, const Parameters&);
};

constexpr Entry kEntries[] = {
    {"permutation", "every endpoint sends to the next of a random cycle", kPermutation,
     Permutation},
    {"incast", "many endpoints send to one", kIncast, Incast},
    {"all_to_all", "every endpoint sends to every other", kAllToAll, AllToAll},
    {"collective", "one collective by a textbook algorithm", kCollective, Collective},
    {"background", "transfers between random endpoints, at random times", kBackground, Background},
    {"step", "a training step of a job with tensor, pipeline, data, context, expert parallelism",
     kStep, Step},
};

absl::Status Add(const Context& context, absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) {
    names.emplace_back(entry.name);
    if (parts.first != entry.name) continue;
    const absl::StatusOr<Parameters> parameters = Parameters::Parse(parts.second, entry.parameters);
    const absl::Status status =
        parameters.ok() ? entry.add(context, *parameters) : parameters.status();
    return status.ok() ? status : Annotate(status, absl::StrCat("workload ", entry.name));
  }
  const std::string name(parts.first.substr(0, 60));
  const std::string nearest = NearestName(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("no workload \"", name, "\"",
                   nearest.empty() ? "" : absl::StrCat(" (nearest: ", nearest, ")"),
                   "; there are: ", absl::StrJoin(names, ", ")));
}

}  // namespace

absl::StatusOr<Workload> MakeWorkload(absl::string_view text, const Fabric& fabric, uint64_t seed) {
  Workload workload;
  uint64_t part_seed = seed;  // another one for each, so that two alike do not draw alike
  for (absl::string_view part : absl::StrSplit(text, '+')) {
    WEFT_RETURN_IF_ERROR(Add({workload, fabric, part_seed}, part));
    part_seed = SplitMix64(part_seed);
  }
  return workload;
}

std::string WorkloadHelp() {
  std::string help;
  for (const Entry& entry : kEntries) {
    absl::StrAppend(&help, entry.name, ": ", entry.help, "\n",
                    ParametersHelp(entry.parameters, "    "));
  }
  return help;
}

}  // namespace weft::topology
