// weft-cc tune: searches a controller's parameters for a fabric and a workload, in the simulator.
//
// The search is our own and simple, as each run costs seconds: the defaults first; then half of the
// runs at parameters drawn log-uniformly from a quarter to four times their defaults, within their
// ranges; then steps of one parameter at a time around the best, by a factor that shrinks when no
// step helps. The seed fixes all of it.
//
// The score of a run is the mean of its p99 and its mean completion time and, by `queue_weight`, of
// its longest mean queue, each over that of the defaults, as a weighted geometric mean: below 1 is
// better. A run in which something never ends has none.
#ifndef WEFT_TOOLS_CC_TUNE_H_
#define WEFT_TOOLS_CC_TUNE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/cc/line_plot.h"
#include "tools/cc/run.h"

namespace weft::cc {

struct TuneOptions {
  Scenario scenario;
  std::string controller = "swift";     // where it begins
  std::vector<std::string> parameters;  // to be searched; empty: all whose default is not 0
  std::string policy = "reps";
  int paths = 64, runs = 40;
  double queue_weight = 0.2;
  uint64_t seed = 1;
};

struct TuneRow {
  net::ControllerSpec spec;
  Outcome outcome;
  double score = 0;
};

// In the order of the runs; the defaults first. `done` is called after each. DeadlineExceeded: all
// transfers ended in none of them.
absl::StatusOr<std::vector<TuneRow>> Tune(const TuneOptions& options,
                                          absl::FunctionRef<void(size_t done, size_t all)> done);

const TuneRow& Best(const std::vector<TuneRow>& rows);
// The rows that no other beats in both p99 and queue, by rising p99.
std::vector<TuneRow> Frontier(const std::vector<TuneRow>& rows);
std::string ToText(const std::vector<TuneRow>& rows);
nlohmann::ordered_json ToJson(const std::vector<TuneRow>& rows);
LinePlot ToPlot(const std::vector<TuneRow>& rows, const std::string& title);

}  // namespace weft::cc

#endif  // WEFT_TOOLS_CC_TUNE_H_
