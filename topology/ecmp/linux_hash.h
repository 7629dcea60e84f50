// The hash by which a Linux router chooses among equal routes, bit for bit, given the seed that
// net.ipv4.fib_multipath_hash_seed sets (kernels since 6.11; without it the seed is random per
// boot, and only the router itself can be asked: `ip route get`).
//
// What is modelled, of kernel 6.18: SipHash-2-4 over the dissected flow, both directions alike
// (net/core/flow_dissector.c), keyed by the seed repeated four times (include/net/ip_fib.h),
// shifted to 31 bits; a next hop is the first whose upper bound, the rounded share of 2^31 of the
// weights up to it, is not below the hash (net/ipv4/fib_semantics.c, net/ipv4/nexthop.c). The same
// for IPv6, which shares the seed. Tunnels' inner headers (policy 2, fields 0x100 and above) are
// not.
//
// Policy 1 takes, where a packet carries one, a hash that its sender's socket drew: of TCP between
// namespaces of one machine it is right only by chance. Policy 3 hashes the fields themselves.
#ifndef WEFT_TOPOLOGY_ECMP_LINUX_HASH_H_
#define WEFT_TOPOLOGY_ECMP_LINUX_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/ecmp/five_tuple.h"

namespace weft::topology {

// net.ipv4.fib_multipath_hash_fields, and what any SwitchHash hashes.
enum HashField : uint32_t {
  kHashSourceAddress = 0x01,
  kHashTargetAddress = 0x02,
  kHashProtocol = 0x04,
  kHashFlowLabel = 0x08,  // IPv6 only
  kHashSourcePort = 0x10,
  kHashTargetPort = 0x20,
  kHashFiveTuple = 0x37,
};

struct LinuxHashOptions {
  int policy = 3;                    // net.ipv4.fib_multipath_hash_policy: 0, 1 or 3
  uint32_t fields = kHashFiveTuple;  // of policy 3
  uint32_t seed = 1;                 // net.ipv4.fib_multipath_hash_seed; not 0
  // A router that forwards mixes policy 3's outer hash with that of the (absent) inner headers; the
  // sending host itself does not.
  bool forwarded = true;
};

class LinuxHash {
 public:
  // InvalidArgument: seed 0 (random per boot), a policy or a field that is not modelled.
  static absl::StatusOr<LinuxHash> Create(const LinuxHashOptions& options);
  uint32_t Hash(const FiveTuple& tuple) const;  // 31 bits

 private:
  explicit LinuxHash(const LinuxHashOptions& options);
  LinuxHashOptions options_;
  std::array<uint8_t, 16> key_{};  // SipHash's
};

// Hash-threshold selection over `count` next hops of equal weight; count > 0.
size_t SelectByThreshold(uint32_t hash31, size_t count);

// The same with weights, as of `nexthop via ... weight W`. Empty, or all weights 0: aborts.
class WeightedThresholds {
 public:
  explicit WeightedThresholds(absl::Span<const uint32_t> weights);
  size_t Select(uint32_t hash31) const;

 private:
  std::vector<int64_t> upper_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_LINUX_HASH_H_
