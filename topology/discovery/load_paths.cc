#include "topology/discovery/load_paths.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/median.h"

namespace weft::topology {
namespace {

constexpr double kRise = 3;          // of a round trip, by a queue on its path
constexpr double kAlike = 0.5;       // of the risen flows of two steps of one path
constexpr double kWrongMost = 0.1;   // of the flows of a step that fits
constexpr size_t kShownBy = 2;       // loads, after which a path is believed
constexpr Bytes kFullQueue(48'000);  // at least: 32 packets of 1,500 bytes
constexpr int kStepsPerPath = 3;     // and of one path more, before all are known

double MicrosecondsOf(absl::Duration trip) {
  return std::max(1.0, absl::ToDoubleMicroseconds(trip));
}

// Steps that seem to have filled one path.
struct Group {
  std::vector<int> yes, no;  // by flow
  std::vector<size_t> steps;

  // Share of the risen flows that had risen here.
  double Likeness(const std::vector<Risen>& risen) const {
    int known = 0, same = 0;
    for (size_t flow = 0; flow < risen.size(); ++flow) {
      if (risen[flow] != Risen::kYes || yes[flow] + no[flow] == 0) continue;
      ++known;
      same += yes[flow] > no[flow] ? 1 : 0;
    }
    return known == 0 ? 0 : static_cast<double>(same) / known;
  }
  void Add(size_t number, const std::vector<Risen>& risen) {
    steps.push_back(number);
    for (size_t flow = 0; flow < risen.size(); ++flow) {
      yes[flow] += risen[flow] == Risen::kYes ? 1 : 0;
      no[flow] += risen[flow] == Risen::kNo ? 1 : 0;
    }
  }
};

std::vector<Group> GroupsOf(size_t flows, absl::Span<const LoadStep> steps) {
  std::vector<Group> groups;
  for (size_t number = 0; number < steps.size(); ++number) {
    const std::vector<Risen>& risen = steps[number].risen;
    if (std::count(risen.begin(), risen.end(), Risen::kYes) == 0) continue;
    auto best = std::max_element(groups.begin(), groups.end(), [&](const Group& a, const Group& b) {
      return a.Likeness(risen) < b.Likeness(risen);
    });
    if (best == groups.end() || best->Likeness(risen) <= kAlike) {
      groups.push_back({std::vector<int>(flows), std::vector<int>(flows), {}});
      best = std::prev(groups.end());
    }
    best->Add(number, risen);
  }
  return groups;
}

}  // namespace

std::vector<Risen> FindRisen(absl::Duration idle, Bandwidth got,
                             absl::Span<const absl::Duration> trips) {
  if (got <= Bandwidth()) return std::vector<Risen>(trips.size(), Risen::kUnknown);
  const double least = std::max(kRise * MicrosecondsOf(idle),
                                MicrosecondsOf(idle) + MicrosecondsOf(kFullQueue / got));
  // A lost probe counts as the slowest: where queues are short, losses are the only rise.
  double slowest = 2 * least;
  for (absl::Duration trip : trips) {
    if (trip < absl::InfiniteDuration()) slowest = std::max(slowest, MicrosecondsOf(trip));
  }
  const auto microseconds = [&](absl::Duration trip) {
    return trip < absl::InfiniteDuration() ? MicrosecondsOf(trip) : slowest;
  };
  std::vector<double> sorted{MicrosecondsOf(idle)};
  for (absl::Duration trip : trips) sorted.push_back(microseconds(trip));
  std::sort(sorted.begin(), sorted.end());
  size_t widest = 0;  // index below the gap
  for (size_t i = 0; i + 1 < sorted.size(); ++i) {
    if (sorted[i + 1] / sorted[i] > sorted[widest + 1] / sorted[widest]) widest = i;
  }
  const bool any = sorted.size() > 1 && sorted[widest + 1] > kRise * sorted[widest] &&
                   sorted[widest + 1] > least;
  std::vector<Risen> out;
  for (absl::Duration trip : trips) {
    out.push_back(any && microseconds(trip) > sorted[widest] ? Risen::kYes : Risen::kNo);
  }
  return out;
}

bool LoadPaths::IsWhole() const {
  return std::find(path_of.begin(), path_of.end(), -1) == path_of.end() &&
         steps >= kStepsPerPath * (static_cast<int>(bandwidth.size()) + 1);
}

LoadPaths FindLoadPaths(size_t flows, absl::Span<const LoadStep> steps) {
  LoadPaths out;
  out.path_of.resize(flows, -1);
  const std::vector<Group> groups = GroupsOf(flows, steps);
  out.steps = static_cast<int>(steps.size());
  out.misfits = out.steps;
  for (const Group& group : groups) out.misfits -= static_cast<int>(group.steps.size());
  std::vector<int> group_of(flows, -1);
  for (size_t flow = 0; flow < flows; ++flow) {
    int most = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      const int lead = groups[i].yes[flow] - groups[i].no[flow];
      if (groups[i].steps.size() < kShownBy || lead <= most) continue;
      most = lead;
      group_of[flow] = static_cast<int>(i);
    }
  }
  // Paths are the groups that flows are left in, in the order of their first flow.
  std::map<int, int> number;
  for (size_t flow = 0; flow < flows; ++flow) {
    const int group = group_of[flow];
    if (group < 0) continue;
    auto [known, is_new] = number.try_emplace(group, static_cast<int>(number.size()));
    out.path_of[flow] = known->second;
    if (!is_new) continue;
    std::vector<Bandwidth> got;
    for (size_t step : groups[static_cast<size_t>(group)].steps) got.push_back(steps[step].got);
    out.bandwidth.push_back(UpperMedian(std::move(got)));
  }
  for (const Group& group : groups) {
    const auto own = number.find(static_cast<int>(&group - groups.data()));
    for (size_t step : group.steps) {
      int known = 0, wrong = 0;
      for (size_t flow = 0; flow < flows; ++flow) {
        const Risen risen = steps[step].risen[flow];
        if (risen == Risen::kUnknown || out.path_of[flow] < 0) continue;
        const bool is_own = own != number.end() && out.path_of[flow] == own->second;
        ++known;
        wrong += is_own != (risen == Risen::kYes) ? 1 : 0;
      }
      out.misfits += wrong > kWrongMost * known ? 1 : 0;
    }
  }
  return out;
}

}  // namespace weft::topology
