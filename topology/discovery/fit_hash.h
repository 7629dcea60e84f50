// Which hash of switch silicon (switch_hash.h) explains what was seen of a switch. CRC and
// exclusive-or are linear, so another seed only adds a constant to the result: for each polynomial,
// choice of fields and offset, the constants are tried, or solved for, not the seeds. Linux's is
// searched for by linux_seed.h. What has no known form may still be linear.
#ifndef WEFT_TOPOLOGY_DISCOVERY_FIT_HASH_H_
#define WEFT_TOPOLOGY_DISCOVERY_FIT_HASH_H_

#include <atomic>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "topology/ecmp/linux_seed.h"
#include "topology/ecmp/switch_hash.h"

namespace weft::topology {

struct FittedHash {
  SwitchHash hash;
  std::vector<uint32_t> member_at;  // [index that the hash gives]
  int64_t right = 0, wrong = 0;
  // Logarithm, base 10, of the chance that a hash that has nothing to do with the switch's agrees
  // with it so often: (1 / members)^right.
  double chance_log10 = 0;
};

// How well one hash explains what was seen; none: not all but a share `wrong_max` of it.
std::optional<FittedHash> TryHash(const SwitchHash& hash, uint32_t members,
                                  absl::Span<const HashObservation> seen, double wrong_max);

// The first that does, of CRC-16 (two), CRC-32, CRC-32C and exclusive-or over the five-tuple or
// parts of it, at every offset, by modulo, threshold or 64, 128, 256 or 512 buckets. Those like
// `before`, of other switches, are tried first, with any seed. None soon after `ends` is set.
std::optional<FittedHash> FitSilicon(uint32_t members, absl::Span<const HashObservation> seen,
                                     absl::Span<const SwitchHash> before = {},
                                     double wrong_max = 0.02,
                                     const std::atomic<bool>* ends = nullptr);

// A linear map that explains it (LinearHash), of an unknown polynomial or order of fields for
// instance, if `members` is a power of two. None where what was seen does not determine one with
// a chance of error below 10^-3: each flow beyond those that determine it agrees by chance once in
// `members`.
std::optional<FittedHash> FitLinear(uint32_t members, absl::Span<const HashObservation> seen,
                                    double wrong_max);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_FIT_HASH_H_
