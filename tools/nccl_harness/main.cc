// weft-nccl-harness: does a net plugin keep NCCL's contracts? Needs neither NCCL nor a GPU.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "base/write_file.h"
#include "tools/command_line.h"
#include "tools/nccl_harness/report.h"
#include "tools/nccl_harness/runner.h"

namespace weft::harness {
namespace {

constexpr const char* kFooter = R"(Examples:
  weft-nccl-harness weft                          every table of libnccl-net-weft.so
  weft-nccl-harness ./libnccl-net-mine.so --versions 11 --requests 100000
  weft-nccl-harness weft --measure -b 8 -e 64M -f 8
  weft-nccl-harness weft --connections 1000

Columns of --measure: latency is half a round trip; time is that of one message of many in flight one
way; algbw = busbw = size / time in GB/s (10^9 bytes); #wrong counts wrong bytes.
Exit status: 0 when no contract was broken, 1 when one was or a scenario could not run to its end, 2 for
wrong usage or a plugin that cannot be loaded. What each contract asks: docs/nccl-harness.md.)";

constexpr size_t kMemoryLeast = 1 << 20;
constexpr size_t kMessageMost = size_t{1} << 30;  // NCCL's own limit
constexpr int kRequestsMost = 10'000'000;         // whose plans take 48 bytes each

struct Words {
  std::string size_max = "1M", memory = "16M", chunk = "0", measure_min = "8", measure_max = "8M";
  std::string timeout = "30s", block_limit = "5s", death_limit = "30s", ranks = "processes", json;
  std::vector<std::string> only;
  bool contracts = false;
};

absl::Status ParseSize(const std::string& name, const std::string& text, size_t* out) {
  absl::StatusOr<Bytes> bytes = ParseBytes(text);
  if (!bytes.ok()) return Annotate(bytes.status(), name);
  *out = static_cast<size_t>(bytes->count());
  return absl::OkStatus();
}

absl::Status ParseTime(const std::string& name, const std::string& text, absl::Duration* out) {
  if (ParseFinite(text, out) && *out > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " '", text, "' is no time, as in 500ms or 30s"));
}

absl::Status Resolve(const Words& words, Options& options) {
  options.threads = words.ranks == "threads";
  WEFT_RETURN_IF_ERROR(ParseSize("--size-max", words.size_max, &options.size_max));
  WEFT_RETURN_IF_ERROR(ParseSize("--memory", words.memory, &options.memory_max));
  WEFT_RETURN_IF_ERROR(ParseSize("--chunk", words.chunk, &options.chunk));
  WEFT_RETURN_IF_ERROR(ParseSize("--minbytes", words.measure_min, &options.measure_min));
  WEFT_RETURN_IF_ERROR(ParseSize("--maxbytes", words.measure_max, &options.measure_max));
  WEFT_RETURN_IF_ERROR(ParseTime("--timeout", words.timeout, &options.timeout));
  WEFT_RETURN_IF_ERROR(ParseTime("--block-limit", words.block_limit, &options.block_limit));
  WEFT_RETURN_IF_ERROR(ParseTime("--death-limit", words.death_limit, &options.death_limit));
  if (options.memory_max < kMemoryLeast) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory ", words.memory, " is less than 1M, which groups of receives need"));
  }
  if (options.measure_min < 1 || options.measure_max < options.measure_min) {
    return absl::InvalidArgumentError(absl::StrCat("-b ", words.measure_min, " -e ",
                                                   words.measure_max,
                                                   ": sizes go from 1 byte or more upwards"));
  }
  if (options.size_max > kMessageMost) {
    return absl::InvalidArgumentError("--size-max is above 1G, NCCL's own limit of one message");
  }
  if (options.measure_max > kMessageMost) {
    return absl::InvalidArgumentError("-e is above 1G, NCCL's own limit of one message");
  }
  const size_t pieces = options.chunk == 0 ? 1 : options.measure_max / options.chunk + 1;
  if (pieces * static_cast<size_t>(options.iterations) > kRequestsMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("-n ", options.iterations, " messages of up to ", words.measure_max,
                     options.chunk == 0 ? "" : absl::StrCat(" in pieces of ", words.chunk),
                     " are more than ", kRequestsMost, " requests"));
  }
  return absl::OkStatus();
}

void Declare(CLI::App& app, Words& words, Options& options) {
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.add_option("plugin", options.plugin,
                 "As in NCCL_NET_PLUGIN: a path, a file name, or NAME for libnccl-net-NAME.so");
  app.add_option("--versions", options.versions, "Tables to drive; empty: all that it has")
      ->delimiter(',')
      ->check(CLI::Range(kVersionMin, kVersionMax));
  app.add_option("--only", words.only,
                 "Scenarios: introspection, steps, traffic, death; empty: all")
      ->delimiter(',')
      ->check(CLI::IsMember({"introspection", "steps", "traffic", "death"}));
  app.add_option("--ranks", words.ranks, "The two ranks: processes, or threads of one process")
      ->check(CLI::IsMember({"processes", "threads"}));
  app.add_option("--device", options.device, "The plugin's device")->check(CLI::NonNegativeNumber);
  app.add_option("--communicators", options.communicators, "Communicators of the random traffic")
      ->check(CLI::Range(1, 64));
  app.add_option("--requests", options.requests, "Random messages each way on each communicator")
      ->check(CLI::Range(1, kRequestsMost));
  app.add_option("--size-max", words.size_max, "Largest random message, up to 1G");
  app.add_option("--memory", words.memory,
                 "Bytes of the buffers of one side of one connection, about; at most 2G");
  app.add_option("--seed", options.seed,
                 "Seed from which sizes, tags, groups and orders are drawn");
  app.add_option("--timeout", words.timeout,
                 "Longest time until a connection is set up, or a request completes");
  app.add_option("--block-limit", words.block_limit,
                 "A call that takes longer than this counts as one that blocks");
  app.add_option("--death-limit", words.death_limit,
                 "Time within which the death of the peer must become an error");
  app.add_option("--connections", options.connections,
                 "Instead: set up so many connections each way, and time it; 0: do not")
      ->check(CLI::Range(0, 8000));
  app.add_flag("--measure", options.measure, "Instead: latency and bandwidth");
  app.add_option("-b,--minbytes", words.measure_min, "Smallest size of --measure");
  app.add_option("-e,--maxbytes", words.measure_max, "Largest size of --measure");
  app.add_option("-f,--stepfactor", options.measure_factor, "Factor between the sizes of --measure")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("-n,--iters", options.iterations, "Messages of each size of --measure")
      ->check(CLI::PositiveNumber);
  app.add_option("--chunk", words.chunk,
                 "Bytes of the pieces in which --measure sends its messages; 0: whole messages");
  app.add_option("--json", words.json, "Also write a JSON object to this file; -: print it alone");
  app.add_flag("--contracts", words.contracts, "List the contracts and end");
  app.add_flag("-v,--verbose", options.verbose, "Show what the plugin logs");
}

std::vector<Scenario> Chosen(const Words& words, const Options& options) {
  if (options.connections > 0) return {Scenario::kConnections};
  if (options.measure) return {Scenario::kMeasure};
  std::vector<Scenario> out;
  constexpr std::pair<const char*, Scenario> kAll[] = {{"introspection", Scenario::kIntrospection},
                                                       {"steps", Scenario::kSteps},
                                                       {"traffic", Scenario::kTraffic},
                                                       {"death", Scenario::kDeath}};
  for (const auto& [name, scenario] : kAll) {
    bool wanted = words.only.empty() ||
                  std::find(words.only.begin(), words.only.end(), name) != words.only.end();
    if (wanted) out.push_back(scenario);
  }
  return out;
}

absl::StatusOr<bool> RunAll(const Words& words, const Options& options) {
  WEFT_RETURN_IF_ERROR(CheckOutput(words.json));
  WEFT_ASSIGN_OR_RETURN(PluginInfo plugin, Inspect(options.plugin, options.timeout));
  for (int version : options.versions) {
    if (std::find(plugin.versions.begin(), plugin.versions.end(), version) ==
        plugin.versions.end()) {
      return absl::NotFoundError(absl::StrCat(plugin.path, " has no ncclNetPlugin_v", version));
    }
  }
  std::vector<int> versions = options.versions.empty() ? plugin.versions : options.versions;
  // Speed and set-up are the implementation's, not the table's.
  if (options.versions.empty() && (options.measure || options.connections > 0)) {
    versions = {plugin.versions.back()};
  }
  const bool prints = words.json != "-";
  if (prints) PrintHead(plugin, options);
  std::vector<Outcome> outcomes;
  for (int version : versions) {
    for (Scenario scenario : Chosen(words, options)) {
      WEFT_ASSIGN_OR_RETURN(Outcome outcome, RunScenario(scenario, version, options));
      if (prints) PrintOutcome(outcome);
      bool table = std::any_of(
          outcome.breaches.begin(), outcome.breaches.end(),
          [](const Breach& breach) { return breach.contract == Contract::kTableComplete; });
      outcomes.push_back(std::move(outcome));
      if (table) break;  // nothing to call
    }
  }
  const bool kept = Keeps(outcomes);
  if (prints) PrintVerdict(outcomes);
  if (!words.json.empty()) {
    WEFT_RETURN_IF_ERROR(WriteJson(words.json, plugin, options, outcomes));
  }
  return kept;
}

int Main(int argc, char** argv) {
  CLI::App app("Drives an NCCL net plugin as NCCL does, and names each contract that it breaks.");
  Words words;
  Options options;
  Declare(app, words, options);
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  if (words.contracts) {
    PrintContracts();
    return EXIT_SUCCESS;
  }
  absl::Status usage = Resolve(words, options);
  absl::StatusOr<bool> kept = usage.ok() ? RunAll(words, options) : absl::StatusOr<bool>(usage);
  if (kept.ok()) return *kept ? EXIT_SUCCESS : EXIT_FAILURE;
  absl::FPrintF(stderr, "weft-nccl-harness: %s\n", kept.status().message());
  return 2;
}

}  // namespace
}  // namespace weft::harness

int main(int argc, char** argv) { return weft::harness::Main(argc, argv); }
