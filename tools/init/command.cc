#include "tools/init/command.h"

#include <unistd.h>

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/command_line.h"
#include "tools/init/ops.h"
#include "tools/init/report.h"

namespace weft::init {
namespace {

class Progress {
 public:
  explicit Progress(int ranks) : ranks_(ranks), on_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  void operator()(int64_t done) {
    if (!on_) return;
    double seconds = absl::ToDoubleSeconds(clock_.Now() - begin_);
    std::string left =
        done > 0 && seconds > 0.5
            ? absl::StrCat(", about ",
                           static_cast<int>(seconds * static_cast<double>(ranks_ - done) /
                                            static_cast<double>(done)) +
                               1,
                           " s left")
            : "";
    std::fprintf(stderr, "\r\033[K%d ranks: %d through%s", ranks_, static_cast<int>(done),
                 left.c_str());
    shown_ = true;
  }

 private:
  const int ranks_;
  const bool on_;
  bool shown_ = false;
  SystemClock clock_;
  absl::Time begin_ = clock_.Now();
};

absl::StatusOr<nlohmann::ordered_json> RunTo(const Run& run, bool alone) {
  if (!alone) return run();
  const int output = dup(STDOUT_FILENO);
  if (output < 0) return ErrnoStatus(errno, "keep standard output");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  absl::StatusOr<nlohmann::ordered_json> json = run();
  std::fflush(stdout);
  dup2(output, STDOUT_FILENO);
  close(output);
  return json;
}

}  // namespace

void AddDuration(CLI::App& command, const std::string& name, absl::Duration* value,
                 const std::string& help) {
  command
      .add_option_function<std::string>(
          name,
          [name, value](const std::string& text) {
            if (!ParseFinite(text, value) || *value == absl::ZeroDuration()) {
              throw CLI::ValidationError(absl::StrCat(name, " ", text, " is no duration above 0"));
            }
          },
          help)
      ->default_str(absl::FormatDuration(*value));
}

void SetUpProgram(CLI::App& app, const std::string& footer, Options& options, std::string& json) {
  app.footer(footer);
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);
  app.fallthrough();
  AddDuration(app, "--timeout", &options.timeout, "Bound on each phase: 500ms, 60s, 5m");
  app.add_option("--json", json,
                 "File for the result as one JSON object; -: standard output, alone");
}

void AddLayout(CLI::App& command, Options& options) {
  command
      .add_option("--ranks", options.ranks,
                  "Ranks, which must be as many as the layout has; 0: those of the layout")
      ->check(CLI::Range(0, 1 << 20));
  command
      .add_option("--hosts", options.hosts,
                  "Hosts, of as many ranks each; 0: one for 8 ranks or a few more")
      ->check(CLI::NonNegativeNumber);
  command.add_option(
      "--layout", options.layout,
      "Axes with their sizes, tp8,pp8,dp16 or tp=8,pp=8,dp=16; the first varies fastest; each "
      "rank has a group along each");
}

void AddPhases(CLI::App& command, Options& options) {
  command.add_flag("--relay", options.relay, "A relay a host, between its ranks and the store");
  command
      .add_option(
          "--fan-out", options.fan_out,
          "With --relay: hosts below each relay of the second level, between the hosts' relays and "
          "the root; 0: there is no second level")
      ->check(CLI::Range(0, 1 << 20));
  command
      .add_option_function<std::string>(
          "--records",
          [&options](const std::string& which) { options.all_records = which == "all"; },
          "Records that every rank gets: those that it needs (wanted), or those of all")
      ->default_str(options.all_records ? "all" : "wanted")
      ->check(CLI::IsMember({"wanted", "all"}));
  command
      .add_option("--connect-ranks", options.connect_ranks,
                  "Open all connections of this many ranks, on evenly spread hosts; -1: 1024")
      ->check(CLI::Range(-1, 1 << 20));
  command
      .add_option("--workers", options.workers,
                  "Client processes, at least; 0: two, or as many as descriptors demand")
      ->check(CLI::Range(0, 64));
  command.add_option("--window", options.window, "Connections that a client process opens at once")
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--sources", options.sources,
                  "Loopback addresses (127.0.0.2 and on) that clients connect from")
      ->check(CLI::Range(1, 200));
}

void AddOperations(CLI::App& command, Options& options) {
  command.add_option("--connections", options.op_connections, "Numbers of connections")
      ->delimiter(',')
      ->check(CLI::Range(1, 16384));
  command.add_option("--depths", options.op_depths, "Requests under way on each connection")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  AddDuration(command, "--op-time", &options.op_time, "How long each combination is measured");
}

absl::StatusOr<Measurement> MeasureWithProgress(Options options) {
  WEFT_RETURN_IF_ERROR(Resolve(options));
  Progress progress(options.ranks);
  return Measure(options, [&](int64_t done) { progress(done); });
}

absl::StatusOr<nlohmann::ordered_json> RunPhases(const Options& given, bool model) {
  Options options = given;
  WEFT_RETURN_IF_ERROR(Resolve(options));
  std::vector<Measurement> runs;
  if (model) {
    for (int factor : {8, 4, 2}) {
      if (options.mesh.axes().back().size % factor != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--model measures 1/8, 1/4 and 1/2 of the ranks too: the last axis of --layout ",
            options.layout, " must be a multiple of 8"));
      }
      WEFT_ASSIGN_OR_RETURN(Measurement run, MeasureWithProgress(Shrink(options, factor)));
      runs.push_back(run);
    }
  }
  WEFT_ASSIGN_OR_RETURN(Measurement run, MeasureWithProgress(options));
  runs.push_back(run);
  PrintTable(options, run);
  nlohmann::ordered_json json = ToJson(options, run);
  if (model) json["model"] = PrintModel(runs);
  return json;
}

absl::StatusOr<nlohmann::ordered_json> RunOperations(const Options& options) {
  const bool shows = isatty(STDERR_FILENO) != 0;
  auto ops = MeasureOps(options, [&](const std::string& what) {
    if (shows) absl::FPrintF(stderr, "\r\033[K%s", what);
  });
  if (shows) absl::FPrintF(stderr, "\r\033[K");
  WEFT_RETURN_IF_ERROR(ops.status());
  return PrintOps(options, *ops);
}

int RunAndWrite(const std::string& program, const Run& run, const std::string& json,
                int unavailable) {
  absl::Status status = CheckOutput(json);
  if (status.ok()) {
    const absl::StatusOr<nlohmann::ordered_json> result = RunTo(run, json == "-");
    status = result.status();
    if (status.ok() && !json.empty()) status = WriteOutput(json, JsonText(*result, 2) + "\n");
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", program.c_str(), std::string(status.message()).c_str());
  if (absl::IsInvalidArgument(status)) return kWrongUsage;
  return absl::IsUnavailable(status) ? unavailable : 1;
}

}  // namespace weft::init
