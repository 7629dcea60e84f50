#include "topology/order/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace weft::topology {
namespace {

// Up to so many positions, all pairs are tried; beyond, a round of them would cost too much.
constexpr size_t kAllPairs = 96;
// Rounds of perturbation that may pass without a gain.
constexpr int kPatience = 24;
// Exchanges tried for one choice of a bottleneck, and without success before giving up.
constexpr int kTriesOfCut = 24;
constexpr int kFailuresMost = 4000;
// Gains below this share are rounding.
constexpr double kLeastGain = 1e-9;

class LocalSearch {
 public:
  LocalSearch(const CostModel& model, const std::vector<int32_t>& class_of, Placement start,
              Random& random, const SearchLimits& limits)
      : class_of_(class_of),
        slots_(model.blocks().slots),
        state_(model, std::move(start)),
        random_(random),
        limits_(limits),
        score_(state_.Score()) {}

  Placement Run() {
    if (state_.placement().size() <= kAllPairs) {
      Iterate();
    } else {
      Relieve();
    }
    return state_.placement();
  }

 private:
  int32_t positions() const { return static_cast<int32_t>(state_.placement().size()); }
  int32_t ClassAt(int32_t position) const {
    return class_of_[static_cast<size_t>(state_.placement()[static_cast<size_t>(position)])];
  }
  bool IsOver() {
    if (stopped_ || state_.updates() >= limits_.updates) return true;
    if (!limits_.progress || ++asked_ % 64 != 0) return false;
    double share = static_cast<double>(state_.updates()) / static_cast<double>(limits_.updates);
    stopped_ = !limits_.progress(share);
    return stopped_;
  }
  bool Try(int32_t a, int32_t b) {
    if (a == b || (a >= slots_ && b >= slots_) || ClassAt(a) == ClassAt(b)) return false;
    state_.Swap(a, b);
    double after = state_.Score();
    if (after < score_ - kLeastGain * score_) {
      score_ = after;
      return true;
    }
    state_.Swap(a, b);
    return false;
  }

  void ClimbAllPairs() {
    for (bool better = true; better && !IsOver();) {
      better = false;
      for (int32_t a = 0; a < positions() && !IsOver(); ++a) {
        for (int32_t b = a + 1; b < positions(); ++b) better = Try(a, b) || better;
      }
    }
  }

  void Iterate() {
    ClimbAllPairs();
    Placement best = state_.placement();
    double best_score = score_;
    for (int stuck = 0; stuck < kPatience && !IsOver(); ++stuck) {
      auto bound = static_cast<uint64_t>(positions());
      for (int i = 0; i < 3; ++i) {
        state_.Swap(static_cast<int32_t>(random_.Below(bound)),
                    static_cast<int32_t>(random_.Below(bound)));
      }
      score_ = state_.Score();
      ClimbAllPairs();
      if (score_ < best_score - kLeastGain * best_score) {
        best_score = score_;
        best = state_.placement();
        stuck = -1;
      }
    }
    GoTo(best);
  }

  // By exchanges, so that the state stays exact.
  void GoTo(const Placement& target) {
    for (int32_t i = 0; i < positions(); ++i) {
      int32_t wanted = target[static_cast<size_t>(i)], at = i;
      while (state_.placement()[static_cast<size_t>(at)] != wanted) ++at;
      state_.Swap(i, at);
    }
    score_ = state_.Score();
  }

  void Relieve() {
    std::vector<int32_t> inner, outer;
    int failures = 0;
    while (failures < kFailuresMost && !IsOver()) {
      PlacementState::Bottleneck worst = state_.WorstCut();
      state_.SlotsOn(worst, inner, outer);
      bool better = false;
      for (int i = 0; i < kTriesOfCut && !better; ++i) {
        better = inner.empty() ? TryAnywhere() : TryTogether(inner, outer);
      }
      for (int i = 0; i < kTriesOfCut / 4 && !better; ++i) better = TryAnywhere();
      failures = better ? 0 : failures + kTriesOfCut;
    }
  }

  bool TryAnywhere() {
    auto bound = static_cast<uint64_t>(positions());
    auto a = static_cast<int32_t>(random_.Below(bound));
    auto b = static_cast<int32_t>(random_.Below(bound));
    return Try(a, b);
  }

  // Brings one end of a flow over the cut to where the other is, by exchange with a slot there.
  bool TryTogether(const std::vector<int32_t>& inner, const std::vector<int32_t>& outer) {
    size_t flow = random_.Below(inner.size());
    int32_t moved = inner[flow], fixed = outer[flow];
    if (random_.Below(2) == 0) std::swap(moved, fixed);
    // Slots beside the fixed one, which walks have laid there: near in the order of hosts.
    int32_t home = ClassAt(fixed);
    for (int tries = 0; tries < 32; ++tries) {
      auto other = static_cast<int32_t>(random_.Below(static_cast<uint64_t>(positions())));
      if (other == fixed || ClassAt(other) != home) continue;
      return Try(moved, other);
    }
    return false;
  }

  const std::vector<int32_t>& class_of_;
  const int32_t slots_;
  PlacementState state_;
  Random& random_;
  const SearchLimits& limits_;
  double score_;
  int64_t asked_ = 0;
  bool stopped_ = false;  // by `limits_.progress`
};

}  // namespace

int64_t CountArrangements(const std::vector<int32_t>& class_of, int64_t most) {
  std::map<int32_t, int64_t> seen;
  double count = 1;
  int64_t n = 0;
  for (int32_t one : class_of) {
    count = count * static_cast<double>(++n) / static_cast<double>(++seen[one]);
    if (count > static_cast<double>(most)) return most + 1;  // it never falls
  }
  return std::llround(count);
}

Placement SearchAll(const CostModel& model, const std::vector<int32_t>& class_of) {
  std::vector<int32_t> arrangement = class_of;  // [position] class
  std::sort(arrangement.begin(), arrangement.end());
  std::map<int32_t, std::vector<int32_t>> hosts_of;
  for (size_t i = 0; i < class_of.size(); ++i) {
    hosts_of[class_of[i]].push_back(static_cast<int32_t>(i));
  }
  Placement best, placement(class_of.size());
  double best_score = 0;
  do {
    std::map<int32_t, size_t> used;
    for (size_t i = 0; i < arrangement.size(); ++i) {
      placement[i] = hosts_of[arrangement[i]][used[arrangement[i]]++];
    }
    double score = model.Score(placement).value();
    if (best.empty() || score < best_score - kLeastGain * best_score) {
      best_score = score;
      best = placement;
    }
  } while (std::next_permutation(arrangement.begin(), arrangement.end()));
  return best;
}

Placement SearchLocally(const CostModel& model, const std::vector<int32_t>& class_of,
                        const Placement& start, Random& random, const SearchLimits& limits) {
  return LocalSearch(model, class_of, start, random, limits).Run();
}

}  // namespace weft::topology
