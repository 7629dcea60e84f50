#include "topology/ecmp/linux_seed.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/status.h"
#include "topology/ecmp/linux_hash.h"

// Lanes of one call are compiled for what the processor has. Sanitizers cannot choose so early.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define WEFT_BY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WEFT_BY_PROCESSOR
#endif
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::topology {
namespace {

constexpr size_t kSearchedBy = 64;
constexpr size_t kAlikeMost = 12;
constexpr size_t kLanes = 8;
constexpr size_t kBatch = 4096;  // seeds of one call

// As wide as the widest registers. Everything that takes or gives one is inlined, so that how such
// values are passed does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
using Lanes = uint64_t __attribute__((vector_size(8 * kLanes)));

// What SipHash reads of a flow, as linux_hash.cc lays it out: words 0 to 2 are the same for all
// flows of a protocol.
struct FlowWords {
  std::array<uint64_t, 3> head{};
  std::array<uint64_t, 7> tail{};  // the last of `tails` with the length
  size_t tails = 4;
};

uint64_t PortBytes(uint16_t port) { return static_cast<uint64_t>(port << 8 | port >> 8) & 0xFFFF; }

FlowWords WordsOf(const FiveTuple& tuple) {
  FlowWords out;
  uint32_t source = 0, target = 0;
  std::memcpy(&source, tuple.source.bytes.data(), 4);
  std::memcpy(&target, tuple.target.bytes.data(), 4);
  if (target < source) std::swap(source, target);
  uint64_t a = PortBytes(tuple.source_port), b = PortBytes(tuple.target_port);
  if (b < a) std::swap(a, b);
  out.head[0] = uint64_t{tuple.protocol} << 16;
  out.tail[0] = a << 32 | b << 48;
  const bool v6 = tuple.source.v6;
  const size_t size = tuple.source.size();
  // In the order that the kernel gives both directions: as words of the machine, or as bytes.
  const auto order = [&](const IpAddress& address) {
    return v6 ? address.bytes
              : std::array<uint8_t, 16>{address.bytes[3], address.bytes[2], address.bytes[1],
                                        address.bytes[0]};
  };
  const bool swap = order(tuple.target) < order(tuple.source);
  std::array<uint8_t, 40> addresses{};  // behind 4 bytes of ICMP
  std::memcpy(addresses.data() + 4, (swap ? tuple.target : tuple.source).bytes.data(), size);
  std::memcpy(addresses.data() + 4 + size, (swap ? tuple.source : tuple.target).bytes.data(), size);
  out.tails = v6 ? 7 : 4;
  for (size_t i = 1; i + 1 < out.tails; ++i) {
    std::memcpy(&out.tail[i], addresses.data() + 8 * (i - 1), 8);
  }
  out.tail[out.tails - 1] = uint64_t{v6 ? 72u : 48u} << 56;
  return out;
}

struct SipState {
  Lanes v0, v1, v2, v3;
};

WEFT_INLINE Lanes Rotate(Lanes value, int bits) { return value << bits | value >> (64 - bits); }

WEFT_INLINE void Round(SipState& s) {
  s.v0 += s.v1;
  s.v2 += s.v3;
  s.v1 = Rotate(s.v1, 13) ^ s.v0;
  s.v3 = Rotate(s.v3, 16) ^ s.v2;
  s.v0 = Rotate(s.v0, 32);
  s.v2 += s.v1;
  s.v0 += s.v3;
  s.v1 = Rotate(s.v1, 17) ^ s.v2;
  s.v3 = Rotate(s.v3, 21) ^ s.v0;
  s.v2 = Rotate(s.v2, 32);
}

WEFT_INLINE void Feed(SipState& s, uint64_t word) {
  s.v3 ^= word;
  Round(s);
  Round(s);
  s.v0 ^= word;
}

WEFT_INLINE SipState Begin(Lanes seed, const FlowWords& words) {
  const Lanes key = seed | seed << 32;
  SipState s{key ^ 0x736f6d6570736575, key ^ 0x646f72616e646f6d, key ^ 0x6c7967656e657261,
             key ^ 0x7465646279746573};
  for (uint64_t word : words.head) Feed(s, word);
  return s;
}

WEFT_INLINE Lanes Finish(SipState s, const FlowWords& words) {
  for (size_t i = 0; i < words.tails; ++i) Feed(s, words.tail[i]);
  s.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) Round(s);
  return (s.v0 ^ s.v1 ^ s.v2 ^ s.v3) & 0xFFFFFFFF;
}

WEFT_INLINE Lanes Turned(Lanes value, int bits) {
  return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF;
}

// Jenkins' final mix of (hash, 0), of which only the low 32 bits of a lane count.
WEFT_INLINE Lanes Mix(Lanes hash) {
  constexpr uint64_t kInitial = 0xdeadbeef + (2 << 2);
  constexpr uint64_t kMask = 0xFFFFFFFF;
  Lanes a = (hash + kInitial) & kMask, b = (hash & 0) + kInitial, c = b;
  c = ((c ^ b) - Turned(b, 14)) & kMask;
  a = ((a ^ c) - Turned(c, 11)) & kMask;
  b = ((b ^ a) - Turned(a, 25)) & kMask;
  c = ((c ^ b) - Turned(b, 16)) & kMask;
  a = ((a ^ c) - Turned(c, 4)) & kMask;
  b = ((b ^ a) - Turned(a, 14)) & kMask;
  c = ((c ^ b) - Turned(b, 24)) & kMask;
  return c;
}

struct Pair {
  FlowWords a, b;  // flows of one member
  uint64_t members = 0;
  bool mixes = false;
};

// The index that each seed's hash gives flow a is that of flow b: [seed] 1, else 0. `count` is a
// multiple of kLanes.
WEFT_BY_PROCESSOR void Compare(const uint64_t* seeds, size_t count, const Pair& pair,
                               uint64_t* same) {
  for (size_t i = 0; i < count; i += kLanes) {
    Lanes seed;
    std::memcpy(&seed, seeds + i, sizeof(seed));
    const SipState state = Begin(seed, pair.a);
    Lanes a = Finish(state, pair.a), b = Finish(state, pair.b);
    if (pair.mixes) {
      a = Mix(a);
      b = Mix(b);
    }
    a = (a >> 1) * pair.members >> 31;
    b = (b >> 1) * pair.members >> 31;
    const Lanes equal = (a == b) & 1;
    std::memcpy(same + i, &equal, sizeof(equal));
  }
}

}  // namespace

MemberOrder FitOrder(const SwitchHash& hash, uint32_t members,
                     absl::Span<const HashObservation> seen) {
  std::vector<std::vector<int64_t>> votes(members, std::vector<int64_t>(members));
  for (const HashObservation& one : seen) {
    if (one.member < members) ++votes[hash.Select(one.tuple, members)][one.member];
  }
  MemberOrder out;
  out.member_at.assign(members, 0);
  std::vector<char> index_done(members), member_done(members);
  for (uint32_t step = 0; step < members; ++step) {
    uint32_t index = 0, member = 0;
    int64_t most = -1;
    for (uint32_t i = 0; i < members; ++i) {
      for (uint32_t m = 0; m < members; ++m) {
        if (index_done[i] || member_done[m] || votes[i][m] <= most) continue;
        most = votes[i][m];
        index = i, member = m;
      }
    }
    index_done[index] = member_done[member] = 1;
    out.member_at[index] = member;
    out.right += most;
  }
  out.wrong = static_cast<int64_t>(seen.size()) - out.right;
  return out;
}

LinuxSeedSearch::LinuxSeedSearch(std::vector<HashObservation> seen, uint32_t members)
    : seen_(std::move(seen)), members_(members) {
  // Pairs of one member: each passes one seed of `members` that is wrong.
  std::vector<std::vector<FiveTuple>> by_member(members);
  for (size_t i = 0; i < seen_.size() && i < kSearchedBy; ++i) {
    if (seen_[i].member < members) by_member[seen_[i].member].push_back(seen_[i].tuple);
  }
  for (size_t at = 0; alike_.size() < kAlikeMost; at += 2) {
    const size_t before = alike_.size();
    for (const auto& flows : by_member) {
      if (at + 1 >= flows.size() || alike_.size() >= kAlikeMost) continue;
      alike_.push_back(flows[at]);
      alike_.push_back(flows[at + 1]);
    }
    if (alike_.size() == before) break;
  }
}

std::optional<SwitchHash> LinuxSeedSearch::Check(uint32_t seed, int policy,
                                                 double wrong_max) const {
  SwitchHashOptions options{HashFunction::kLinux, HashSelect::kThreshold, seed};
  options.linux_policy = policy;
  absl::StatusOr<SwitchHash> hash = SwitchHash::Create(options);
  if (!hash.ok()) return std::nullopt;
  const MemberOrder order = FitOrder(*hash, members_, seen_);
  if (static_cast<double>(order.wrong) > wrong_max * static_cast<double>(seen_.size())) {
    return std::nullopt;
  }
  return *hash;
}

std::optional<SwitchHash> LinuxSeedSearch::Search(uint32_t first, uint64_t count, int policy,
                                                  double wrong_max) const {
  if (alike_.size() < 4 || members_ < 2) return std::nullopt;
  std::vector<Pair> pairs;
  for (size_t i = 0; i + 1 < alike_.size(); i += 2) {
    pairs.push_back({WordsOf(alike_[i]), WordsOf(alike_[i + 1]), members_, policy == 3});
  }
  std::vector<uint64_t> seeds(kBatch), same(kBatch);
  for (uint64_t begin = first; begin < first + count; begin += kBatch) {
    const uint64_t end = std::min<uint64_t>(begin + kBatch, first + count);
    size_t left = 0;
    for (uint64_t seed = begin; seed < end; ++seed) {
      if (seed != 0 && seed <= UINT32_MAX) seeds[left++] = seed;
    }
    for (const Pair& pair : pairs) {
      const size_t whole = (left + kLanes - 1) / kLanes * kLanes;
      std::fill(seeds.begin() + static_cast<ptrdiff_t>(left),
                seeds.begin() + static_cast<ptrdiff_t>(whole), 0);
      Compare(seeds.data(), whole, pair, same.data());
      size_t kept = 0;
      for (size_t i = 0; i < left; ++i) {
        seeds[kept] = seeds[i];
        kept += same[i];
      }
      left = kept;
      if (left == 0) break;
    }
    for (size_t i = 0; i < left; ++i) {
      std::optional<SwitchHash> found = Check(static_cast<uint32_t>(seeds[i]), policy, wrong_max);
      if (found.has_value()) return found;
    }
  }
  return std::nullopt;
}

}  // namespace weft::topology
