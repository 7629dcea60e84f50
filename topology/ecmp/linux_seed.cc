#include "topology/ecmp/linux_seed.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

// Lanes of one call are compiled for what the processor has. Sanitizers cannot choose so early.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define WEFT_BY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WEFT_BY_PROCESSOR
#endif
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::topology {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kBatch = 4096;  // seeds of one call
// What is left of 2^11 seeds is looked at one by one.
constexpr double kDecidingBits = 11;
constexpr size_t kAlikeMost = 12, kAlikeLeast = 4;
constexpr size_t kHeadWords = 3;  // the same in all flows of a protocol
constexpr size_t kGlance = 64;    // observations that are looked at before all are
constexpr int64_t kGlanceWrong = 3;

// As wide as the widest registers. Everything that takes or gives one is inlined, so that how such
// values are passed does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
using Lanes = uint64_t __attribute__((vector_size(8 * kLanes)));
using HalfLanes = uint32_t __attribute__((vector_size(4 * kLanes)));
using WordLanes = uint32_t __attribute__((vector_size(8 * kLanes)));
constexpr size_t kWordLanes = 2 * kLanes;
static_assert(kBatch % kWordLanes == 0);

uint64_t PortBytes(uint16_t port) { return static_cast<uint64_t>(port << 8 | port >> 8) & 0xFFFF; }

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

WEFT_INLINE SipState Begin(Lanes seed, const uint64_t* head) {
  const Lanes key = seed | seed << 32;
  SipState s{key ^ 0x736f6d6570736575, key ^ 0x646f72616e646f6d, key ^ 0x6c7967656e657261,
             key ^ 0x7465646279746573};
  for (size_t i = 0; i < kHeadWords; ++i) Feed(s, head[i]);
  return s;
}

WEFT_INLINE Lanes Finish(SipState s, const uint64_t* tail, size_t count) {
  for (size_t i = 0; i < count; ++i) Feed(s, tail[i]);
  s.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) Round(s);
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

WEFT_INLINE WordLanes Turned(WordLanes value, int bits) {
  return value << bits | value >> (32 - bits);
}

// Jenkins' final mix of (hash, 0).
WEFT_INLINE WordLanes Mix(WordLanes hash) {
  constexpr uint32_t kInitial = 0xdeadbeef + (2 << 2);
  WordLanes a = hash + kInitial, b = (hash & 0) + kInitial, c = b;
  c = (c ^ b) - Turned(b, 14);
  a = (a ^ c) - Turned(c, 11);
  b = (b ^ a) - Turned(a, 25);
  c = (c ^ b) - Turned(b, 16);
  a = (a ^ c) - Turned(c, 4);
  b = (b ^ a) - Turned(a, 14);
  c = (c ^ b) - Turned(b, 24);
  return c;
}

WEFT_INLINE Lanes Widened(const uint32_t* values) {
  HalfLanes half;
  std::memcpy(&half, values, sizeof(half));
  return __builtin_convertvector(half, Lanes);
}

// Flows of one protocol and family, as HashSeeds() reads them: `words` each, one behind the other.
struct FlowTable {
  const uint64_t* words = nullptr;
  size_t words_each = 0, flows = 0;
  bool mixes = false;
};

// hashes[flow * count + seed]: 32 bits. `count` is a multiple of kWordLanes.
WEFT_BY_PROCESSOR void HashSeeds(const uint32_t* seeds, size_t count, const FlowTable& table,
                                 uint32_t* hashes) {
  for (size_t i = 0; i < count; i += kLanes) {
    const SipState state = Begin(Widened(seeds + i), table.words);
    for (size_t flow = 0; flow < table.flows; ++flow) {
      const Lanes hash = Finish(state, table.words + flow * table.words_each + kHeadWords,
                                table.words_each - kHeadWords);
      const HalfLanes low = __builtin_convertvector(hash, HalfLanes);
      std::memcpy(hashes + flow * count + i, &low, sizeof(low));
    }
  }
  for (size_t i = 0; table.mixes && i < table.flows * count; i += kWordLanes) {
    WordLanes hash;
    std::memcpy(&hash, hashes + i, sizeof(hash));
    hash = Mix(hash);
    std::memcpy(hashes + i, &hash, sizeof(hash));
  }
}

// The index that each hash gives among `members`; differs[i] |= whether that is not wanted[i].
// `first`: gives `wanted`, and clears `differs`.
WEFT_BY_PROCESSOR void CompareIndexes(const uint32_t* hashes, size_t count, uint64_t members,
                                      bool first, uint32_t* wanted, uint32_t* differs) {
  for (size_t i = 0; i < count; i += kLanes) {
    const Lanes wide = (Widened(hashes + i) >> 1) * members >> 31;
    const HalfLanes index = __builtin_convertvector(wide, HalfLanes);
    HalfLanes other = index, so_far = index ^ index;
    if (!first) {
      std::memcpy(&other, wanted + i, sizeof(other));
      std::memcpy(&so_far, differs + i, sizeof(so_far));
    } else {
      std::memcpy(wanted + i, &index, sizeof(index));
    }
    so_far |= index ^ other;
    std::memcpy(differs + i, &so_far, sizeof(so_far));
  }
}

size_t WholeLanes(size_t count) { return (count + kWordLanes - 1) / kWordLanes * kWordLanes; }

// Flows of a router that decide whether a seed is looked at.
size_t AlikeWanted(uint32_t members) {
  const double bits = std::log2(static_cast<double>(members));
  return std::clamp(1 + static_cast<size_t>(std::ceil(kDecidingBits / bits)), kAlikeLeast,
                    kAlikeMost);
}

// As many as make the whole cheapest: one more flow of all seeds spares the later flows of most.
size_t JointWanted(uint32_t members, bool is_shared) {
  if (!is_shared || members > 3) return 2;
  return members == 3 ? 3 : 4;
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

LinuxSeedSearch::Words LinuxSeedSearch::WordsOf(const FiveTuple& tuple) {
  Words out;
  uint32_t source = 0, target = 0;
  std::memcpy(&source, tuple.source.bytes.data(), 4);
  std::memcpy(&target, tuple.target.bytes.data(), 4);
  uint64_t a = PortBytes(tuple.source_port), b = PortBytes(tuple.target_port);
  if (b < a) std::swap(a, b);
  out.word[0] = uint64_t{tuple.protocol} << 16;
  out.word[kHeadWords] = a << 32 | b << 48;
  const bool v6 = tuple.source.v6;
  const size_t size = tuple.source.size();
  // In the order that the kernel gives both directions: as words of the machine, or as bytes.
  const bool swap = v6 ? tuple.target.bytes < tuple.source.bytes : target < source;
  std::array<uint8_t, 40> addresses{};  // behind 4 bytes of ICMP
  std::memcpy(addresses.data() + 4, (swap ? tuple.target : tuple.source).bytes.data(), size);
  std::memcpy(addresses.data() + 4 + size, (swap ? tuple.source : tuple.target).bytes.data(), size);
  out.count = kHeadWords + (v6 ? 7 : 4);
  for (size_t i = kHeadWords + 1; i + 1 < out.count; ++i) {
    std::memcpy(&out.word[i], addresses.data() + 8 * (i - kHeadWords - 1), 8);
  }
  // The last with the length.
  out.word[out.count - 1] = uint64_t{v6 ? 72u : 48u} << 56;
  return out;
}

LinuxSeedSearch::LinuxSeedSearch(std::vector<LinuxRouter> routers, int attempt)
    : routers_(std::move(routers)), attempt_(attempt) {
  MakePlans();
}

void LinuxSeedSearch::MakePlans() {
  using Class = std::vector<Words>;  // flows of one member, at each of one or two routers
  std::vector<std::map<Words, uint32_t>> member(routers_.size());
  for (size_t router = 0; router < routers_.size(); ++router) {
    for (const HashObservation& one : routers_[router].seen) {
      if (one.member < routers_[router].members) member[router][WordsOf(one.tuple)] = one.member;
    }
  }
  const auto largest = [](std::map<std::pair<uint32_t, uint32_t>, Class> classes) {
    Class out;
    for (auto& [_, flows] : classes) {
      if (flows.size() > out.size()) out = std::move(flows);
    }
    return out;
  };
  const auto rotate = [&](Class& flows, size_t by) {
    if (flows.empty()) return;
    const size_t begin = static_cast<size_t>(attempt_) * by % flows.size();
    std::rotate(flows.begin(), flows.begin() + static_cast<ptrdiff_t>(begin), flows.end());
  };
  plans_.assign(routers_.size(), {});
  std::vector<char> done(routers_.size());
  const auto plan = [&](size_t router, const Class& shared, size_t first_joint, size_t joint) {
    done[router] = 1;
    Plan& out = plans_[router];
    for (size_t i = 0; i < joint; ++i) out.joint.push_back(first_joint + i);
    // The rest: what took the same member as the shared ones, as long as there is some.
    const uint32_t wanted = member[router].at(shared[0]);
    Class rest;
    for (const auto& [words, at] : member[router]) {
      const bool is_joint =
          std::find(shared.begin(), shared.begin() + static_cast<ptrdiff_t>(joint), words) !=
          shared.begin() + static_cast<ptrdiff_t>(joint);
      if (at == wanted && !is_joint && words.count == shared[0].count) rest.push_back(words);
    }
    rotate(rest, kAlikeMost);
    const size_t alike = AlikeWanted(routers_[router].members);
    for (size_t i = 0; i < rest.size() && joint + out.later.size() < alike; ++i) {
      out.later.push_back(rest[i]);
    }
  };
  for (size_t router = 0; router < routers_.size(); ++router) {
    if (done[router] || routers_[router].members < 2) continue;
    // With whom it shares most flows that took one member at either.
    Class best;
    size_t partner = router;
    for (size_t other = router + 1; other < routers_.size(); ++other) {
      if (done[other] || routers_[other].members < 2) continue;
      std::map<std::pair<uint32_t, uint32_t>, Class> classes;
      for (const auto& [words, at] : member[router]) {
        auto there = member[other].find(words);
        if (there != member[other].end()) classes[{at, there->second}].push_back(words);
      }
      Class flows = largest(std::move(classes));
      if (flows.size() <= best.size()) continue;
      best = std::move(flows);
      partner = other;
    }
    const uint32_t fewest = std::min(routers_[router].members, routers_[partner].members);
    if (partner == router || best.size() < JointWanted(fewest, true)) {
      partner = router;
      std::map<std::pair<uint32_t, uint32_t>, Class> classes;
      for (const auto& [words, at] : member[router]) classes[{at, 0}].push_back(words);
      best = largest(std::move(classes));
    }
    const bool is_shared = partner != router;
    const size_t joint = JointWanted(fewest, is_shared);
    if (best.size() < std::max(joint, is_shared ? joint : kAlikeLeast)) continue;
    rotate(best, joint);
    const size_t first = joint_.size();
    joint_.insert(joint_.end(), best.begin(), best.begin() + static_cast<ptrdiff_t>(joint));
    plan(router, best, first, joint);
    if (is_shared) plan(partner, best, first, joint);
  }
}

std::optional<SwitchHash> LinuxSeedSearch::Check(size_t router, uint32_t seed, int policy,
                                                 double wrong_max) const {
  SwitchHashOptions options{HashFunction::kLinux, HashSelect::kThreshold, seed};
  options.linux_policy = policy;
  absl::StatusOr<SwitchHash> hash = SwitchHash::Create(options);
  if (!hash.ok()) return std::nullopt;
  const LinuxRouter& one = routers_[router];
  const auto wrong_most = static_cast<int64_t>(wrong_max * static_cast<double>(one.seen.size()));
  // A glance first: mostly each index has one member, or the seed is wrong. What each index has
  // first may itself be seen wrongly; another attempt begins elsewhere.
  std::vector<uint32_t> first(one.members, one.members);
  int64_t wrong = 0;
  for (size_t i = 0; i < std::min(one.seen.size(), kGlance); ++i) {
    const HashObservation& at =
        one.seen[(i + static_cast<size_t>(attempt_) * kGlance) % one.seen.size()];
    uint32_t& member = first[hash->Select(at.tuple, one.members)];
    if (member == one.members) member = at.member;
    wrong += member != at.member ? 1 : 0;
    if (wrong > kGlanceWrong + wrong_most) return std::nullopt;
  }
  const MemberOrder order = FitOrder(*hash, one.members, one.seen);
  if (order.wrong > wrong_most) return std::nullopt;
  return *hash;
}

// Seeds of one call, and scratch.
class LinuxSeedSearch::Batch {
 public:
  explicit Batch(const LinuxSeedSearch& search)
      : search_(search), hashes_(std::max<size_t>(1, search.joint_.size()) * kBatch) {}

  void Take(uint64_t begin, uint64_t end, bool mixes) {
    seeds_.clear();
    for (uint64_t seed = begin; seed < end; ++seed) {
      if (seed != 0 && seed <= UINT32_MAX) seeds_.push_back(static_cast<uint32_t>(seed));
    }
    count_ = seeds_.size();
    mixes_ = mixes;
    seeds_.resize(WholeLanes(count_), 1);
    // Runs of flows of one family.
    for (size_t at = 0; at < search_.joint_.size();) {
      size_t to = at;
      while (to < search_.joint_.size() && search_.joint_[to].count == search_.joint_[at].count &&
             search_.joint_[to].word[0] == search_.joint_[at].word[0]) {
        ++to;
      }
      Hash(seeds_, absl::MakeConstSpan(search_.joint_).subspan(at, to - at),
           hashes_.data() + at * seeds_.size());
      at = to;
    }
  }

  // Seeds under which all flows of a plan have one index.
  const std::vector<uint32_t>& Left(const Plan& plan, uint32_t members) {
    wanted_.resize(seeds_.size());
    differs_.resize(seeds_.size());
    for (size_t i = 0; i < plan.joint.size(); ++i) {
      CompareIndexes(hashes_.data() + plan.joint[i] * seeds_.size(), seeds_.size(), members, i == 0,
                     wanted_.data(), differs_.data());
    }
    left_.assign(seeds_.begin(), seeds_.begin() + static_cast<ptrdiff_t>(count_));
    Keep();
    for (const Words& flow : plan.later) {
      if (left_.empty()) break;
      const size_t count = left_.size();
      left_.resize(WholeLanes(count), 1);
      wanted_.resize(left_.size());
      differs_.assign(left_.size(), 0);
      one_.resize(left_.size());
      Hash(left_, absl::MakeConstSpan(&flow, 1), one_.data());
      CompareIndexes(one_.data(), left_.size(), members, false, wanted_.data(), differs_.data());
      left_.resize(count);
      Keep();
    }
    return left_;
  }

 private:
  void Keep() {
    size_t kept = 0;
    for (size_t i = 0; i < left_.size(); ++i) {
      left_[kept] = left_[i];
      wanted_[kept] = wanted_[i];
      kept += differs_[i] == 0 ? 1 : 0;
    }
    left_.resize(kept);
    wanted_.resize(kept);
  }

  void Hash(const std::vector<uint32_t>& seeds, absl::Span<const Words> flows, uint32_t* hashes) {
    words_.clear();
    for (const Words& flow : flows) {
      words_.insert(words_.end(), flow.word.begin(),
                    flow.word.begin() + static_cast<ptrdiff_t>(flow.count));
    }
    HashSeeds(seeds.data(), seeds.size(), {words_.data(), flows[0].count, flows.size(), mixes_},
              hashes);
  }

  const LinuxSeedSearch& search_;
  bool mixes_ = true;
  size_t count_ = 0;  // of seeds_; more fill the last lanes
  std::vector<uint32_t> seeds_;
  std::vector<uint32_t> hashes_;  // [joint flow][seed]
  std::vector<uint32_t> left_, wanted_, differs_, one_;
  std::vector<uint64_t> words_;
};

std::vector<LinuxSeedSearch::Found> LinuxSeedSearch::SearchAll(uint32_t first, uint64_t count,
                                                               int policy, double wrong_max) const {
  std::vector<Found> out;
  std::vector<char> is_found(routers_.size());
  Batch batch(*this);
  for (uint64_t begin = first; begin < first + count; begin += kBatch) {
    batch.Take(begin, std::min<uint64_t>(begin + kBatch, first + count), policy == 3);
    for (size_t router = 0; router < routers_.size(); ++router) {
      if (is_found[router] || plans_[router].joint.empty()) continue;
      for (uint32_t seed : batch.Left(plans_[router], routers_[router].members)) {
        std::optional<SwitchHash> hash = Check(router, seed, policy, wrong_max);
        if (!hash.has_value()) continue;
        out.push_back({router, *hash});
        is_found[router] = 1;
        break;
      }
    }
  }
  return out;
}

std::optional<SwitchHash> LinuxSeedSearch::Search(uint32_t first, uint64_t count, int policy,
                                                  double wrong_max) const {
  // In parts, so that what comes after the seed is not searched.
  constexpr uint64_t kPart = 16 * kBatch;
  for (uint64_t done = 0; done < count && first + done <= UINT32_MAX; done += kPart) {
    std::vector<Found> found = SearchAll(static_cast<uint32_t>(first + done),
                                         std::min(kPart, count - done), policy, wrong_max);
    if (!found.empty()) return found[0].hash;
  }
  return std::nullopt;
}

}  // namespace weft::topology
