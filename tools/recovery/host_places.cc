#include "tools/recovery/host_places.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/recovery/host_choice.h"

namespace weft::recovery {

void HostPlaces::Lose(const std::string& name, const std::string& why) {
  HostState* host = change_.Find(name);
  if (host == nullptr) return;
  if (host->evicted) return;  // remembered
  const HostState gone = *host;
  change_.state.hosts.erase(name);
  Dismiss(name, gone.node, gone.rack, why);
}

void HostPlaces::Evict(const std::string& name, HostState& host, const std::string& why) {
  if (host.evicted) return;
  const int node = host.node;
  host.evicted = true;
  host.reason = why;
  host.node = -1;
  host.test = 0;
  Dismiss(name, node, host.rack, why);
}

void HostPlaces::Dismiss(const std::string& host, int node, const std::string& rack,
                         const std::string& why) {
  change_.actions.push_back({.kind = ActionKind::kEvict, .host = host, .node = node, .text = why});
  change_.state.notices.push_back(
      {.number = ++change_.state.notices_made, .host = host, .why = why});
  Vacate(node, rack);
}

void HostPlaces::Vacate(int node, const std::string& rack) {
  if (node < 0) return;
  change_.Node(node) = {.host = "", .vacant_since = change_.now, .rack = rack};
  ranks_.HoldNode(node);
  FillVacancies();
}

void HostPlaces::FillVacancies() {
  for (int node = 0; node < change_.policy.nodes; ++node) {
    if (!change_.Node(node).host.empty() || ranks_.IsDone(node)) continue;
    const std::string name = SpareFor(change_.state, change_.Node(node).rack);
    if (name.empty()) break;
    change_.Node(node) = {.host = name};
    change_.state.hosts[name].node = node;
    change_.actions.push_back({.kind = ActionKind::kPlace, .host = name, .node = node});
    if (change_.state.started) ranks_.StartNode(node, "in place of the host that is gone");
  }
  if (change_.state.started ||
      std::any_of(change_.state.nodes.begin(), change_.state.nodes.end(),
                  [](const NodeState& node) { return node.host.empty(); })) {
    return;
  }
  change_.state.started = true;
  ranks_.StartAll();
}

void HostPlaces::CheckVacancies() {
  for (int node = 0; node < change_.policy.nodes; ++node) {
    const NodeState& vacant = change_.Node(node);
    if (!vacant.host.empty() || ranks_.IsDone(node) ||
        change_.now - vacant.vacant_since < change_.policy.vacancy_most)
      continue;
    return ranks_.Stop(kNoHostsStatus,
                       absl::StrCat("node ", node, " has had no host for ",
                                    absl::FormatDuration(change_.policy.vacancy_most),
                                    ": there is no spare, and none has joined"));
  }
}

void HostPlaces::Test(const std::string& name, HostState& host, const std::string& why) {
  if (host.test != 0) return;
  host.test = ++change_.state.tests;
  host.own_signals = 0;
  host.test_helpers = TestHelpersFor(change_.state, name, host);
  change_.actions.push_back(
      {.kind = ActionKind::kTest, .host = name, .node = host.node, .text = why});
}

}  // namespace weft::recovery
