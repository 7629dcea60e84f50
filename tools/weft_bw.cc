// weft-bw: bandwidth and latency of collectives and of point to point, with nccl-tests' columns.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/open_files.h"
#include "base/status.h"
#include "collectives/communicator.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/planner.h"
#include "tools/bw/calibrate.h"
#include "tools/bw/comparison.h"
#include "tools/bw/link/link_command.h"
#include "tools/bw/measure.h"
#include "tools/bw/operation.h"
#include "tools/bw/options.h"
#include "tools/bw/report.h"
#include "tools/job/job.h"

namespace weft::bw {
namespace {

using collectives::DataType;
using collectives::ReduceOp;
using collectives::planner::Calibration;

// Every combination that makes a difference and that the library knows.
std::vector<Case> CasesOf(const OperationInfo& info, const Options& options, int ranks) {
  std::vector<Case> cases;
  std::vector<DataType> types = options.types;
  std::vector<ReduceOp> reductions = options.reductions;
  std::vector<Bytes> sizes = options.Sizes();
  if (!info.reduces()) reductions = {ReduceOp::kSum};
  if (info.operation == Operation::kBarrier) {
    types = {DataType::kUint8};
    sizes = {Bytes(0)};
  }
  for (DataType type : types) {
    for (ReduceOp reduction : reductions) {
      if (info.reduces() && !Supports(reduction, type)) continue;
      for (Bytes size : sizes) {
        Case one;
        one.operation = info.operation;
        one.type = type;
        one.op = reduction;
        one.root = options.root;
        one.count = CountFor(info.operation, type, size, ranks);
        cases.push_back(one);
      }
    }
  }
  return cases;
}

absl::Status ShowSchedule(const Case& what, const collectives::Endpoint& endpoint) {
  const OperationInfo& info = InfoOf(what.operation);
  if (!info.kind.has_value()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const auto plan, ChoiceFor(what, endpoint));
  const collectives::CollectiveSpec spec = SpecFor(what, endpoint);
  absl::PrintF("# %s of %s on %d ranks: %s; rank 0:\n%s", info.name,
               ToString(SizeOf(what, spec.size)), spec.size, plan.why,
               ToText(plan.algorithm->build(collectives::planner::SpecOf(plan, spec))));
  return absl::OkStatus();
}

// The groups that a rank runs each case in, with the memory of each.
class Groups {
 public:
  static absl::StatusOr<Groups> Create(const Options& options, job::Joined& job) {
    const int rank = job.environment.rank.value();
    Groups out;
    if (!options.groups.has_value()) {
      WEFT_RETURN_IF_ERROR(out.Add(options, job, job.world.get()));
      return out;
    }
    for (const topology::MeshGroup& group : options.groups->GroupsOf(Rank(rank))) {
      const int size = static_cast<int>(group.members.size());
      if (size == 1) continue;
      if (options.root >= size) {
        return absl::InvalidArgumentError(absl::StrCat("--root ", options.root,
                                                       " is not one of the ", size, " ranks along ",
                                                       ToString(group.axes)));
      }
      WEFT_ASSIGN_OR_RETURN(
          auto communicator,
          collectives::Communicator::Create(
              job.endpoint, absl::StrCat(Brief(group.axes), group.index), group.members));
      out.communicators_.push_back(std::move(communicator));
      WEFT_RETURN_IF_ERROR(out.Add(options, job, out.communicators_.back().get()));
    }
    if (out.runs_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--groups ", options.groups->ToText(),
                                                     " has no group of more than one rank"));
    }
    return out;
  }

  const std::vector<GroupRun>& runs() const { return runs_; }

 private:
  absl::Status Add(const Options& options, job::Joined& job,
                   collectives::Communicator* communicator) {
    WEFT_ASSIGN_OR_RETURN(Buffers buffers,
                          Buffers::Allocate(options.size_max, job.environment.world_size,
                                            options.shared_buffers ? job.endpoint.get() : nullptr));
    buffers_.push_back(std::make_unique<Buffers>(std::move(buffers)));
    runs_.push_back({communicator, buffers_.back().get()});
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<collectives::Communicator>> communicators_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
  std::vector<GroupRun> runs_;
};

// Out of place and in place, as asked for; by way.
absl::StatusOr<std::array<std::vector<Result>, 2>> MeasurePlaces(
    Case what, const Options& options, absl::Span<const std::vector<GroupRun>> ways,
    job::Joined& job, Control& control) {
  std::array<std::vector<Result>, 2> results;
  for (bool in_place : {false, true}) {
    bool wanted = in_place ? options.in_place : options.out_of_place;
    // What has no in-place form is measured even where only that was asked for.
    if (!in_place && !InfoOf(what.operation).in_place) wanted = true;
    results[in_place ? 1 : 0].resize(ways.size());
    if (!wanted) continue;
    what.in_place = in_place;
    WEFT_ASSIGN_OR_RETURN(results[in_place ? 1 : 0],
                          Measure(what, options, ways, *job.world, control));
  }
  return results;
}

// `comparison`: null for the planner's choice alone.
absl::Status RunCase(const Case& what, const Options& options, const Groups& groups,
                     const Comparison* comparison, job::Joined& job, Control& control,
                     Report& report) {
  std::vector<std::vector<GroupRun>> ways{groups.runs()};
  std::vector<Comparison::Candidate> candidates;
  if (comparison != nullptr) {
    WEFT_ASSIGN_OR_RETURN(candidates, comparison->For(what));
  }
  if (!candidates.empty()) ways.clear();
  size_t chosen = 0;
  for (const Comparison::Candidate& candidate : candidates) {
    if (candidate.chosen) chosen = ways.size();
    ways.push_back({{candidate.communicator, groups.runs()[0].buffers}});
  }
  auto results = MeasurePlaces(what, options, ways, job, control);
  if (!results.ok()) {
    return Annotate(results.status(), absl::StrCat(InfoOf(what.operation).name, " of ",
                                                   ToString(SizeOf(what, control.ranks()))));
  }
  if (control.rank() != 0) return absl::OkStatus();
  const auto& [out_of_place, in_place] = *results;
  for (size_t way = 0; way < ways.size(); ++way) {
    report.Row(what, out_of_place[way], in_place[way], !candidates.empty() && way == chosen);
  }
  if (candidates.empty()) return absl::OkStatus();
  for (const std::vector<Result>& place : *results) report.AddRegret(what, place, chosen);
  return absl::OkStatus();
}

// What the file that --calibrate writes has of an earlier calibration; the defaults where there is
// no file, or it is not whole.
Calibration CalibrationBefore(const Settings& settings) {
  absl::StatusOr<Calibration> before = collectives::planner::LoadCalibration(settings);
  return before.ok() ? *std::move(before) : collectives::planner::DefaultCalibration();
}

absl::StatusOr<int> RunCalibration(Options options) {
  std::string file = options.settings.Text("collective.costs");
  if (file.empty()) file = collectives::planner::CalibrationFile();
  if (file.empty()) {
    return absl::FailedPreconditionError(
        "--calibrate: there is no home to keep the costs in; name a file by collective.costs");
  }
  const Calibration before = CalibrationBefore(options.settings);
  // The endpoints that measure need no file, and this one need not be there yet.
  WEFT_RETURN_IF_ERROR(options.settings.Set("collective.costs", "", "--calibrate"));
  WEFT_ASSIGN_OR_RETURN(job::Joined job, job::Join(options.settings, "weft-bw"));
  const int rank = job.environment.rank.value();
  Control control(*job.store, rank, job.environment.world_size);
  // Before the measurement, which would be lost; the others end with rank 0, whose file it is.
  const absl::Status writable =
      rank == 0 ? collectives::planner::CheckWritable(file) : absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const auto ready, control.Exchange({writable.ok() ? 1.0 : 0.0}));
  if (!writable.ok()) return Annotate(writable, "--calibrate");
  if (ready[0][0] == 0) return EXIT_FAILURE;
  WEFT_ASSIGN_OR_RETURN(const Calibrated measured, Calibrate(job, control, before, options.force));
  if (rank != 0) return EXIT_SUCCESS;
  const std::string trouble = measured.Trouble();
  const bool keeps = measured.measured && (trouble.empty() || options.force);
  if (options.json) {
    nlohmann::ordered_json costs = nlohmann::ordered_json::object(), spread = costs, cache_kib;
    for (const auto& [name, value] : Numbers(measured.costs)) {
      if (measured.measured) (name == "cache_kib" ? cache_kib : costs[name]) = value;
    }
    for (const auto& [name, factor] : measured.spread) spread[name] = factor;
    const nlohmann::ordered_json result = {{"file", file},
                                           {"written", keeps},
                                           {"trouble", trouble},
                                           {"busy_cores", measured.busy_cores},
                                           {"load_average", measured.load},
                                           {"cache_kib", cache_kib},
                                           {"costs_ns", costs},
                                           {"spread", spread}};
    absl::PrintF("%s\n", JsonText(result, 2));
  } else if (measured.measured) {
    absl::PrintF("%s", ToText(measured.costs));
  }
  std::fflush(stdout);
  if (!keeps) {
    return absl::FailedPreconditionError(
        absl::StrCat("--calibrate: ", file, " was not written: ", trouble,
                     "; all jobs would choose their algorithms by that. Measure while nothing else "
                     "runs, or keep it by --force"));
  }
  WEFT_RETURN_IF_ERROR(collectives::planner::SaveCalibration(measured.costs, file));
  if (!trouble.empty()) absl::FPrintF(stderr, "weft-bw: warning: %s\n", trouble);
  if (!options.json) absl::PrintF("# wrote %s\n", file);
  return EXIT_SUCCESS;
}

absl::StatusOr<int> RunRank(const Options& options) {
  if (options.calibrate) return RunCalibration(options);
  Settings settings = options.settings;
  if (options.compare) WEFT_RETURN_IF_ERROR(Comparison::AddRules(settings));
  if (options.groups.has_value() && settings.IsDefault("collective.axes_at_once")) {
    WEFT_RETURN_IF_ERROR(settings.Set("collective.axes_at_once", "all", "--groups"));
  }
  WEFT_ASSIGN_OR_RETURN(job::Joined job, job::Join(settings, "weft-bw", options.groups));
  const int rank = job.environment.rank.value(), ranks = job.environment.world_size;
  if (options.root >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--root ", options.root, " is not one of ", ranks, " ranks"));
  }
  Control control(*job.store, rank, ranks);
  Report report(options, ranks);
  WEFT_ASSIGN_OR_RETURN(const Groups groups, Groups::Create(options, job));
  std::optional<Comparison> comparison;
  if (options.compare) {
    WEFT_ASSIGN_OR_RETURN(comparison, Comparison::Create(job));
  }
  if (rank == 0 && !options.show_schedule) report.Begin(job.report);
  for (Operation operation : options.operations) {
    const OperationInfo& info = InfoOf(operation);
    std::vector<Case> cases = CasesOf(info, options, ranks);
    if (options.show_schedule) {
      if (rank == 0 && !cases.empty()) {
        WEFT_RETURN_IF_ERROR(ShowSchedule(cases[0], *job.endpoint));
      }
      continue;
    }
    if (rank == 0) report.BeginOperation(info);
    for (const Case& what : cases) {
      WEFT_RETURN_IF_ERROR(RunCase(what, options, groups, comparison ? &*comparison : nullptr, job,
                                   control, report));
    }
  }
  if (rank == 0 && !options.show_schedule) report.End(job.endpoint->Describe());
  WEFT_ASSIGN_OR_RETURN(auto wrong, control.Exchange({static_cast<double>(report.wrong())}));
  return wrong[0][0] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int Main(int argc, char** argv) {
  RaiseOpenFilesLimit();
  if (argc > 1 && std::strcmp(argv[1], "link") == 0) return link_bw::RunLinkCommand(argc, argv);
  Parsed parsed = ParseCommandLine(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  // Bound: of two ranks that the kernel has on one core, it moves one only after some tenths of a
  // second, for which a small call takes several times as long.
  absl::StatusOr<int> status = parsed.options.ranks > 0
                                   ? absl::StatusOr<int>(job::BecomeLauncher(
                                         parsed.options.ranks, argc, argv, {"--bind", "core"}))
                                   : RunRank(parsed.options);
  if (status.ok()) return *status;
  absl::FPrintF(stderr, "weft-bw: %s\n", status.status().ToString());
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace weft::bw

int main(int argc, char** argv) { return weft::bw::Main(argc, argv); }
