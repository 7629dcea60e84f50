// Policies without a memory of congestion: single, round robin, random, two choices, planned.
#ifndef WEFT_NET_PATHS_SIMPLE_H_
#define WEFT_NET_PATHS_SIMPLE_H_

#include <utility>
#include <vector>

#include "base/random.h"
#include "net/paths/policy.h"

namespace weft::net {

class SinglePath final : public PathPolicy {
 public:
  SinglePath(uint64_t seed, int paths)
      : path_(static_cast<PathId>(Random(seed).Below(static_cast<uint64_t>(paths)))) {}
  absl::string_view name() const override { return "single"; }
  PathId Choose(const PathSet& paths, absl::Time now) override;

 private:
  PathId path_;
};

// Smooth weighted round robin: each turn every path gains its weight and the richest is taken and
// pays the sum. With equal weights, plain turns from a random start.
class RoundRobin final : public PathPolicy {
 public:
  RoundRobin(uint64_t seed, int paths)
      : credit_(static_cast<size_t>(paths)),
        next_(static_cast<PathId>(Random(seed).Below(static_cast<uint64_t>(paths)))) {}
  absl::string_view name() const override { return "round-robin"; }
  PathId Choose(const PathSet& paths, absl::Time now) override;

 private:
  std::vector<double> credit_;
  PathId next_;
};

class RandomPath final : public PathPolicy {
 public:
  explicit RandomPath(uint64_t seed) : random_(seed) {}
  absl::string_view name() const override { return "random"; }
  PathId Choose(const PathSet& paths, absl::Time now) override;

 private:
  Random random_;
};

// Power of two choices on expected round trips; one that was never measured counts as the shortest.
// UCCL (arXiv 2504.17307) compares smoothed ones, which of a path used now and then are old.
class TwoChoices final : public PathPolicy {
 public:
  explicit TwoChoices(uint64_t seed) : random_(seed) {}
  absl::string_view name() const override { return "two-choices"; }
  PathId Choose(const PathSet& paths, absl::Time now) override;

 private:
  Random random_;
};

class Planned final : public PathPolicy {
 public:
  // `spare`: what is taken while nothing of the plan is usable, the best first.
  explicit Planned(std::vector<PathId> plan, std::vector<PathId> spare = {})
      : plan_(std::move(plan)), spare_(std::move(spare)) {}
  absl::string_view name() const override { return "planned"; }
  PathId Choose(const PathSet& paths, absl::Time now) override;

 private:
  std::vector<PathId> plan_, spare_;
  size_t next_ = 0;   // of plan_
  size_t other_ = 0;  // counts choices beyond both
};

// A usable path, uniformly.
PathId DrawUsable(const PathSet& paths, Random& random);

}  // namespace weft::net

#endif  // WEFT_NET_PATHS_SIMPLE_H_
