// Transfers under way, as fluid: which transfers share which links, how many bytes of each are
// left, and which transfer ends next.
//
// Transfers with the same path are one variable of the solver: each gets the same rate, so that the
// bytes which the path has given to each of them since its first one came, its service, say when
// each is done. A rate that changes costs one update a path then, not one a transfer.
//
// Time is counted in quarters of a nanosecond, the resolution of absl::Duration. A transfer ends in
// the first of them by which its last byte has gone.
#ifndef WEFT_TOPOLOGY_SIM_FLOW_FLUID_H_
#define WEFT_TOPOLOGY_SIM_FLOW_FLUID_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "topology/sim/flow/max_min.h"

namespace weft::topology {

using Ticks = int64_t;
inline constexpr Ticks kTicksPerSecond = 4'000'000'000;
inline constexpr Ticks kNever = std::numeric_limits<Ticks>::max();
Ticks ToTicks(absl::Duration duration);  // rounded up; kNever if beyond 2^62
Ticks ToTicks(double seconds);           // likewise
absl::Duration FromTicks(Ticks ticks);
// kNever is beyond every limit.
inline Ticks Later(Ticks now, Ticks more) { return more > kNever - now ? kNever : now + more; }

class Fluid {
 public:
  // Capacities of the links, in bytes a second; the rest as in FlowOptions.
  Fluid(std::vector<double> capacities, bool incremental, size_t exact_paths, double late);

  struct Transfer {
    double bytes = 0;   // still to go, headers included
    uint64_t tag = 0;   // the caller's
    Ticks latency = 0;  // likewise
  };
  // `uses` not empty. Rates are old until Solve; a new path's is 0.
  void Start(Ticks now, absl::Span<const MaxMin::Use> uses, const Transfer& transfer);
  void SetCapacity(MaxMin::Resource link, double capacity) {
    solver_.SetCapacity(link, capacity);
    solve_by_ = 0;
  }
  // To be called when all that happens at `now` has been said; brings the rates up to date, or with
  // many paths leaves that to a later call, which next() asks for.
  void Solve(Ticks now);
  // MaxMin::Split; what the link carried, both have.
  MaxMin::Resource Split(MaxMin::Resource link);

  Ticks next() const { return std::min(solve_by_, heap_.empty() ? kNever : paths_[heap_[0]].due); }
  // Takes out what ends at `now`, in order of tag.
  void Finish(Ticks now, std::vector<Transfer>& ended);
  // Takes out everything, in order of tag, with the bytes that are left.
  void Withdraw(Ticks now, std::vector<Transfer>& all);

  // Bytes that each link has carried, of transfers that were taken out.
  const std::vector<double>& carried() const { return carried_; }
  const MaxMin& solver() const { return solver_; }

 private:
  struct Member {
    double end = 0;    // service of the path at which it is done
    double begin = 0;  // service of the path when it came
    uint64_t tag = 0;
    Ticks latency = 0;
    bool operator>(const Member& other) const {
      return end != other.end ? end > other.end : tag > other.tag;
    }
  };
  struct Path {  // by variable of the solver
    double service = 0;
    double rate = 0;  // since `updated`
    Ticks updated = 0;
    Ticks due = kNever;  // of the first member
    uint32_t heap_place = 0;
    uint64_t key = 0;
    absl::InlinedVector<Member, 1> members;  // a heap, the first to end on top
  };

  static void Update(Path& path, Ticks now);
  static Ticks DueOf(const Path& path);
  bool MayWait(Ticks now);
  double TimeOf(MaxMin::Variable variable) const;
  void Schedule(MaxMin::Variable variable);
  void Drop(MaxMin::Variable variable);
  void Carry(MaxMin::Variable variable, double bytes);
  void Sift(uint32_t place);
  void SiftDown(uint32_t place);
  bool Earlier(MaxMin::Variable a, MaxMin::Variable b) const;
  void Put(uint32_t place, MaxMin::Variable variable);

  MaxMin solver_;
  const bool incremental_;
  const size_t exact_paths_;
  const double late_;
  Ticks solve_by_ = kNever;             // what changed before must show by then
  std::vector<MaxMin::Variable> came_;  // since Solve was called
  std::vector<Path> paths_;
  std::vector<MaxMin::Variable> heap_;  // paths by when they are due
  absl::flat_hash_map<uint64_t, MaxMin::Variable> by_key_;
  std::vector<double> carried_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_FLOW_FLUID_H_
