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
// One seed of 2^16 passes the first flows, and is looked at with all that was seen.
constexpr double kDecidingBits = 16;
constexpr size_t kAlikeMost = 12, kAlikeLeast = 4;
constexpr size_t kHeadWords = 3;  // the same in all flows of a protocol
constexpr size_t kWordsMost = 10;
constexpr size_t kGlance = 64;  // observations that are looked at before all are
constexpr double kGlanceWrong = 3;

// As wide as the widest registers. Everything that takes or gives one is inlined, so that how such
// values are passed does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
using Lanes = uint64_t __attribute__((vector_size(8 * kLanes)));
using HalfLanes = uint32_t __attribute__((vector_size(4 * kLanes)));
using WordLanes = uint32_t __attribute__((vector_size(8 * kLanes)));
constexpr size_t kWordLanes = 2 * kLanes;
static_assert(kBatch % kWordLanes == 0);

uint64_t PortBytes(uint16_t port) { return static_cast<uint64_t>(port << 8 | port >> 8) & 0xFFFF; }

WEFT_INLINE Lanes Rotate(Lanes value, int bits) { return value << bits | value >> (64 - bits); }

// SipHash of kLanes seeds.
struct SipState {
  Lanes v0, v1, v2, v3;
};

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

// The last round, and the exclusive-or of the four words, in which v0 cancels out.
WEFT_INLINE Lanes LastRound(SipState s) {
  s.v0 += s.v1;
  s.v2 += s.v3;
  s.v1 = Rotate(s.v1, 13) ^ s.v0;
  s.v3 = Rotate(s.v3, 16) ^ s.v2;
  s.v2 += s.v1;
  return Rotate(s.v1, 17) ^ s.v2 ^ Rotate(s.v2, 32) ^ Rotate(s.v3, 21);
}

// Two independent chains, so that one computes while the other waits for its results.
struct SipPair {
  SipState a, b;
};

WEFT_INLINE SipState Keyed(Lanes seed) {
  const Lanes key = seed | seed << 32;
  return {key ^ 0x736f6d6570736575, key ^ 0x646f72616e646f6d, key ^ 0x6c7967656e657261,
          key ^ 0x7465646279746573};
}

WEFT_INLINE void Feed(SipPair& s, uint64_t word) {
  s.a.v3 ^= word;
  s.b.v3 ^= word;
  for (int i = 0; i < 2; ++i) {
    Round(s.a);
    Round(s.b);
  }
  s.a.v0 ^= word;
  s.b.v0 ^= word;
}

WEFT_INLINE void Finish(SipPair s, uint32_t* hashes) {
  s.a.v2 ^= 0xff;
  s.b.v2 ^= 0xff;
  for (int i = 0; i < 3; ++i) {
    Round(s.a);
    Round(s.b);
  }
  const HalfLanes a = __builtin_convertvector(LastRound(s.a), HalfLanes);
  const HalfLanes b = __builtin_convertvector(LastRound(s.b), HalfLanes);
  std::memcpy(hashes, &a, sizeof(a));
  std::memcpy(hashes + kLanes, &b, sizeof(b));
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

// Flows of one protocol and family, as HashSeeds() reads them: `words_each` words each, one behind
// the other, sorted. common[flow]: its words that are those of the flow before, kHeadWords at least
// and not all; of the first flow 0. `kept`: bit d is set where any flow has d words in common.
struct FlowTable {
  const uint64_t* words = nullptr;
  const uint8_t* common = nullptr;
  size_t words_each = 0, flows = 0;
  uint32_t kept = 0;
  bool mixes = false;
};

// hashes[flow * count + seed]: 32 bits. `count` is a multiple of kWordLanes. What neighbouring
// flows have in common is computed once.
WEFT_BY_PROCESSOR void HashSeeds(const uint32_t* seeds, size_t count, const FlowTable& table,
                                 uint32_t* hashes) {
  std::array<SipPair, kWordsMost> after;  // NOLINT: [words fed]; written before it is read
  for (size_t i = 0; i < count; i += kWordLanes) {
    for (size_t flow = 0; flow < table.flows; ++flow) {
      const uint64_t* words = table.words + flow * table.words_each;
      size_t fed = table.common[flow];
      SipPair state = fed > 0
                          ? after[fed]
                          : SipPair{Keyed(Widened(seeds + i)), Keyed(Widened(seeds + i + kLanes))};
      while (fed < table.words_each) {
        Feed(state, words[fed++]);
        if ((table.kept >> fed & 1) != 0) after[fed] = state;
      }
      Finish(state, hashes + flow * count + i);
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
WEFT_BY_PROCESSOR void CompareIndexes(const uint32_t* hashes, size_t count, uint32_t members,
                                      bool first, uint32_t* wanted, uint32_t* differs) {
  for (size_t i = 0; i < count; i += kWordLanes) {
    WordLanes hash;
    std::memcpy(&hash, hashes + i, sizeof(hash));
    hash >>= 1;
    // (hash * members) >> 31, in halves that 32 bits hold.
    const WordLanes index = ((hash >> 15) * members + ((hash & 0x7FFF) * members >> 15)) >> 16;
    WordLanes other = index, so_far = index ^ index;
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

// Joins each router with the one that saw most of the same flows, and chooses the flows.
class LinuxSeedSearch::Planner {
 public:
  Planner(const std::vector<LinuxRouter>& routers, int attempt)
      : routers_(routers), attempt_(static_cast<size_t>(attempt)), member_(routers.size()) {
    for (size_t router = 0; router < routers.size(); ++router) {
      for (const HashObservation& one : routers[router].seen) {
        if (one.member < routers[router].members) member_[router][WordsOf(one.tuple)] = one.member;
      }
    }
  }

  std::vector<Group> Make() {
    MakeGroups();
    ChooseByPorts();
    for (Draft& draft : drafts_) {
      if (draft.chosen == nullptr) ChooseLargest(draft);
    }
    std::vector<Group> out;
    for (const Draft& draft : drafts_) {
      if (draft.chosen != nullptr) out.push_back(Finished(draft));
    }
    return out;
  }

 private:
  using Class = std::vector<Words>;  // sorted flows of one member, at each of one or two routers
  struct Draft {
    std::vector<size_t> routers;  // one or two, with as many members
    size_t joint = 0;             // flows wanted
    std::map<std::pair<uint32_t, uint32_t>, Class> classes;
    const Class* chosen = nullptr;
    size_t first = 0;  // of chosen: the first of the joint flows
  };

  std::map<std::pair<uint32_t, uint32_t>, Class> Classes(size_t router, size_t other) const {
    std::map<std::pair<uint32_t, uint32_t>, Class> out;
    for (const auto& [words, at] : member_[router]) {
      auto there = member_[other].find(words);
      if (there != member_[other].end()) out[{at, there->second}].push_back(words);
    }
    return out;
  }

  // Flows of a class that can be chosen: of one router alone, enough to decide.
  static size_t Least(const Draft& draft) {
    return draft.routers.size() > 1 ? draft.joint : std::max(draft.joint, kAlikeLeast);
  }

  static size_t Largest(const std::map<std::pair<uint32_t, uint32_t>, Class>& classes) {
    size_t out = 0;
    for (const auto& [_, flows] : classes) out = std::max(out, flows.size());
    return out;
  }

  void MakeGroups() {
    std::vector<char> done(routers_.size());
    for (size_t router = 0; router < routers_.size(); ++router) {
      const uint32_t members = routers_[router].members;
      if (done[router] || members < 2) continue;
      Draft draft;
      draft.routers = {router};
      size_t most = JointWanted(members, true) - 1;
      for (size_t other = router + 1; other < routers_.size(); ++other) {
        if (done[other] || routers_[other].members != members) continue;
        auto classes = Classes(router, other);
        if (Largest(classes) <= most) continue;
        most = Largest(classes);
        draft.classes = std::move(classes);
        draft.routers = {router, other};
      }
      const bool is_shared = draft.routers.size() > 1;
      if (!is_shared) draft.classes = Classes(router, router);
      draft.joint = JointWanted(members, is_shared);
      for (size_t one : draft.routers) done[one] = 1;
      drafts_.push_back(std::move(draft));
    }
  }

  // Flows with the same ports begin alike, so that groups which take such share their first words:
  // ports that serve most groups, greedily. Another attempt takes others.
  void ChooseByPorts() {
    struct Choice {
      Draft* draft;
      const Class* flows;
      size_t first;
    };
    std::map<uint64_t, std::vector<Choice>> by_ports;  // one of each group
    for (Draft& draft : drafts_) {
      for (const auto& [_, flows] : draft.classes) {
        if (flows.size() < Least(draft)) continue;
        for (size_t i = 0; i + draft.joint <= flows.size(); ++i) {
          const uint64_t ports = flows[i].word[kHeadWords];
          if (flows[i + draft.joint - 1].word[kHeadWords] != ports) continue;
          auto& choices = by_ports[ports];
          if (!choices.empty() && choices.back().draft == &draft) continue;
          choices.push_back({&draft, &flows, i});
        }
      }
    }
    std::vector<const std::vector<Choice>*> order;
    for (const auto& [_, choices] : by_ports) order.push_back(&choices);
    std::stable_sort(order.begin(), order.end(),
                     [](const auto* a, const auto* b) { return a->size() > b->size(); });
    // Those that serve one group have nothing to share.
    for (size_t i = attempt_; i < order.size() && order[i]->size() > 1; ++i) {
      for (const Choice& choice : *order[i]) {
        if (choice.draft->chosen != nullptr) continue;
        choice.draft->chosen = choice.flows;
        choice.draft->first = choice.first;
      }
    }
  }

  void ChooseLargest(Draft& draft) const {
    for (const auto& [_, flows] : draft.classes) {
      if (flows.size() < Least(draft)) continue;
      if (draft.chosen == nullptr || flows.size() > draft.chosen->size()) draft.chosen = &flows;
    }
    if (draft.chosen == nullptr) return;
    draft.first = attempt_ * draft.joint % (draft.chosen->size() - draft.joint + 1);
  }

  Group Finished(const Draft& draft) const {
    Group out;
    out.members = routers_[draft.routers[0]].members;
    const Class& flows = *draft.chosen;
    const auto first = flows.begin() + static_cast<ptrdiff_t>(draft.first);
    out.joint.assign(first, first + static_cast<ptrdiff_t>(draft.joint));
    const size_t later = AlikeWanted(out.members) - std::min(AlikeWanted(out.members), draft.joint);
    const auto is_joint = [&](const Words& words) {
      return std::find(out.joint.begin(), out.joint.end(), words) != out.joint.end();
    };
    Class rest;
    for (const Words& words : flows) {
      if (!is_joint(words) && words.count == out.joint[0].count) rest.push_back(words);
    }
    out.later = Some(rest, later);
    for (size_t router : draft.routers) {
      Group::Router own{router, {}};
      // What took the same member there, where too few did so at both.
      const uint32_t wanted = member_[router].at(out.joint[0]);
      Class own_rest;
      for (const auto& [words, at] : member_[router]) {
        if (at != wanted || is_joint(words) || words.count != out.joint[0].count) continue;
        if (std::find(out.later.begin(), out.later.end(), words) == out.later.end()) {
          own_rest.push_back(words);
        }
      }
      own.later = Some(own_rest, later - out.later.size());
      out.routers.push_back(std::move(own));
    }
    return out;
  }

  // `most` of them, from elsewhere at each attempt.
  Class Some(const Class& flows, size_t most) const {
    Class out;
    for (size_t i = 0; i < std::min(most, flows.size()); ++i) {
      out.push_back(flows[(attempt_ * kAlikeMost + i) % flows.size()]);
    }
    return out;
  }

  const std::vector<LinuxRouter>& routers_;
  const size_t attempt_;
  std::vector<std::map<Words, uint32_t>> member_;  // [router]
  std::vector<Draft> drafts_;
};

void LinuxSeedSearch::MakePlans() {
  groups_ = Planner(routers_, attempt_).Make();
  for (const Group& group : groups_) {
    joint_.insert(joint_.end(), group.joint.begin(), group.joint.end());
  }
  std::sort(joint_.begin(), joint_.end());
  joint_.erase(std::unique(joint_.begin(), joint_.end()), joint_.end());
  for (Group& group : groups_) {
    for (const Words& words : group.joint) {
      const auto at = std::lower_bound(joint_.begin(), joint_.end(), words);
      group.joint_at.push_back(static_cast<size_t>(at - joint_.begin()));
    }
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
  // A glance first: the best member of each index explains most, or the seed is wrong.
  const size_t count = std::min(one.seen.size(), kGlance);
  std::vector<uint32_t> votes(size_t{one.members} * one.members);
  for (size_t i = 0; i < count; ++i) {
    const HashObservation& at =
        one.seen[(i + static_cast<size_t>(attempt_) * kGlance) % one.seen.size()];
    if (at.member >= one.members) continue;
    ++votes[hash->Select(at.tuple, one.members) * one.members + at.member];
  }
  size_t right = 0;
  for (size_t row = 0; row < votes.size(); row += one.members) {
    const auto begin = votes.begin() + static_cast<ptrdiff_t>(row);
    right += *std::max_element(begin, begin + one.members);
  }
  if (static_cast<double>(count - right) >
      kGlanceWrong + 2 * wrong_max * static_cast<double>(count)) {
    return std::nullopt;
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
    // Runs of flows of one family and protocol.
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

  // Seeds under which all flows that the group's routers have in common have one index.
  const std::vector<uint32_t>& Left(const Group& group) {
    wanted_.resize(seeds_.size());
    differs_.resize(seeds_.size());
    for (size_t i = 0; i < group.joint_at.size(); ++i) {
      CompareIndexes(hashes_.data() + group.joint_at[i] * seeds_.size(), seeds_.size(),
                     group.members, i == 0, wanted_.data(), differs_.data());
    }
    left_.assign(seeds_.begin(), seeds_.begin() + static_cast<ptrdiff_t>(count_));
    Keep();
    Sift(group.later, group.members);
    left_of_group_ = left_;
    wanted_of_group_ = wanted_;
    return left_of_group_;
  }

  // The seeds among those that Left() gave last under which the router's own flows do as well.
  const std::vector<uint32_t>& LeftOf(const Group& group, const Group::Router& router) {
    left_ = left_of_group_;
    wanted_ = wanted_of_group_;
    Sift(router.later, group.members);
    return left_;
  }

 private:
  void Sift(const std::vector<Words>& flows, uint32_t members) {
    for (const Words& flow : flows) {
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
  }

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
    common_.clear();
    FlowTable table;
    for (const Words& flow : flows) {
      size_t common = 0;
      while (!words_.empty() && common + 1 < flow.count &&
             words_[words_.size() - flow.count + common] == flow.word[common]) {
        ++common;
      }
      common_.push_back(static_cast<uint8_t>(common));
      table.kept |= common > 0 ? uint32_t{1} << common : 0;
      words_.insert(words_.end(), flow.word.begin(),
                    flow.word.begin() + static_cast<ptrdiff_t>(flow.count));
    }
    table.words = words_.data();
    table.common = common_.data();
    table.words_each = flows[0].count;
    table.flows = flows.size();
    table.mixes = mixes_;
    HashSeeds(seeds.data(), seeds.size(), table, hashes);
  }

  const LinuxSeedSearch& search_;
  bool mixes_ = true;
  size_t count_ = 0;  // of seeds_; more fill the last lanes
  std::vector<uint32_t> seeds_;
  std::vector<uint32_t> hashes_;  // [joint flow][seed]
  std::vector<uint32_t> left_, wanted_, differs_, one_;
  std::vector<uint32_t> left_of_group_, wanted_of_group_;
  std::vector<uint64_t> words_;
  std::vector<uint8_t> common_;
};

std::vector<LinuxSeedSearch::Found> LinuxSeedSearch::SearchAll(uint32_t first, uint64_t count,
                                                               int policy, double wrong_max) const {
  std::vector<Found> out;
  std::vector<char> is_found(routers_.size());
  Batch batch(*this);
  const auto left = [&](const Group::Router& one) { return is_found[one.number] == 0; };
  for (uint64_t begin = first; begin < first + count; begin += kBatch) {
    batch.Take(begin, std::min<uint64_t>(begin + kBatch, first + count), policy == 3);
    for (const Group& group : groups_) {
      if (std::none_of(group.routers.begin(), group.routers.end(), left)) continue;
      if (batch.Left(group).empty()) continue;
      for (const Group::Router& router : group.routers) {
        if (!left(router)) continue;
        for (uint32_t seed : batch.LeftOf(group, router)) {
          std::optional<SwitchHash> hash = Check(router.number, seed, policy, wrong_max);
          if (!hash.has_value()) continue;
          out.push_back({router.number, *hash});
          is_found[router.number] = 1;
          break;
        }
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
