// The seed of a Linux router's hash (linux_hash.h), found by trying all 2^32 of them against what
// was seen: which flows take the same next hop. Which next hop has which number is found with it,
// so that nobody needs to know their order.
//
// A router of which nobody set the seed draws one of 32 bits at boot (kernels since 6.11), which is
// found as well. Earlier kernels draw a key of 128 bits, which is not.
//
// Flows between one pair of hosts, both ways, hash alike: two routers, one at either side, are
// searched for at once.
#ifndef WEFT_TOPOLOGY_ECMP_LINUX_SEED_H_
#define WEFT_TOPOLOGY_ECMP_LINUX_SEED_H_

#include <cstdint>
#include <optional>
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

class LinuxSeedSearch {
 public:
  // `seen`: of one router with `members` next hops; the first 64 flows are searched by.
  LinuxSeedSearch(std::vector<HashObservation> seen, uint32_t members);

  // Of the `count` seeds from `first` on, the first that explains all but a share `wrong_max` of
  // what was seen, with `policy` 3 or 1 (fib_multipath_hash_policy). Some 50 cycles a seed where
  // the processor has AVX-512, three times as many without.
  std::optional<SwitchHash> Search(uint32_t first, uint64_t count, int policy = 3,
                                   double wrong_max = 0.02) const;

 private:
  std::optional<SwitchHash> Check(uint32_t seed, int policy, double wrong_max) const;

  std::vector<HashObservation> seen_;
  uint32_t members_;
  std::vector<FiveTuple> alike_;  // flows of one member, one after the other
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_LINUX_SEED_H_
