// How a switch picks one of its equal next hops for a packet: families of hashes as silicon has
// them, and Linux's own.
//
// Vendors do not publish their exact recipes; what is public of them (Broadcom's RTAG7, the SAI
// attributes ECMP_HASH_ALGORITHM and _SEED) has this shape: chosen fields of the header, a CRC or
// an exclusive-or over them that starts from a seed, an offset at which bits of the result are
// taken, and those modulo the number of members, or through a table of buckets. Of an
// unknown recipe what it does is learned (learned_hash.h); such a hash knows some flows only.
//
// CRC and exclusive-or are linear over bits: another seed only exchanges the results in a fixed
// pattern (hash_a(x) = hash_b(x) xor constant). Where the numbers of members are powers of two,
// tiers that differ only in their seeds stay polarised: of the flows that meet in a switch, all
// take one way on. Another polynomial or another offset cures it (Zhang et al., "Hashing Linearity
// Enables Relative Path Control in Data Centers", ATC'21). See PerTierHash().
#ifndef WEFT_TOPOLOGY_ECMP_SWITCH_HASH_H_
#define WEFT_TOPOLOGY_ECMP_SWITCH_HASH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "topology/ecmp/five_tuple.h"
#include "topology/ecmp/learned_hash.h"
#include "topology/ecmp/linux_hash.h"

namespace weft::topology {

enum class HashFunction : uint8_t {
  kLinux,       // linux_hash.h: SipHash; with kThreshold selection
  kCrc16Ccitt,  // polynomial 0x1021, as in X.25 and HDLC
  kCrc16Arc,    // polynomial 0x8005, reflected
  kCrc32,       // Ethernet's, polynomial 0x04C11DB7, reflected
  kCrc32c,      // Castagnoli's, polynomial 0x1EDC6F41, reflected
  kXor16,       // the exclusive-or of all 16-bit words
  kMix,         // SplitMix64's finaliser over everything: as good as random, for comparison
  kLinear,      // learned: a linear map
  kTable,       // learned: the next hops of single flows
};

enum class HashSelect : uint8_t {
  kModulo,     // hash % members
  kThreshold,  // equal shares of the range of the hash, in order
  kResilient,  // hash % buckets; a member that fails gives away only its own buckets
};

struct SwitchHashOptions {
  HashFunction function = HashFunction::kCrc32;
  HashSelect select = HashSelect::kModulo;
  uint32_t seed = 0;  // where the CRC or exclusive-or starts; Linux': its sysctl, then not 0
  uint32_t fields = kHashFiveTuple;  // of HashField
  int offset = 0;                    // bits of the result are taken from this one up, 0..31,
                                     // rotated within its width
  uint32_t buckets = 256;            // kResilient
  int linux_policy = 3;              // kLinux
  // kLinear, kTable: what was learned. A table without flows is that of a switch of which nothing
  // is known.
  std::shared_ptr<const LinearHash> linear;
  std::shared_ptr<const HashTable> table;
};

// An immutable value.
class SwitchHash {
 public:
  // InvalidArgument names the option that is out of range, with the range.
  static absl::StatusOr<SwitchHash> Create(const SwitchHashOptions& options);

  uint32_t Hash(const FiveTuple& tuple) const;
  // Whether Select() is what the switch does. Of a flow that a learned hash does not know it is one
  // index or another, as by chance.
  bool Knows(const FiveTuple& tuple, size_t count) const;
  bool KnowsAll() const {
    return options_.function != HashFunction::kLinear && options_.function != HashFunction::kTable;
  }
  // An index below `count`, the number of equal next hops; count > 0.
  size_t Select(const FiveTuple& tuple, size_t count) const;
  // For a group that was built with alive.size() members, some of which have failed since: with
  // kResilient flows of the others stay, else as Select() over those alive. Aborts: none is.
  size_t SelectAlive(const FiveTuple& tuple, absl::Span<const bool> alive) const;

  const SwitchHashOptions& options() const { return options_; }
  int width() const { return width_; }  // bits of Hash()
  // Whether hash(a) ^ hash(b) depends on a ^ b alone.
  bool linear() const;

 private:
  explicit SwitchHash(const SwitchHashOptions& options);
  size_t Pick(uint32_t hash, size_t count) const;
  std::optional<uint32_t> Learned(const FiveTuple& tuple, size_t count) const;

  SwitchHashOptions options_;
  int width_ = 32;
  std::optional<LinuxHash> linux_;
};

// "crc32", "xor16", "linux" and so on, and back; InvalidArgument lists them all.
absl::string_view ToString(HashFunction function);
absl::StatusOr<HashFunction> ParseHashFunction(absl::string_view text);

// Settings for switches of a tier (1: leaf) that do not polarise: each tier has a polynomial of its
// own and an offset of its own; the seed differs per switch.
SwitchHashOptions PerTierHash(int tier, uint32_t seed);

// Which member owns a bucket. The table is filled as Linux' resilient next-hop groups are
// (net/ipv4/nexthop.c; vendors' are alike): equal consecutive shares, the last member's first;
// buckets of those that are not alive go, in order, to those that then have less than their share,
// the last first. At least one must be alive.
size_t ResilientOwner(uint32_t bucket, uint32_t buckets, absl::Span<const bool> alive);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_SWITCH_HASH_H_
