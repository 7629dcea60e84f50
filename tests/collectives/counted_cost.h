// The cost of a collective as its schedules have it, step by step: what the closed forms of its
// algorithm are held against.
#ifndef WEFT_TESTS_COLLECTIVES_COUNTED_COST_H_
#define WEFT_TESTS_COLLECTIVES_COUNTED_COST_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/group_place.h"
#include "collectives/schedule.h"
#include "tests/collectives/schedule_cases.h"

namespace weft::collectives {

// By pair of ranks, from * n + to: the steps of its messages at both ends, in their order.
struct Meeting {
  uint32_t send = 0, receive = 0;
};
inline std::vector<std::vector<Meeting>> MeetingsOf(const Case& built) {
  const size_t n = built.schedules.size();
  std::vector<std::vector<Meeting>> meetings(n * n);
  std::vector<size_t> received(n * n);
  for (const bool sends : {true, false}) {
    for (size_t r = 0; r < n; ++r) {
      const std::vector<Step>& steps = built.schedules[r].steps;
      for (uint32_t id = 0; id < steps.size(); ++id) {
        if (steps[id].peer < 0 || (steps[id].kind == StepKind::kSend) != sends) continue;
        const size_t peer = static_cast<size_t>(steps[id].peer);
        if (sends) {
          meetings[r * n + peer].push_back({.send = id});
        } else {
          const size_t pair = peer * n + r;
          meetings[pair][received[pair]++].receive = id;
        }
      }
    }
  }
  return meetings;
}

// Calls `turn` until none of the numbers that it raises by raise(number, to) grows any more: the
// largest of them.
template <typename Turn>
int RaiseUntilNoneGrows(const Turn& turn) {
  int largest = 0;
  bool changed = true;
  const auto raise = [&](int& value, int to) {
    changed |= to > value;
    value = std::max(value, to);
    largest = std::max(largest, value);
  };
  while (std::exchange(changed, false)) turn(raise);
  return largest;
}

// By rank and step: messages on the longest chain that ends with it.
inline double LongestChain(const Case& built) {
  const size_t n = built.schedules.size();
  const auto meetings = MeetingsOf(built);
  std::vector<std::vector<int>> depth(n);
  for (size_t r = 0; r < n; ++r) depth[r].assign(built.schedules[r].steps.size(), 0);
  return RaiseUntilNoneGrows([&](const auto& raise) {
    for (size_t r = 0; r < n; ++r) {
      for (size_t id = 0; id < depth[r].size(); ++id) {
        for (uint32_t before : built.schedules[r].After(built.schedules[r].steps[id])) {
          raise(depth[r][id], depth[r][before]);
        }
      }
    }
    for (size_t pair = 0; pair < n * n; ++pair) {
      for (const Meeting& meeting : meetings[pair]) {
        raise(depth[pair % n][meeting.receive], depth[pair / n][meeting.send] + 1);
      }
    }
  });
}

inline size_t SwitchOf(const GroupPlace& place, int rank) {
  return static_cast<size_t>(
      place.switch_of[static_cast<size_t>(place.host[static_cast<size_t>(rank)])]);
}

// The most that any rank has of receives from other hosts on a chain of receives that wait for one
// another, beyond the first.
inline double ReceivesInOrder(const Case& built, const GroupPlace& place) {
  int longest = 0;
  for (size_t r = 0; r < built.schedules.size(); ++r) {
    const RankSchedule& schedule = built.schedules[r];
    std::vector<int> chain(schedule.steps.size());
    for (size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      if (step.kind != StepKind::kReceiveReduce) continue;
      for (uint32_t earlier : schedule.After(step)) chain[i] = std::max(chain[i], chain[earlier]);
      if (place.host[r] != place.host[static_cast<size_t>(step.peer)]) ++chain[i];
      longest = std::max(longest, chain[i]);
    }
  }
  return std::max(0, longest - 1);
}

inline Cost Counted(const Case& built) {
  Cost cost;
  const int n = static_cast<int>(built.specs.size());
  const GroupPlace place = PlaceOf(built.specs[0]);
  std::vector<double> sent(n), received(n), leaving(n), entering(n), beyond(n), towards(n);
  double all = 0;
  for (int r = 0; r < n; ++r) {
    double sends = 0, receives = 0, reduced = 0, copied = 0;
    for (const Step& step : built.schedules[static_cast<size_t>(r)].steps) {
      const double length = static_cast<double>(step.length);
      const bool reduces = step.kind == StepKind::kReduce || step.kind == StepKind::kReceiveReduce;
      if (step.kind == StepKind::kCopy || step.kind == StepKind::kReduce) copied += length;
      if (reduces) reduced += length;
      copied += length * step.more_count, reduced += length * step.more_count;
      if (step.peer < 0) continue;
      const bool across = place.host[r] != place.host[step.peer];
      const bool send = step.kind == StepKind::kSend;
      (send ? sends : receives) += 1;
      (send ? sent : received)[r] += length;
      if (across) (send ? leaving : entering)[place.host[r]] += length;
      if (SwitchOf(place, r) != SwitchOf(place, step.peer)) {
        (send ? beyond : towards)[SwitchOf(place, r)] += length;
      }
      if (send) all += length;
    }
    cost.messages = std::max({cost.messages, sends, receives});
    cost.elements = std::max({cost.elements, sent[r], received[r]});
    cost.reduced = std::max(cost.reduced, reduced);
    cost.copied = std::max(cost.copied, copied);
    cost.elements_across =
        std::max({cost.elements_across, leaving[place.host[r]], entering[place.host[r]]});
  }
  cost.elements_beyond = std::max(*std::max_element(beyond.begin(), beyond.end()),
                                  *std::max_element(towards.begin(), towards.end()));
  cost.balance = cost.elements > 0 ? all / (cost.elements * n) : 1;
  cost.turns = LongestChain(built);
  cost.in_order = ReceivesInOrder(built, place);
  return cost;
}

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_COUNTED_COST_H_
