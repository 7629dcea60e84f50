// Path policies: which path the next chunk takes. One object serves one connection.
//
//   single        one path until it dies
//   round-robin   each in turn, in proportion to their weights
//   random        each chunk at random ("oblivious spray")
//   two-choices   of two at random the one with the shorter expected round trip (simple.h)
//   reps          recycles those that answered without a mark (reps.h)
//   penalty       in turn, passing over those that were marked, trimmed or lost (penalty.h)
//   plb           one path, another after congested round trips (plb.h)
//   planned       a list, in turn; where a planner has chosen source ports (weft-plan)
//
// Paths that were left (PathSet) are never chosen while others are usable.
#ifndef WEFT_NET_PATHS_POLICY_H_
#define WEFT_NET_PATHS_POLICY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "net/paths/path_set.h"

namespace weft::net {

enum class PathLoss : uint8_t {
  kTrimmed,  // a full queue cut the payload off
  kDropped,  // others on the same path arrived after it
  kTimeout,  // nothing was heard of it
};

struct PathAck {
  absl::Time now;
  PathId path = 0;
  absl::Duration rtt;   // zero: not measured
  bool marked = false;  // ECN
  Bytes bytes;
};

class PathPolicy {
 public:
  virtual ~PathPolicy() = default;
  virtual absl::string_view name() const = 0;
  virtual PathId Choose(const PathSet& paths, absl::Time now) = 0;
  virtual void OnAck(const PathAck& /*ack*/) {}
  virtual void OnLoss(PathId /*path*/, PathLoss /*loss*/, absl::Time /*now*/) {}
};

enum class PolicyKind : uint8_t {
  kSingle,
  kRoundRobin,
  kRandom,
  kTwoChoices,
  kReps,
  kPenalty,
  kPlb,
  kPlanned,
};
absl::string_view ToString(PolicyKind kind);
absl::Span<const PolicyKind> AllPolicies();
// "reps"; InvalidArgument naming what is known.
absl::StatusOr<PolicyKind> ParsePolicy(absl::string_view text);

struct PolicyOptions {
  PolicyKind kind = PolicyKind::kSingle;
  uint64_t seed = 1;  // of what is drawn
  absl::Duration base_rtt = absl::Microseconds(10);
  Bytes window;  // what is in flight at first: REPS explores for as long
  Bytes packet{4096};
  std::vector<PathId> planned;  // kPlanned; empty: all, in order
  std::vector<PathId> spare;    // kPlanned: while none of those is usable, the first that is
};
std::unique_ptr<PathPolicy> MakePolicy(const PolicyOptions& options, int paths);

// A policy that is asked only when `piece` bytes went the same way, or that way is no longer
// usable: messages of a few kilobytes then keep to one path.
class PathChooser {
 public:
  PathChooser(std::unique_ptr<PathPolicy> policy, Bytes piece)
      : policy_(std::move(policy)), piece_(piece) {}
  PathPolicy& policy() { return *policy_; }
  void SetPolicy(std::unique_ptr<PathPolicy> policy) {
    policy_ = std::move(policy);
    left_ = Bytes(0);
  }
  PathId Choose(const PathSet& paths, Bytes size, absl::Time now) {
    if (left_ < size || !paths.IsUsable(path_)) {
      path_ = policy_->Choose(paths, now);
      left_ = piece_;
    }
    left_ -= size;
    return path_;
  }

 private:
  std::unique_ptr<PathPolicy> policy_;
  Bytes piece_, left_;
  PathId path_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_PATHS_POLICY_H_
