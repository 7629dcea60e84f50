// weft-diagnose: names what is wrong with a job, live or from its records.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tools/command_line.h"
#include "tools/observe/detectors.h"
#include "tools/observe/diagnose.h"
#include "tools/observe/simulate_waits.h"
#include "tools/observe/source.h"

namespace weft {
namespace {

using observe::Finding;

// More than a glance: what is slow shows in steps, what stands still in a second.
absl::StatusOr<std::vector<Finding>> Watch(observe::Source& source, absl::Duration patience,
                                           observe::Detector detector,
                                           const observe::DiagnoseOptions& options) {
  const SystemClock clock;
  const absl::Time until = clock.Now() + patience;
  while (true) {
    if (absl::Status status = source.Update(); !status.ok()) return status;
    std::vector<Finding> findings = observe::Detect(detector, source.view(), options);
    if (!findings.empty() || source.replay() || clock.Now() >= until) return findings;
    absl::SleepFor(absl::Milliseconds(100));
  }
}

// Jobs that are made up: how long each root cause takes, and whether it is right.
absl::Status Simulated(int ranks, uint64_t seed, const observe::DiagnoseOptions& options) {
  const std::pair<const char*, observe::SimulatedFault> faults[] = {
      {"hang", observe::SimulatedFault::kHang},
      {"stuck flow", observe::SimulatedFault::kStuckFlow},
      {"slow rank", observe::SimulatedFault::kSlow}};
  for (const auto& [name, fault] : faults) {
    const auto job = observe::SimulateWaits(ranks, fault, seed);
    if (!job.ok()) return job.status();
    const absl::Time start = SystemClock().Now();
    const std::vector<Finding> findings = observe::Diagnose(job->view, options);
    const double took = absl::ToDoubleSeconds(SystemClock().Now() - start);
    const bool right = findings.size() == 1 && findings[0].fault == job->fault &&
                       findings[0].culprits == job->culprits;
    std::printf("{\"ranks\":%d,\"seed\":%llu,\"fault\":\"%s\",\"seconds\":%.3f,\"right\":%s}\n",
                ranks, static_cast<unsigned long long>(seed), name, took, right ? "true" : "false");
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Names what is wrong with a job: a rank that hangs, died, is stopped or slow, calls that\n"
      "differ, a receiver that does not post, a link; with evidence, who waits for it, and what "
      "to\n"
      "do. Exit status 0: nothing is wrong; 3: something is; 1: there is no job to look at.\n"
      "Example: weft-diagnose --watch 5s",
      "weft-diagnose");
  observe::Source source;
  source.Register(app);
  observe::DiagnoseOptions options;
  bool json = false;
  std::string watch = "0s";
  absl::Duration patience;
  app.add_flag("--json", json, "one line of JSON");
  app.add_option("--watch", watch, "how long to look for something wrong, as 5s")
      ->capture_default_str();
  app.add_option(
         "--slow", options.slow_ratio,
         "a rank counts as slow if its own phases take this many times as long as its peers'")
      ->check(RealRange(1, 100))
      ->capture_default_str();
  app.add_option("--slow-steps", options.slow_steps,
                 "steps in a row in which a rank must be slow to be named")
      ->check(CLI::Range(1, 30))
      ->capture_default_str();
  int simulated = 0;
  uint64_t seed = 1;
  app.add_option("--simulate", simulated,
                 "no job: so many ranks (as 16384) with a hang, a stuck flow and a slow rank, each "
                 "drawn by --seed; prints how long the root cause takes, as JSON");
  app.add_option("--seed", seed, "seed of --simulate")->capture_default_str();
  std::string detector = "all";
  app.add_option("--detector", detector,
                 "all rules, or one detector of the literature alone: minder, greyhound (slow "
                 "ranks), mycroft (what stands still)")
      ->check(CLI::IsMember({"all", "minder", "greyhound", "mycroft"}))
      ->capture_default_str();
  const int status_of_usage =
      ReadCommandLine(app, argc, argv, [&] { return TakeDuration("--watch", watch, patience); });
  if (status_of_usage != kGoOn) return status_of_usage;
  if (simulated != 0) {
    const absl::Status status = Simulated(simulated, seed, options);
    if (status.ok()) return 0;
    std::fprintf(stderr, "weft-diagnose: --simulate: %s\n", std::string(status.message()).c_str());
    return absl::IsInvalidArgument(status) ? kWrongUsage : 1;
  }
  const auto findings = Watch(source, patience, *observe::DetectorNamed(detector), options);
  if (!findings.ok()) {
    std::fprintf(stderr, "weft-diagnose: %s\n", std::string(findings.status().message()).c_str());
    return 1;
  }
  if (json) {
    std::printf("%s\n", observe::ToJson(source.view(), *findings).c_str());
  } else {
    std::printf("job %s, %zu of %d ranks\n", source.view().job.c_str(), source.view().ranks.size(),
                source.view().world_size);
    for (const Finding& finding : *findings) std::fputs(observe::ToText(finding).c_str(), stdout);
    if (findings->empty()) std::printf("nothing is wrong\n");
  }
  return findings->empty() ? 0 : 3;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
