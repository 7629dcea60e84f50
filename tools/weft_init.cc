// weft-init: how long a job of N ranks takes to have all its groups, by phase; with real
// connections of N clients in a few processes against a real store.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "tools/init/measure.h"
#include "tools/init/options.h"
#include "tools/init/report.h"

namespace weft::init {
namespace {

constexpr int kUsage = 2;

constexpr const char* kFooter = R"(Examples:
  weft-init --layout tp8,pp8,dp16                    1,024 ranks, each with its own connection
  weft-init --layout tp8,pp8,dp256 --relay           16,384 ranks behind a relay for each 8
  weft-init --layout tp8,pp8,dp64 --relay --model    several sizes, and what they predict

All clients, relays and the server run on this machine; "all ranks" is from the end of the phase
before, of the last rank, to the end of this one, so that the phases add up to the total. Connections
of the groups are planned here and made when first used. Exit status: 0, 1 for a failed run, 2 for
wrong usage.)";

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

absl::StatusOr<Measurement> MeasureWithProgress(Options options) {
  WEFT_RETURN_IF_ERROR(Resolve(options));
  Progress progress(options.ranks);
  return Measure(options, [&](int64_t done) { progress(done); });
}

absl::Status Run(Options options) {
  WEFT_RETURN_IF_ERROR(Resolve(options));
  std::vector<Measurement> runs;
  if (options.model) {
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
  if (options.model) json["model"] = PrintModel(runs);
  if (options.json.empty()) return absl::OkStatus();
  std::ofstream file(options.json);
  file << json.dump(2) << "\n";
  file.close();
  return file ? absl::OkStatus()
              : absl::UnavailableError(absl::StrCat("cannot write ", options.json));
}

int Main(int argc, char** argv) {
  Options options;
  std::string timeout = "60s";
  CLI::App app("Measures and explains how a job's ranks come to know each other.", "weft-init");
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks, "Ranks; 0: those of the layout")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--hosts", options.hosts, "Hosts; 0: one for 8 ranks")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
      "--layout", options.layout,
      "Axes with their sizes, the first varies fastest: a group of each rank along each");
  std::string store = "weft";
  app.add_option("--store", store, "Store to measure")->check(CLI::IsMember({"weft"}));
  app.add_flag("--relay", options.relay, "A relay a host, between its ranks and the store");
  app.add_option("--replace", options.replace,
                 "Afterwards replace so many ranks, the last ones, and time that")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--model", options.model,
               "Measure 1/8, 1/4 and 1/2 of the ranks as well, and predict other sizes");
  app.add_option("--workers", options.workers,
                 "Client processes, at least; 0: two, or as many as descriptors demand")
      ->check(CLI::Range(0, 64));
  app.add_option("--window", options.window, "Connections that a client process opens at once")
      ->check(CLI::Range(1, 4096));
  app.add_option("--sources", options.sources,
                 "Loopback addresses (127.0.0.2 and on) that clients connect from")
      ->check(CLI::Range(1, 200));
  app.add_option("--timeout", timeout, "Bound on each phase: 500ms, 60s, 5m");
  app.add_option("--json", options.json, "File for the result as one JSON object");
  CLI11_PARSE(app, argc, argv);
  InitLog("weft-init", "warn");
  absl::Status status;
  if (!absl::ParseDuration(timeout, &options.timeout) || options.timeout <= absl::ZeroDuration()) {
    status = absl::InvalidArgumentError(absl::StrCat("--timeout ", timeout, " is no duration"));
  }
  if (status.ok()) status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "weft-init: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kUsage : 1;
}

}  // namespace
}  // namespace weft::init

int main(int argc, char** argv) { return weft::init::Main(argc, argv); }
