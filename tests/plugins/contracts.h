// Contracts that a plugin breaks, as tests of plugins ask for them.
#ifndef WEFT_TESTS_PLUGINS_CONTRACTS_H_
#define WEFT_TESTS_PLUGINS_CONTRACTS_H_

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/nccl_harness/runner.h"

namespace weft::harness {

// Limits that a slow machine does not reach; faults that show only by their passing set others.
inline Options TestOptions(const std::string& plugin) {
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  Options options;
  options.plugin = plugin;
  options.requests = 60;
  options.size_max = 256 << 10;
  options.memory_max = 4 << 20;
  options.timeout = absl::Seconds(60);
  options.block_limit = absl::Seconds(60);
  options.death_limit = absl::Seconds(60);
  return options;
}

// "name of the contract: what happened", each; or why the scenario did not run.
inline std::vector<std::string> BrokenIn(Scenario scenario, int version, const Options& options) {
  absl::StatusOr<Outcome> outcome = RunScenario(scenario, version, options);
  std::vector<std::string> broken;
  if (!outcome.ok()) return {std::string(outcome.status().message())};
  for (const Breach& breach : outcome->breaches) {
    broken.push_back(absl::StrCat(RowOf(breach.contract).name, ": ", breach.detail));
  }
  if (!outcome->failure.empty()) broken.push_back(outcome->failure);
  return broken;
}

}  // namespace weft::harness

#endif  // WEFT_TESTS_PLUGINS_CONTRACTS_H_
