// What the settings force: an algorithm for some collectives, by kind, size and group, in place of
// the planner's choice.
//
//   all_reduce=tree                    every all-reduce
//   all_reduce:1MiB..64MiB=ring        those of 1 MiB to 64 MiB, both included; either end may lack
//   broadcast@dp*=chain                on groups whose names begin with "dp"
//   all_gather:..4KiB@world=bruck      both
//   all_reduce:64MiB..@dp0=auto        the planner's choice after all
//
// Where several rules fit a call, the last one counts. Const calls are thread-safe.
#ifndef WEFT_COLLECTIVES_PLANNER_FORCED_H_
#define WEFT_COLLECTIVES_PLANNER_FORCED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/settings.h"
#include "collectives/schedule.h"

namespace weft::collectives::planner {

// By the name that ToString(kind) has.
std::optional<CollectiveKind> FindKind(absl::string_view name);
// "all_reduce, all_gather, ...".
std::string KindNames();

// "auto, oneshot, ...": what may be asked for of a kind.
std::string AlgorithmNames(CollectiveKind kind);
// For programs that do these kinds alone. InvalidArgument: collective.algorithm names one that none
// of them has, and so would silently force nothing; the message has those that there are.
absl::Status CheckAlgorithm(const Settings& settings, absl::Span<const CollectiveKind> kinds);

// What a rule's sizes are compared with: the whole buffer, as weft-bw and nccl-tests count it; of
// all_to_all_v parts of PlannedCount(). The same on all ranks.
uint64_t BytesOf(const CollectiveSpec& spec, size_t element);

class Forced {
 public:
  // From collective.algorithm, which counts for every kind that the algorithm has, and then
  // collective.algorithm_by_kind. InvalidArgument names the rule, and what it has that does not
  // exist.
  static absl::StatusOr<Forced> Create(const Settings& settings);

  // The algorithm; empty: the planner's choice.
  absl::string_view For(const CollectiveSpec& spec, size_t element, absl::string_view group) const;

 private:
  struct Rule {
    CollectiveKind kind = CollectiveKind::kBarrier;
    uint64_t bytes_min = 0, bytes_max = UINT64_MAX;
    std::string group = "*";  // a name, or with "*" at its end the beginning of names
    std::string algorithm;    // empty: the planner's choice
  };
  static absl::StatusOr<Rule> Parse(absl::string_view text);

  std::vector<Rule> rules_;
};

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_FORCED_H_
