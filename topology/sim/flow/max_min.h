// Max-min fair rates, kept up to date while flows come and go.
//
// A resource has a capacity. A variable stands for `count` equal flows, each of which at rate x
// takes weight * x of every resource that it uses. Max-min fair: every flow has a bottleneck, a
// resource that is full and on which no flow is faster (Bertsekas, Gallager, "Data Networks",
// 2nd edition, 6.5.2). That condition determines the rates, which gives the incremental algorithm:
//
//   1. Affected are the variables that changed, and those whose bottleneck is a resource that
//      changed.
//   2. Fill the affected up, in rising order of level, with what the others leave over.
//   3. Where the condition now fails for a variable, or because of it, that one is affected too:
//      back to 2. Else the rates are the max-min fair ones of the whole.
//
// The result is that of a computation from scratch (up to rounding); the cost follows how far a
// change really reaches. Deterministic. Not thread-safe.
#ifndef WEFT_TOPOLOGY_SIM_FLOW_MAX_MIN_H_
#define WEFT_TOPOLOGY_SIM_FLOW_MAX_MIN_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace weft::topology {

class MaxMin {
 public:
  using Variable = uint32_t;
  using Resource = uint32_t;
  struct Use {
    Resource resource = 0;
    double weight = 1;
    bool operator==(const Use&) const = default;
  };

  explicit MaxMin(std::vector<double> capacities);

  // 0: what uses it stands still.
  void SetCapacity(Resource resource, double capacity);
  double capacity(Resource resource) const { return resources_[resource].capacity; }
  Resource AddResource(double capacity);

  // Each resource at most once, weights > 0, at least one. Numbers of removed variables are used
  // again. The rate is known after Solve.
  Variable Add(absl::Span<const Use> uses, uint32_t count = 1);
  void SetCount(Variable variable, uint32_t count);  // > 0
  void Remove(Variable variable);
  // One more use of a variable that has none of `resource` yet.
  void AddUse(Variable variable, Use use);

  // Another resource, just like `resource`, which all that use it use as well from now on.
  Resource Split(Resource resource);

  // Brings all rates up to date; returns the variables whose rate is another than before, each
  // once. Valid until the next call.
  const std::vector<Variable>& Solve();
  // The same, from scratch.
  const std::vector<Variable>& SolveAll();

  double rate(Variable variable) const { return variables_[variable].rate; }  // of one flow
  uint32_t count(Variable variable) const { return variables_[variable].count; }
  template <typename Visit>  // visit(resource, weight)
  void ForEachUse(Variable variable, Visit visit) const {
    for (const Link& link : links_[variable]) visit(link.resource, link.weight);
  }
  size_t users(Resource resource) const { return resources_[resource].members.size(); }

  // The bottleneck condition for every variable, and no resource above its capacity, both within
  // `tolerance` (relative). kInternal names what fails.
  absl::Status Check(double tolerance = 1e-6) const;

  int64_t solves() const { return solves_; }
  int64_t filled() const { return filled_; }  // variables, over all fillings

 private:
  static constexpr Resource kNone = UINT32_MAX;
  struct State {
    double rate = 0;
    uint32_t count = 0;  // 0: the number is free
    Resource bottleneck = kNone;
    uint32_t affected = 0;  // in solve number ...
    bool filled = false;
  };
  struct Link {  // a variable's view of one use
    Resource resource;
    uint32_t place;  // in the resource's members
    double weight;
  };
  struct Member {  // a resource's view of it
    Variable variable;
    uint32_t place;  // in the variable's links
    double weight;
  };
  struct Capacity {
    double capacity = 0;
    std::vector<Member> members;
    // While filling:
    double residual = 0;
    double weight = 0;     // of the affected that are not filled yet
    uint32_t open = 0;     // their number
    uint32_t touched = 0;  // in filling number ...
    bool dirty = false;
  };
  struct Level {
    double level;
    Resource resource;
    bool operator>(const Level& other) const {
      return level != other.level ? level > other.level : resource > other.resource;
    }
  };

  void Dirty(Resource resource);
  void Affect(Variable variable);
  const std::vector<Variable>& Run();
  void Touch(Resource resource);
  void Fill();
  void FillAt(Resource resource, double level);
  bool Widen();
  void WidenAt(Resource resource);
  void WidenBy(Variable variable);

  std::vector<State> variables_;
  std::vector<absl::InlinedVector<Link, 6>> links_;  // by variable
  std::vector<Variable> free_;
  std::vector<Capacity> resources_;

  std::vector<Resource> dirty_;
  std::vector<Variable> new_;  // added or with another count
  std::vector<Variable> affected_;
  std::vector<double> before_;  // rates of affected_
  std::vector<Resource> touched_;
  std::vector<Level> heap_;
  std::vector<Variable> changed_;
  uint32_t solve_ = 0, filling_ = 0;
  int64_t solves_ = 0, filled_ = 0;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_FLOW_MAX_MIN_H_
