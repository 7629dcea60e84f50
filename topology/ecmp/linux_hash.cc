#include "topology/ecmp/linux_hash.h"

#include <sodium.h>

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace weft::topology {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the kernel compares and hashes words in the order of the machine");

// struct flow_keys from `basic` on; what is not hashed here stays zero.
struct FlowKeys {
  uint16_t network_protocol = 0;
  uint8_t protocol = 0;
  uint8_t padding = 0;
  uint32_t flow_label = 0;
  std::array<uint8_t, 16> vlans{};
  uint32_t key_id = 0;
  uint16_t source_port = 0, target_port = 0;  // network order, as the kernel keeps them
  std::array<uint8_t, 4> icmp{};
  std::array<uint8_t, 32> addresses{};  // v4: 4 + 4 bytes, v6: 16 + 16
  std::array<uint8_t, 4> tail{};        // the struct is a multiple of 8 bytes long
};
static_assert(sizeof(FlowKeys) == 72);
constexpr size_t kV4Length = 48, kV6Length = 72;

uint16_t NetworkOrder(uint16_t value) { return static_cast<uint16_t>(value << 8 | value >> 8); }

// Both directions of a connection look the same; addresses and ports are ordered each for itself.
void OrderDirections(FlowKeys& keys, bool v6) {
  uint8_t* source = keys.addresses.data();
  uint8_t* target = source + (v6 ? 16 : 4);
  bool swap = false;
  if (v6) {
    swap = std::memcmp(target, source, 16) < 0;
  } else {
    uint32_t source_word = 0, target_word = 0;
    std::memcpy(&source_word, source, 4);
    std::memcpy(&target_word, target, 4);
    swap = target_word < source_word;
  }
  if (swap) std::swap_ranges(source, target, target);
  if (keys.target_port < keys.source_port) std::swap(keys.source_port, keys.target_port);
}

// jhash_2words(a, b, 0) of include/linux/jhash.h (Bob Jenkins' lookup3, final mix only).
uint32_t JenkinsHash(uint32_t a, uint32_t b) {
  constexpr uint32_t kInitial = 0xdeadbeef + (2 << 2);
  uint32_t c = kInitial;
  a += kInitial;
  b += kInitial;
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

int64_t UpperBound(uint64_t weight_so_far, uint64_t total) {
  return static_cast<int64_t>(((weight_so_far << 31) + total / 2) / total) - 1;
}

}  // namespace

absl::StatusOr<LinuxHash> LinuxHash::Create(const LinuxHashOptions& options) {
  if (options.seed == 0) {
    return absl::InvalidArgumentError(
        "seed 0 means one that the router drew at boot, which cannot be predicted: set "
        "net.ipv4.fib_multipath_hash_seed, or ask the router with `ip route get`");
  }
  if (options.policy != 0 && options.policy != 1 && options.policy != 3) {
    return absl::InvalidArgumentError(absl::StrCat("fib_multipath_hash_policy ", options.policy,
                                                   " is not modelled; 0, 1 and 3 are"));
  }
  constexpr uint32_t kKnown = kHashFiveTuple | kHashFlowLabel;
  if (options.policy == 3 && (options.fields == 0 || (options.fields & ~kKnown) != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fib_multipath_hash_fields 0x%x: only bits of 0x%x are modelled, and one "
                        "at least is needed",
                        options.fields, kKnown));
  }
  return LinuxHash(options);
}

LinuxHash::LinuxHash(const LinuxHashOptions& options) : options_(options) {
  for (size_t i = 0; i < key_.size(); i += 4) std::memcpy(key_.data() + i, &options.seed, 4);
}

uint32_t LinuxHash::Hash(const FiveTuple& tuple) const {
  uint32_t fields = options_.fields;
  if (options_.policy == 1) fields = kHashFiveTuple;
  if (options_.policy == 0) fields = kHashSourceAddress | kHashTargetAddress;
  bool v6 = tuple.source.v6;
  if (options_.policy == 0 && v6) fields |= kHashProtocol | kHashFlowLabel;

  FlowKeys keys;
  size_t size = tuple.source.size();
  if (fields & kHashSourceAddress) {
    std::memcpy(keys.addresses.data(), tuple.source.bytes.data(), size);
  }
  if (fields & kHashTargetAddress) {
    std::memcpy(keys.addresses.data() + size, tuple.target.bytes.data(), size);
  }
  if (fields & kHashProtocol) keys.protocol = tuple.protocol;
  if ((fields & kHashFlowLabel) && v6) {
    // Dissected from a packet the label is in the machine's order; elsewhere as it is on the wire.
    bool dissected = options_.policy == 3 && options_.forwarded;
    keys.flow_label = dissected ? tuple.flow_label : __builtin_bswap32(tuple.flow_label);
  }
  if (fields & kHashSourcePort) keys.source_port = NetworkOrder(tuple.source_port);
  if (fields & kHashTargetPort) keys.target_port = NetworkOrder(tuple.target_port);
  OrderDirections(keys, v6);

  std::array<uint8_t, crypto_shorthash_BYTES> digest;
  static_assert(crypto_shorthash_KEYBYTES == 16 && crypto_shorthash_BYTES == 8);
  crypto_shorthash(digest.data(), reinterpret_cast<const uint8_t*>(&keys),
                   v6 ? kV6Length : kV4Length, key_.data());
  uint32_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof(hash));
  if (hash == 0) hash = 1;
  if (options_.policy == 3 && options_.forwarded) hash = JenkinsHash(hash, 0);
  return hash >> 1;
}

size_t SelectByThreshold(uint32_t hash31, size_t count) {
  WEFT_CHECK(count > 0, "no next hop");
  auto hash = static_cast<int64_t>(hash31);
  size_t guess = (static_cast<uint64_t>(hash31) * count) >> 31;
  while (guess > 0 && hash <= UpperBound(guess, count)) --guess;
  while (guess + 1 < count && hash > UpperBound(guess + 1, count)) ++guess;
  return guess;
}

WeightedThresholds::WeightedThresholds(absl::Span<const uint32_t> weights) {
  uint64_t total = 0, so_far = 0;
  for (uint32_t weight : weights) total += weight;
  WEFT_CHECK(total > 0, weights.size() << " next hops of weight 0");
  for (uint32_t weight : weights) upper_.push_back(UpperBound(so_far += weight, total));
}

size_t WeightedThresholds::Select(uint32_t hash31) const {
  size_t i = 0;
  while (i + 1 < upper_.size() && static_cast<int64_t>(hash31) > upper_[i]) ++i;
  return i;
}

}  // namespace weft::topology
