#include "tools/bw/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "collectives/planner/forced.h"
#include "tools/command_line.h"
#include "topology/job/mesh_text.h"

namespace weft::bw {
namespace {

constexpr const char* kFooter = R"(Examples:
  weft-bw --ranks 4 -b 1K -e 64M -f 4            all-reduce of four local processes
  weft-bw --ranks 2 --op all --json              every operation, for machines
  weft-bw --ranks 4 --op all_to_all --transport tcp -d bfloat16
  weft-bw --ranks 8 --groups tp=2,pp=2,dp=2      the all-reduces of a 3D job's groups, all at once
  weft-bw --ranks 4 -b 64K --compare             every algorithm, and whether the choice is right
  weft-bw --ranks 2 --calibrate                  what the choice of algorithms goes by
  weft-bw link --help                            one transport without collectives, as perftest does

Columns: time in microseconds, the median of --repeats; algbw = size / time and busbw = algbw times
nccl-tests' factor of the operation, in GB/s (10^9 bytes); #wrong counts wrong elements over all ranks;
algorithm is the one that ran. With --groups size is what a group reduces (gathers, ...), and busbw what
the calls of all of a rank's groups give together.
Under torchrun, whose own store needs PyTorch, rank 0 serves ours at MASTER_PORT + 1.
Exit status: 0 when everything ran and no element was wrong, 1 otherwise, 2 for wrong usage.)";

// The raw words of the command line.
struct Words {
  std::string operation = "all_reduce", type = "float", reduction = "sum", transport, algorithm;
  std::string size_min = "32M", size_max, step = "1M", repeat_time = "0s";
  std::vector<std::string> settings;
  int average = 1, check = 1;
  std::string place = "both", buffers = "shared", groups;
};

template <typename T, typename Parse>
absl::StatusOr<std::vector<T>> ListOf(const std::string& text, int count, Parse parse) {
  std::vector<T> list;
  if (text == "all") {
    for (int i = 0; i < count; ++i) list.push_back(static_cast<T>(i));
    return list;
  }
  WEFT_ASSIGN_OR_RETURN(T one, parse(text));
  list.push_back(one);
  return list;
}

absl::StatusOr<Operation> ParseOperation(const std::string& name) {
  if (const OperationInfo* info = FindOperation(name)) return info->operation;
  std::vector<std::string> names;
  for (const OperationInfo& info : Operations()) names.emplace_back(info.name);
  const std::string nearest = NearestName(name, names);
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no operation '", name, "'; there are all, ", absl::StrJoin(names, ", "),
      nearest.empty() ? "" : absl::StrCat("; nearest: ", nearest)));
}

absl::Status Resolve(const Words& words, Options& options) {
  WEFT_ASSIGN_OR_RETURN(
      options.operations,
      ListOf<Operation>(words.operation, static_cast<int>(Operations().size()), ParseOperation));
  WEFT_ASSIGN_OR_RETURN(
      options.types, ListOf<collectives::DataType>(
                         words.type, collectives::kDataTypeCount,
                         [](const std::string& text) { return collectives::ParseDataType(text); }));
  WEFT_ASSIGN_OR_RETURN(options.reductions,
                        ListOf<collectives::ReduceOp>(words.reduction, collectives::kReduceOpCount,
                                                      [](const std::string& text) {
                                                        return collectives::ParseReduceOp(text);
                                                      }));
  // What some of many do not do is left out; what none does is a mistake.
  const auto does_something = [&](Operation operation) {
    for (collectives::DataType type : options.types) {
      for (collectives::ReduceOp reduction : options.reductions) {
        if (!InfoOf(operation).reduces() || Supports(reduction, type)) return true;
      }
    }
    return false;
  };
  if (std::none_of(options.operations.begin(), options.operations.end(), does_something)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--redop ", words.reduction, " does not go with --datatype ", words.type));
  }
  WEFT_RETURN_IF_ERROR(TakeBytes("--minbytes", words.size_min, options.size_min));
  options.size_max = options.size_min;
  if (!words.size_max.empty()) {
    WEFT_RETURN_IF_ERROR(TakeBytes("--maxbytes", words.size_max, options.size_max));
  }
  WEFT_RETURN_IF_ERROR(TakeBytes("--stepbytes", words.step, options.step));
  if (options.size_max < options.size_min) {
    return absl::InvalidArgumentError(
        absl::StrCat("--maxbytes ", words.size_max, " is below --minbytes ", words.size_min));
  }
  const bool by_bytes = options.factor == 0 || options.factor == 1;  // as nccl-tests has it
  if (!by_bytes && !(options.factor > 1 && std::isfinite(options.factor))) {
    return absl::InvalidArgumentError(absl::StrCat("--stepfactor ", options.factor,
                                                   " must be above 1, or 0 or 1 for --stepbytes"));
  }
  if (options.step <= Bytes(0) && options.factor <= 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stepbytes ", words.step, " must be above 0, or --stepfactor above 1"));
  }
  if (options.Sizes().size() > kSizesMost) {
    const std::string growth = options.factor > 1 ? absl::StrCat("--stepfactor ", options.factor)
                                                  : absl::StrCat("--stepbytes ", words.step);
    return absl::InvalidArgumentError(
        absl::StrCat("from --minbytes ", words.size_min, " to --maxbytes ", words.size_max, " by ",
                     growth, " there are more than ", kSizesMost, " sizes; let them grow faster"));
  }
  WEFT_RETURN_IF_ERROR(TakeDuration("--repeat-time", words.repeat_time, options.repeat_time));
  if (!words.groups.empty()) {
    WEFT_ASSIGN_OR_RETURN(options.groups, topology::ParseMesh(words.groups));
  }
  if (options.compare && options.groups.has_value()) {
    return absl::InvalidArgumentError(
        "--compare measures one group of all ranks; it does not go with --groups");
  }
  if (options.ranks > 0 && options.root >= options.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--root ", options.root, " is not one of ", options.ranks, " ranks"));
  }
  if (options.show_schedule && options.json) {
    return absl::InvalidArgumentError("--show-schedule is for people: it has no --json");
  }
  std::vector<collectives::CollectiveKind> kinds;
  for (Operation operation : options.operations) {
    if (InfoOf(operation).kind.has_value()) kinds.push_back(*InfoOf(operation).kind);
  }
  if (options.compare && kinds.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--compare measures the algorithms of a collective; ", words.operation, " has none"));
  }
  options.average = static_cast<Average>(words.average);
  options.check = words.check != 0;
  options.shared_buffers = words.buffers == "shared";
  options.in_place = words.place != "out";
  options.out_of_place = words.place != "in";
  WEFT_RETURN_IF_ERROR(options.settings.SetFromEnvironment(/*strict=*/false));
  for (const std::string& pair : words.settings) {
    WEFT_RETURN_IF_ERROR(options.settings.SetPair(pair, "--set"));
  }
  if (!words.transport.empty()) {
    WEFT_RETURN_IF_ERROR(options.settings.Set("transport", words.transport, "--transport"));
  }
  if (!words.algorithm.empty()) {
    WEFT_RETURN_IF_ERROR(
        options.settings.Set("collective.algorithm", words.algorithm, "--algorithm"));
  }
  const std::string& forced = options.settings.Text("collective.algorithm");
  const std::string& rules = options.settings.Text("collective.algorithm_by_kind");
  if (options.compare && (forced != "auto" || !rules.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--compare tells whether the planner's choice is right; ",
                     forced != "auto" ? absl::StrCat("collective.algorithm=", forced)
                                      : absl::StrCat("collective.algorithm_by_kind=", rules),
                     " leaves it none: without one of the two"));
  }
  return collectives::planner::CheckAlgorithm(options.settings, kinds);
}

void Declare(CLI::App& app, Words& words, Options& options) {
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.add_option("--op", words.operation,
                 "all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, "
                 "all_to_all, all_gather_v, all_to_all_v (with counts per rank, equal ones), "
                 "sendrecv, barrier or all");
  app.add_option("--ranks", options.ranks,
                 "Start this many local ranks with weft-run, which lies beside this program, each "
                 "bound to its share of the cores (for others: weft-run -n N -- weft-bw); 0: be "
                 "one rank of the job that the environment names")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-b,--minbytes", words.size_min, "Smallest size (bytes, or 64K, 32M, 1G)");
  app.add_option("-e,--maxbytes", words.size_max, "Largest size; empty: the smallest");
  app.add_option("-i,--stepbytes", words.step, "Sizes grow by this much");
  app.add_option("-f,--stepfactor", options.factor, "Sizes grow by this factor; 0: by --stepbytes");
  app.add_option("-n,--iters", options.iterations, "Timed operations of a repeat")
      ->check(CLI::PositiveNumber);
  app.add_option("--repeat-time", words.repeat_time,
                 "Choose --iters for each size so that a repeat takes about this long, from 2 to "
                 "2000; 0s: as given");
  app.add_option("-w,--warmup_iters", options.warmup, "Operations before the first repeat")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--repeats", options.repeats, "Repeats: the table shows their median")
      ->check(CLI::PositiveNumber);
  app.add_option("-m,--in-flight", options.in_flight,
                 "Operations that are under way at once; 1: one after the other")
      ->check(CLI::PositiveNumber);
  app.add_option("-c,--check", words.check, "Check the result (0 or 1)")->check(CLI::Range(0, 1));
  app.add_option("-o,--redop", words.reduction, "sum, avg, min, max, prod, band, bor, bxor or all");
  app.add_option("-d,--datatype", words.type,
                 "bool, uint8, int8, int16, int32, int64, half, bfloat16, float, double, "
                 "complex64, complex128 or all");
  app.add_option("-r,--root", options.root, "Root rank")->check(CLI::NonNegativeNumber);
  app.add_option("-a,--average", words.average,
                 "Time of which ranks: 0 rank 0, 1 their mean, 2 the smallest, 3 the largest")
      ->check(CLI::Range(0, 3));
  app.add_option("--place", words.place, "out of place, in place, or both")
      ->check(CLI::IsMember({"out", "in", "both"}));
  app.add_option("--buffers", words.buffers,
                 "shared: peers on this host read them where they lie; private: they get copies")
      ->check(CLI::IsMember({"shared", "private"}));
  app.add_option("--transport", words.transport,
                 "auto, shm, tcp, ucx, multipath or verbs; empty: as set");
  app.add_option("--algorithm", words.algorithm, "As collective.algorithm; empty: as set");
  app.add_option(
      "--groups", words.groups,
      "A layout (tp=2,pp=2,dp=2): run the operation at once in every group along each "
      "axis, as the groups of a training job do; empty: once, in one group of all ranks");
  app.add_option("--set", words.settings, "A setting, name=value; repeatable (see weft-settings)");
  app.add_flag("-I,--iteration-stats", options.iteration_stats,
               "Add smallest, p50, p99 and largest time of a single operation");
  auto* show =
      app.add_flag("--show-schedule", options.show_schedule,
                   "Print what rank 0 does for the first size of each operation and why, and time "
                   "nothing");
  auto* compare = app.add_flag(
      "--compare", options.compare,
      "Measure every algorithm that could be taken, their repeats in turns; marks the "
      "planner's choice by * and ends with its regret: how much longer it takes than the "
      "fastest");
  auto* calibrate = app.add_flag(
      "--calibrate", options.calibrate,
      "Measure what communication costs here, in seconds, and keep it in the file that "
      "collective.costs names (empty: one for this machine in ~/.cache); all jobs choose "
      "their algorithms by it from then on");
  app.add_flag("--force", options.force,
               "With --calibrate: keep the numbers although other programs ran at the same time")
      ->needs(calibrate);
  calibrate->excludes(compare)->excludes(show);
  app.add_flag("--json", options.json, "Print one JSON object and no table");
}

}  // namespace

std::vector<Bytes> Options::Sizes() const {
  std::vector<Bytes> sizes;
  for (Bytes size = size_min; size <= size_max && sizes.size() <= kSizesMost;) {
    sizes.push_back(size);
    if (factor > 1) {
      const double next = std::ceil(static_cast<double>(size.count()) * factor);
      if (next > static_cast<double>(size_max.count())) break;
      size = std::max(Bytes(static_cast<int64_t>(next)), size + Bytes(1));
    } else {
      if (size_max - size < step) break;
      size = size + step;
    }
  }
  return sizes;
}

Parsed ParseCommandLine(int argc, char** argv) {
  Parsed parsed;
  Words words;
  CLI::App app("weft-bw: bandwidth and latency of collectives and of point to point", "weft-bw");
  Declare(app, words, parsed.options);
  parsed.exit_status =
      ReadCommandLine(app, argc, argv, [&] { return Resolve(words, parsed.options); });
  return parsed;
}

}  // namespace weft::bw
