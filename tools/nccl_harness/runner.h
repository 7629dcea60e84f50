// Runs scenarios in processes of their own and collects what they saw: contracts, figures, crashes
// and hangs. The parent never loads the plugin.
#ifndef WEFT_TOOLS_NCCL_HARNESS_RUNNER_H_
#define WEFT_TOOLS_NCCL_HARNESS_RUNNER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/nccl_harness/rank.h"
#include "tools/nccl_harness/scenarios.h"

namespace weft::harness {

// What the library is, seen without calling it.
struct PluginInfo {
  std::string path, name;  // of the newest table
  std::vector<int> versions;
};
// NotFound: it cannot be loaded, or has no table that the harness knows. DeadlineExceeded: loading
// it takes longer than `limit`.
absl::StatusOr<PluginInfo> Inspect(const std::string& plugin,
                                   absl::Duration limit = Options().timeout);

// A breach of one contract in one scenario, however often.
struct Breach {
  Contract contract;
  Scenario scenario;
  int version = 0, rank = 0, count = 0;
  std::string detail;  // the first
};

struct Outcome {
  Scenario scenario;
  int version = 0;
  double seconds = 0;
  std::vector<Breach> breaches;
  std::string failure;  // why a rank could not go on, which no contract explains; empty: none
  std::vector<std::pair<std::string, double>> figures;  // of rank 0
  std::vector<Measured> measured;
  bool kept() const { return breaches.empty() && failure.empty(); }
};

absl::StatusOr<Outcome> RunScenario(Scenario scenario, int version, const Options& options);

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_RUNNER_H_
