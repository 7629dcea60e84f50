// The seed of a Linux router's hash (linux_hash.h), found by trying all 2^32 of them against what
// was seen: which flows take the same next hop. Which next hop has which number is found with it,
// so that nobody needs to know their order.
//
// A router of which nobody set the seed draws one of 32 bits at boot (kernels since 6.11), which is
// found as well. Earlier kernels draw a key of 128 bits, which is not.
//
// Flows between one pair of hosts, both ways, hash alike: two routers, one at either side, that saw
// the same flows are searched for at the price of one.
#ifndef WEFT_TOPOLOGY_ECMP_LINUX_SEED_H_
#define WEFT_TOPOLOGY_ECMP_LINUX_SEED_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "topology/ecmp/five_tuple.h"
#include "topology/ecmp/switch_hash.h"

namespace weft::topology {

// One router took next hop `member`, a number below the number of its next hops, for a flow.
struct HashObservation {
  FiveTuple tuple;
  uint32_t member = 0;
};

struct MemberOrder {
  std::vector<uint32_t> member_at;  // [index that the hash gives]
  int64_t right = 0, wrong = 0;     // observations that agree with it, and that do not
};

// How members must be numbered for `hash` to explain most of `seen`.
MemberOrder FitOrder(const SwitchHash& hash, uint32_t members,
                     absl::Span<const HashObservation> seen);

// What one router did.
struct LinuxRouter {
  std::vector<HashObservation> seen;
  uint32_t members = 0;  // next hops
};

// Searches for the seeds of several routers at once: what is computed of a flow serves every router
// that saw it, either way. Const calls are thread-safe.
class LinuxSeedSearch {
 public:
  struct Found {
    size_t router = 0;  // its number
    SwitchHash hash;
  };

  // Another `attempt` searches by other flows, where there are more: of the 4 to 12 flows of a
  // router that decide, none may have been seen wrongly.
  explicit LinuxSeedSearch(std::vector<LinuxRouter> routers, int attempt = 0);
  // The search at one router.
  LinuxSeedSearch(std::vector<HashObservation> seen, uint32_t members)
      : LinuxSeedSearch(std::vector<LinuxRouter>{{std::move(seen), members}}) {}

  // Tries `count` seeds from `first` on: each router's first one that explains all but a share
  // `wrong_max` of what was seen there, with `policy` 3 or 1 (fib_multipath_hash_policy).
  std::vector<Found> SearchAll(uint32_t first, uint64_t count, int policy = 3,
                               double wrong_max = 0.02) const;
  // The same for the only router.
  std::optional<SwitchHash> Search(uint32_t first, uint64_t count, int policy = 3,
                                   double wrong_max = 0.02) const;

 private:
  // A flow as the hash reads it: SipHash's words, and how many there are.
  struct Words {
    std::array<uint64_t, 10> word{};
    size_t count = 0;
    auto operator<=>(const Words&) const = default;
  };
  // One router, or two of which both saw some flows: the two are searched for at the price of one.
  struct Group {
    struct Router {
      size_t number = 0;
      std::vector<Words> later;  // computed of those seeds alone that all others leave
    };
    uint32_t members = 0;
    std::vector<Words> joint;      // flows that are computed of every seed; all took one member
    std::vector<size_t> joint_at;  // their places in joint_
    std::vector<Words> later;      // of those seeds alone that the former leave
    std::vector<Router> routers;
  };
  class Planner;
  class Batch;

  static Words WordsOf(const FiveTuple& tuple);
  void MakePlans();
  std::optional<SwitchHash> Check(size_t router, uint32_t seed, int policy, double wrong_max) const;

  std::vector<LinuxRouter> routers_;
  int attempt_;
  std::vector<Group> groups_;  // a router of which too little was seen is in none
  std::vector<Words> joint_;   // sorted
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_LINUX_SEED_H_
