// weft-doctor: what is wrong with this host, or between the hosts of a job, for RDMA and NCCL.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/status.h"
#include "base/write_file.h"
#include "net/cc/registry.h"
#include "net/roce/tuning.h"
#include "tools/command_line.h"
#include "tools/doctor/examination.h"
#include "tools/doctor/report.h"
#include "tools/job/job.h"
#include "topology/plan/connection_plan.h"

namespace weft::doctor {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFooter = R"(Examples:
  weft-doctor                                     this host
  weft-doctor --watch 10s --json host.json        and which counters grow meanwhile
  weft-run -n 8 -- weft-doctor pairs              every host of a job with every other, both ways
  weft-doctor pairs --ranks 3 --set transport=tcp the same, tried on this host alone
  weft-doctor nics                                what the NICs' congestion control is set to
  weft-doctor nics --priority 3 --dcqcn tuned.txt what a tuned fabric wants instead (weft-cc tune
                                                  --out tuned.txt); with --apply: set it
  weft-doctor nics --plan plan                    what the plan of a job wants, beside what is set

Exit status: 0; 1 when there is an error (with --strict: a warning), or something could not be done;
2 for wrong usage.)";

struct Options {
  std::string root, json, watch;
  bool strict = false;
  // Options of `nics`:
  int priority = -1, traffic_class = -1;
  std::string dcqcn, plan, adaptive_retransmission;
  bool apply = false;
  // Options of `pairs`:
  int ranks = 0;
  PairOptions pairs;
  Settings settings{LibrarySettings()};
};

// The report and the exit status.
absl::StatusOr<int> Finish(const Options& options, const std::string& text,
                           const Findings& findings, ordered_json report) {
  AddFindings(findings, report);
  if (options.json != "-") std::fputs((text + "\n" + FindingsText(findings)).c_str(), stdout);
  if (!options.json.empty()) {
    WEFT_RETURN_IF_ERROR(WriteOutput(options.json, JsonText(report, 2) + "\n"));
  }
  return ExitStatus(findings, options.strict);
}

absl::StatusOr<int> RunHost(const Options& options, absl::Duration watch) {
  WEFT_RETURN_IF_ERROR(CheckOutput(options.json));
  if (watch > absl::ZeroDuration() && isatty(STDERR_FILENO) != 0) {
    absl::FPrintF(stderr, "watching the counters for %s\n", absl::FormatDuration(watch));
  }
  WEFT_ASSIGN_OR_RETURN(const HostExamination host, ExamineHost(options.root, watch));
  return Finish(options, NodeText(host.node), host.findings, NodeJson(host.node));
}

// Every rank judges, so that all exit alike; rank 0 speaks.
absl::StatusOr<int> RunJob(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(const JobExamination job,
                        ExamineJob(options.settings, options.root, options.pairs));
  if (job.rank != 0) return ExitStatus(job.findings, options.strict);
  ordered_json report = {{"ranks", job.hosts.size()}, {"hosts", job.hosts}};
  report["pairs"] = PairsJson(job.directions);
  return Finish(options, PairsText(job.directions, job.hosts), job.findings, std::move(report));
}

// A controller's words, or the file of weft-cc that holds them.
absl::StatusOr<net::DcqcnParameters> ReadDcqcn(const std::string& words) {
  std::error_code error;
  const bool is_file = std::filesystem::exists(words, error);
  const absl::StatusOr<net::ControllerSpec> spec =
      is_file ? net::ReadController("@" + words) : net::ParseController(words);
  if (!spec.ok()) {
    return Annotate(spec.status(),
                    is_file ? "--dcqcn" : absl::StrCat("--dcqcn ", words, ", which is no file"));
  }
  if (spec->kind != net::ControllerKind::kDcqcn) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcqcn ", words, ": NICs run dcqcn, not ", net::ToString(spec->kind)));
  }
  return net::DcqcnOf(*spec);
}

// Parameters of the controller that weft-cc tune --plan has written; none where NICs do not run
// it, which the user is told.
absl::StatusOr<std::optional<net::DcqcnParameters>> PlannedDcqcn(const std::string& plan) {
  const std::string file =
      (std::filesystem::path(plan) / std::string(topology::kPlanControllerFile)).string();
  WEFT_ASSIGN_OR_RETURN(const net::ControllerSpec spec, net::ReadController("@" + file));
  if (spec.kind == net::ControllerKind::kDcqcn) return std::optional(net::DcqcnOf(spec));
  absl::FPrintF(
      stderr,
      "weft-doctor: %s plans %s, which multipath runs, and nothing for NICs: they run dcqcn "
      "(weft-cc tune --plan %s --cc dcqcn)\n",
      file, net::ToString(spec), plan);
  return std::optional<net::DcqcnParameters>();
}

// Without a wish what cannot be read is left out.
absl::Status ReadFirmwareOf(std::vector<net::RdmaDevice>& devices, const std::string& root,
                            bool wanted) {
  if (!root.empty()) {
    if (!wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--adaptive-retransmission with --root: firmware is asked on the host itself");
  }
  absl::Status read = net::ReadFirmware(devices);
  if (!wanted) return absl::OkStatus();
  const bool any = std::any_of(devices.begin(), devices.end(),
                               [](const net::RdmaDevice& device) { return device.nvidia; });
  if (!any) return absl::NotFoundError("--adaptive-retransmission: this host has no ConnectX NIC");
  return read;
}

absl::StatusOr<int> TuneNics(const Options& options) {
  WEFT_RETURN_IF_ERROR(CheckOutput(options.json));  // before --apply changes anything
  WEFT_RETURN_IF_ERROR(CheckRoot(options.root));
  net::NicWishes wishes;
  if (options.priority >= 0) wishes.priority = options.priority;
  if (options.traffic_class >= 0) wishes.traffic_class = options.traffic_class;
  if (!options.dcqcn.empty()) {
    WEFT_ASSIGN_OR_RETURN(wishes.dcqcn, ReadDcqcn(options.dcqcn));
  } else if (!options.plan.empty()) {
    WEFT_ASSIGN_OR_RETURN(wishes.dcqcn, PlannedDcqcn(options.plan));
  }
  WEFT_ASSIGN_OR_RETURN(auto devices, net::ReadRdmaDevices(options.root));
  const bool wants_firmware = !options.adaptive_retransmission.empty();
  if (wants_firmware) wishes.adaptive_retransmission = options.adaptive_retransmission == "on";
  WEFT_RETURN_IF_ERROR(ReadFirmwareOf(devices, options.root, wants_firmware));
  const std::vector<net::NicChange> changes = net::PlanNics(devices, wishes);
  WEFT_RETURN_IF_ERROR(net::CheckWishes(changes, wishes));
  const auto differ = std::count_if(changes.begin(), changes.end(),
                                    [](const net::NicChange& change) { return change.differs(); });
  if (options.apply) WEFT_RETURN_IF_ERROR(net::ApplyNics(changes));
  if (options.json != "-") {
    std::fputs(NicsText(changes).c_str(), stdout);
    if (differ > 0) {
      absl::PrintF("\n%d settings %s\n", differ,
                   options.apply ? "changed" : "would change; --apply sets them");
    }
  }
  if (options.json.empty()) return EXIT_SUCCESS;
  ordered_json report = {
      {"settings", NicsJson(changes)}, {"differ", differ}, {"applied", options.apply}};
  WEFT_RETURN_IF_ERROR(WriteOutput(options.json, JsonText(report, 2) + "\n"));
  return EXIT_SUCCESS;
}

int Report(const absl::StatusOr<int>& status) {
  if (status.ok()) return *status;
  absl::FPrintF(stderr, "weft-doctor: %s\n", status.status().message());
  return absl::IsInvalidArgument(status.status()) ? kWrongUsage : EXIT_FAILURE;
}

absl::StatusOr<absl::Duration> ParseDuration(const char* option, const std::string& text) {
  absl::Duration duration;
  if (!ParseFinite(text, &duration)) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " '", text, "' is no time, as in 500ms or 10s"));
  }
  return duration;
}

absl::StatusOr<int> RunPairs(Options& options, const std::string& size, const std::string& timeout,
                             const std::vector<std::string>& settings, int argc, char** argv) {
  WEFT_RETURN_IF_ERROR(TakeBytes("--size", size, options.pairs.size));
  WEFT_ASSIGN_OR_RETURN(options.pairs.timeout, ParseDuration("--timeout", timeout));
  if (options.pairs.size < Bytes(8) || options.pairs.size > GiB(4)) {
    return absl::InvalidArgumentError(absl::StrCat("--size ", size, " is not from 8 to 4GiB"));
  }
  WEFT_RETURN_IF_ERROR(options.settings.SetFromEnvironment(/*strict=*/false));
  for (const std::string& pair : settings) {
    WEFT_RETURN_IF_ERROR(options.settings.SetPair(pair, "--set"));
  }
  if (options.ranks == 0) return RunJob(options);
  WEFT_RETURN_IF_ERROR(CheckOutput(options.json));
  return job::BecomeLauncher(options.ranks, argc, argv);
}

int Main(int argc, char** argv) {
  CLI::App app("What is wrong with this host, or between the hosts of a job, for RDMA and NCCL");
  Options options;
  std::string size = "16MiB", timeout = "10s";
  std::vector<std::string> settings;
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.fallthrough();
  app.add_option("--json", options.json, "Write everything to this file; -: print it alone");
  const auto* strict =
      app.add_flag("--strict", options.strict,
                   "Exit with 1 when there is a warning (the command nics ignores this)");
  app.add_option("--root", options.root,
                 "Read /sys, /proc and /dev below this folder: a copy of another host's");
  options.watch = "0s";
  const auto* watches = app.add_option(
      "--watch", options.watch, "Watch the counters of this host alone for this long: 10s, 1m");
  auto* pairs = app.add_subcommand("pairs", "As the ranks of a job: every pair, both ways");
  pairs->option_defaults()->always_capture_default();
  pairs
      ->add_option("--ranks", options.ranks,
                   "Start this many local ranks with weft-run; 0: be one of the job that the "
                   "environment names")
      ->check(CLI::Range(0, 256));
  pairs->add_option("--size", size, "Bytes of a message of the bandwidth test");
  pairs->add_option("--repeats", options.pairs.repeats, "Messages of the bandwidth test, each way")
      ->check(CLI::Range(1, 100000));
  pairs->add_option("--timeout", timeout, "Bound on one direction of a pair");
  pairs->add_option("--set", settings, "A setting of the library: transport=tcp");
  auto* nics = app.add_subcommand("nics", "What the NICs' congestion control is set to, and wants");
  nics->add_option("--priority", options.priority, "DCQCN on for this priority (802.1p)")
      ->check(CLI::Range(0, 7));
  nics->add_option("--traffic-class", options.traffic_class, "DSCP << 2 and the ECN bits: 106")
      ->check(CLI::Range(0, 255));
  nics->add_option("--dcqcn", options.dcqcn,
                   "Parameters for this fabric: dcqcn:g=0.01,increase_us=30, or a file of weft-cc");
  nics->add_option(
          "--plan", options.plan,
          "A plan directory, whose controller.txt (weft-cc tune --plan) has the parameters")
      ->excludes("--dcqcn");
  nics->add_option("--adaptive-retransmission", options.adaptive_retransmission,
                   "Adaptive retransmission in the firmware of ConnectX NICs: on, off")
      ->check(CLI::IsMember({"on", "off"}));
  nics->add_flag("--apply", options.apply, "Set what differs; all of it or nothing");
  app.require_subcommand(0, 1);
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&] {
    const bool is_lost = watches->count() > 0 && (pairs->parsed() || nics->parsed());
    if (is_lost)
      return absl::InvalidArgumentError("--watch is for this host, without a subcommand");
    if (strict->count() == 0 || !nics->parsed()) return absl::OkStatus();
    return absl::InvalidArgumentError("--strict is for findings, and nics has none");
  });
  if (status_of_usage != kGoOn) return status_of_usage;
  InitLog("weft-doctor", EnvironmentLogLevel(LogLevel::kWarn));
  if (pairs->parsed()) return Report(RunPairs(options, size, timeout, settings, argc, argv));
  if (nics->parsed()) return Report(TuneNics(options));
  absl::StatusOr<absl::Duration> watch = ParseDuration("--watch", options.watch);
  return Report(watch.ok() ? RunHost(options, *watch) : watch.status());
}

}  // namespace
}  // namespace weft::doctor

int main(int argc, char** argv) { return weft::doctor::Main(argc, argv); }
