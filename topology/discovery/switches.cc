#include "topology/discovery/switches.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/natural_less.h"

namespace weft::topology {
namespace {

// Disjoint sets of names.
class Names {
 public:
  int Of(const std::string& name) {
    auto [found, added] = number_.try_emplace(name, static_cast<int>(parent_.size()));
    if (added) parent_.push_back(found->second);
    return found->second;
  }
  int Root(int number) {
    while (parent_[static_cast<size_t>(number)] != number) {
      auto& up = parent_[static_cast<size_t>(number)];
      up = parent_[static_cast<size_t>(up)];
      number = up;
    }
    return number;
  }
  void Join(const std::string& a, const std::string& b) {
    parent_[static_cast<size_t>(Root(Of(a)))] = Root(Of(b));
  }
  // By root.
  std::map<int, std::vector<std::string>> Classes() {
    std::map<int, std::vector<std::string>> out;
    for (const auto& [name, number] : number_) out[Root(number)].push_back(name);
    return out;
  }

 private:
  std::map<std::string, int> number_;
  std::vector<int> parent_;
};

// Names that follow a name.
using Following = std::map<std::string, std::set<std::string>>;

// Rule 2, of one kind of names.
void JoinFollowing(const SeenFabric& seen, const Leaves& leaves, bool recorded, Names& names) {
  // [leaves, position][name there], and the other way round.
  std::map<std::tuple<int, int, size_t>, Following> after, before;
  for (const SeenFlow& flow : seen.flows) {
    const auto& passed = recorded ? flow.recorded : flow.answered;
    for (size_t i = 0; i + 1 < passed.size(); ++i) {
      if (passed[i].empty() || passed[i + 1].empty()) continue;
      const std::tuple key(leaves.Of(flow.source), leaves.Of(flow.target), i);
      after[key][passed[i]].insert(passed[i + 1]);
      before[key][passed[i + 1]].insert(passed[i]);
    }
  }
  std::map<std::string, std::string> first_after, first_before;
  const auto is_single = [](const Following& links) {
    return std::all_of(links.begin(), links.end(),
                       [](const auto& link) { return link.second.size() == 1; });
  };
  for (const auto& [key, links] : after) {
    if (links.size() < 2 || !is_single(links) || !is_single(before[key])) continue;
    for (const auto& [name, nexts] : links) {
      const std::string& next = *nexts.begin();
      if (recorded) {
        names.Join(next, first_after.try_emplace(name, next).first->second);
      } else {
        names.Join(name, first_before.try_emplace(next, name).first->second);
      }
    }
  }
}

// Which names are of one router.
Names JoinNames(const SeenFabric& seen, const Leaves& leaves) {
  Names names;
  for (const SeenFlow& flow : seen.flows) {
    const size_t routers = std::max(flow.recorded.size(), flow.answered.size());
    for (size_t i = 1; i + 1 < routers; ++i) {
      const bool is_recorded = i < flow.recorded.size();
      const bool is_answered = i < flow.answered.size() && !flow.answered[i].empty();
      if (is_recorded) names.Of(flow.recorded[i]);
      if (is_answered) names.Of(flow.answered[i]);
      if (is_recorded && is_answered) names.Join(flow.recorded[i], flow.answered[i]);
    }
  }
  JoinFollowing(seen, leaves, /*recorded=*/true, names);
  JoinFollowing(seen, leaves, /*recorded=*/false, names);
  for (const auto& [path, name] : seen.same) names.Join(path, name);
  return names;
}

// The name that a flow gives to the router at a position; null: none.
const std::string* NameAt(const SeenFlow& flow, size_t position) {
  if (position < flow.recorded.size()) return &flow.recorded[position];
  if (position < flow.answered.size() && !flow.answered[position].empty()) {
    return &flow.answered[position];
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Switches> Switches::Find(const SeenFabric& seen, const Leaves& leaves) {
  Names joined = JoinNames(seen, leaves);
  for (const SeenFlow& flow : seen.flows) {
    const size_t routers = leaves.RoutersOf(flow);
    for (size_t i = 1; i + 1 < routers; ++i) {
      if (const std::string* name = NameAt(flow, i)) joined.Of(*name);
    }
  }
  const std::map<int, std::vector<std::string>> names_of = joined.Classes();
  Switches out;
  for (const auto& [number, names] : names_of) {
    for (const std::string& name : names) out.number_of_[name] = number;
  }
  for (const SeenFlow& flow : seen.flows) {
    const size_t routers = leaves.RoutersOf(flow);
    for (size_t i = 1; i + 1 < routers; ++i) {
      const int at = out.SwitchAt(flow, i);
      if (at < 0) continue;
      const int tier = static_cast<int>(std::min(i, routers - 1 - i)) + 1;
      const std::vector<std::string>& names = names_of.at(at);
      auto [known, is_new] = out.switches_.try_emplace(at, Switch{.tier = tier, .names = names});
      if (is_new || known->second.tier == tier) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the router ", names.front(), " is in tier ", known->second.tier,
          " for some flows and in tier ", tier, " for one from ", seen.NameOf(flow.source), " to ",
          seen.NameOf(flow.target), ": this is no tree of leaves and spines"));
    }
  }
  out.Name(seen);
  return out;
}

void Switches::Name(const SeenFabric& seen) {
  // The names of paths are ours, and tell nothing where the router has said one.
  const auto before = [&seen](const std::string& a, const std::string& b) {
    const bool a_is_path = seen.loaded.count(a) > 0, b_is_path = seen.loaded.count(b) > 0;
    return a_is_path != b_is_path ? b_is_path : NaturalLess(a, b);
  };
  std::map<int, std::vector<std::pair<std::string, int>>> by_tier;
  for (const auto& [number, one] : switches_) {
    by_tier[one.tier].emplace_back(*std::min_element(one.names.begin(), one.names.end(), before),
                                   number);
  }
  for (auto& [tier, all] : by_tier) {
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return NaturalLess(a.first, b.first); });
    for (size_t i = 0; i < all.size(); ++i) {
      switches_.at(all[i].second).name = absl::StrCat(tier == 2 ? "spine" : "core", i);
      numbers_.push_back(all[i].second);
    }
  }
}

int Switches::SwitchAt(const SeenFlow& flow, size_t position) const {
  const std::string* name = NameAt(flow, position);
  return name == nullptr ? -1 : number_of_.at(*name);
}

bool Switches::Has(int number, const std::string& name) const {
  const auto found = number_of_.find(name);
  return found != number_of_.end() && found->second == number;
}

}  // namespace weft::topology
