#include "tools/plan/report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "topology/cost/link_loads.h"

namespace weft::plan {
namespace {

using nlohmann::ordered_json;
using topology::StepCost;
using topology::Traffic;
using topology::TrafficCost;

double Milliseconds(absl::Duration time) { return absl::ToDoubleMilliseconds(time); }

std::string WithCommas(int64_t number) {
  std::string text = absl::StrCat(number);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

int64_t FlowsAbove(const TrafficCost& cost, size_t level) {
  int64_t sum = 0;
  for (size_t i = level + 1; i < cost.flows_at.size(); ++i) sum += cost.flows_at[i];
  return sum;
}

// The time of traffic that leaves hosts, as `order` lays it; what stays inside no order changes.
absl::Duration BetweenHosts(const Candidate& order, const StepCost& cost) {
  absl::Duration sum;
  for (size_t i = 0; i < cost.traffic.size(); ++i) {
    if (FlowsAbove(order.cost.traffic[i], 0) > 0) sum += cost.traffic[i].exposed;
  }
  return sum;
}

double TimesFloor(const TrafficCost& cost) {
  return cost.floor > absl::ZeroDuration() ? absl::FDivDuration(cost.transfer, cost.floor) : 1;
}

std::string CutName(const Input& input, const topology::CutLoad& load) {
  return absl::StrCat(input.tree->Name(load.group), load.up ? " up" : " down");
}

std::string GroupList(const std::vector<int32_t>& groups) {
  std::string text;
  size_t shown = 0;
  for (size_t i = 0; i < groups.size() && shown < 4; ++shown) {
    size_t end = i;
    while (end + 1 < groups.size() && groups[end + 1] == groups[end] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", groups[i]);
    if (end > i) absl::StrAppend(&text, "-", groups[end]);
    i = end + 1;
    if (i < groups.size() && shown == 3) absl::StrAppend(&text, ",...");
  }
  return absl::StrCat(text, " (", groups.size(), ")");
}

// What is printed of one kind of traffic in one order.
std::string CrossingText(const Input& input, const TrafficCost& cost) {
  std::string text = absl::StrCat(WithCommas(FlowsAbove(cost, 1)), " of ",
                                  WithCommas(FlowsAbove(cost, 0)), " flows leave their leaf");
  if (cost.flows_at.size() > 3) {
    absl::StrAppend(&text, ", ", WithCommas(FlowsAbove(cost, 2)), " their pod");
  }
  if (cost.worst.group >= 0) {
    absl::StrAppendFormat(&text, "; fullest: %s, %s flows on %d cables", CutName(input, cost.worst),
                          WithCommas(cost.worst.flows), input.tree->cut(cost.worst.group).links);
  }
  absl::StrAppendFormat(&text, "; %s, %.2f x its NICs' time", TimeText(cost.once),
                        TimesFloor(cost));
  return text;
}

}  // namespace

std::string TimeText(absl::Duration time) {
  double seconds = absl::ToDoubleSeconds(time);
  struct Unit {
    double scale;
    const char* name;
  };
  for (Unit unit : {Unit{1, "s"}, Unit{1e3, "ms"}, Unit{1e6, "us"}}) {
    double value = seconds * unit.scale;
    if (value < 1 && unit.scale < 1e6) continue;
    return absl::StrFormat("%.*f %s", value < 10 ? 2 : (value < 100 ? 1 : 0), value, unit.name);
  }
  return "0 s";
}

std::string CostTable(const Input& input, absl::Span<const Candidate> candidates) {
  std::string text = absl::StrFormat("%-26s", "exposed in a step");
  for (const Candidate& one : candidates) {
    std::string name =
        one.name.size() > 14 ? "..." + one.name.substr(one.name.size() - 11) : one.name;
    absl::StrAppendFormat(&text, " %14s", name);
  }
  absl::StrAppendFormat(&text, " %14s\n", "bound");
  const StepCost& bound = candidates.back().bound;
  auto row = [&](const std::string& name, auto cell) {
    absl::StrAppendFormat(&text, "%-26s", name);
    for (const Candidate& one : candidates) absl::StrAppendFormat(&text, " %14s", cell(one.cost));
    absl::StrAppendFormat(&text, " %14s\n", cell(bound));
  };
  for (size_t i = 0; i < input.job.traffic.size(); ++i) {
    row(input.job.traffic[i].name,
        [&](const StepCost& cost) { return TimeText(cost.traffic[i].exposed); });
  }
  row("all", [](const StepCost& cost) { return TimeText(cost.exposed); });
  row("of it between hosts",
      [&](const StepCost& cost) { return TimeText(BetweenHosts(candidates.back(), cost)); });
  absl::Duration least = BetweenHosts(candidates.back(), candidates.back().cost);
  row(absl::StrCat("times ",
                   candidates.back().name.size() > 18 ? "the last" : candidates.back().name),
      [&](const StepCost& cost) {
        return least > absl::ZeroDuration()
                   ? absl::StrFormat(
                         "%.3f", absl::FDivDuration(BetweenHosts(candidates.back(), cost), least))
                   : std::string("-");
      });
  return text;
}

std::string WhyText(const Input& input, const Candidate& before, const Candidate& after) {
  std::string text;
  for (size_t i = 0; i < input.job.traffic.size(); ++i) {
    const Traffic& traffic = input.job.traffic[i];
    const TrafficCost& a = before.cost.traffic[i];
    const TrafficCost& b = after.cost.traffic[i];
    if (FlowsAbove(a, 0) + FlowsAbove(b, 0) == 0) {
      absl::StrAppendFormat(&text, "%s: within hosts, %s in any order\n", traffic.name,
                            TimeText(b.exposed));
      continue;
    }
    absl::StrAppendFormat(&text, "%s: %s of %s over %s, %g times a step, %.3g %% of it exposed\n",
                          traffic.name, topology::ToString(traffic.collective),
                          ToString(traffic.bytes), ToString(traffic.axes), traffic.times,
                          100 * traffic.exposed);
    absl::StrAppendFormat(&text, "  %-13s %s\n", before.name + ":", CrossingText(input, a));
    absl::StrAppendFormat(&text, "  %-13s %s\n", after.name + ":", CrossingText(input, b));
  }
  return text;
}

absl::StatusOr<std::vector<HotCut>> HotCuts(const Input& input, const Candidate& candidate,
                                            size_t count) {
  WEFT_ASSIGN_OR_RETURN(Placed placed, Place(input, candidate.order));
  std::vector<HotCut> cuts;
  for (size_t i = 0; i < input.job.traffic.size(); ++i) {
    const Traffic& traffic = input.job.traffic[i];
    double floor = absl::ToDoubleSeconds(candidate.cost.traffic[i].floor);
    for (const topology::CutLoad& load : placed.model.WorstCuts(placed.placement, i, count)) {
      HotCut hot{
          traffic.name, CutName(input, load), load, input.tree->cut(load.group).links, 0, {}};
      hot.times_floor = floor > 0 ? absl::ToDoubleSeconds(load.time) / floor : 0;
      hot.groups = placed.model.GroupsOn(placed.placement, i, load);
      cuts.push_back(std::move(hot));
    }
  }
  return cuts;
}

std::string HotCutTable(absl::Span<const HotCut> cuts) {
  std::string text = absl::StrFormat("%-24s %-20s %8s %7s %10s %10s %7s  %s\n", "fullest cuts", "",
                                     "flows", "cables", "bytes", "time", "x NICs", "groups");
  for (const HotCut& cut : cuts) {
    absl::StrAppendFormat(&text, "%-24s %-20s %8d %7d %10s %10s %7.2f  %s\n", cut.traffic, cut.cut,
                          cut.load.flows, cut.links, ToString(cut.load.bytes),
                          TimeText(cut.load.time), cut.times_floor, GroupList(cut.groups));
  }
  return text;
}

absl::StatusOr<std::vector<double>> LinkSeconds(const Input& input, const Candidate& candidate) {
  WEFT_ASSIGN_OR_RETURN(Placed placed, Place(input, candidate.order));
  WEFT_RETURN_IF_ERROR(topology::Routes::Feasible(*input.fabric));
  topology::Routes routes(*input.fabric);
  WEFT_ASSIGN_OR_RETURN(std::vector<double> load,
                        topology::StepLinkBytes(routes, placed.model, placed.placement));
  for (size_t i = 0; i < load.size(); ++i) {
    load[i] /= input.fabric->link(LinkId(static_cast<int32_t>(i))).bandwidth.bytes_per_second();
  }
  return load;
}

std::vector<HotLink> HottestLinks(const Input& input, absl::Span<const double> seconds,
                                  size_t count) {
  std::vector<HotLink> links;
  for (size_t i = 0; i < seconds.size(); ++i) {
    LinkId id(static_cast<int32_t>(i));
    const topology::FabricLink& link = input.fabric->link(id);
    if (link.nic >= 0 || seconds[i] <= 0) continue;  // hosts' own cables are alike in every order
    links.push_back({id, seconds[i] * link.bandwidth.bytes_per_second(), seconds[i]});
  }
  std::stable_sort(links.begin(), links.end(),
                   [](const HotLink& a, const HotLink& b) { return a.seconds > b.seconds; });
  if (links.size() > count) links.resize(count);
  return links;
}

ordered_json CandidateJson(const Input& input, const Candidate& candidate) {
  ordered_json json;
  json["name"] = candidate.name;
  json["exposed_ms"] = Milliseconds(candidate.cost.exposed);
  json["bound_ms"] = Milliseconds(candidate.bound.exposed);
  json["exposed_between_hosts_ms"] = Milliseconds(BetweenHosts(candidate, candidate.cost));
  json["bound_between_hosts_ms"] = Milliseconds(BetweenHosts(candidate, candidate.bound));
  if (!candidate.how.empty()) {
    json["how"] = candidate.how;
    json["planning_seconds"] = candidate.seconds;
  }
  json["traffic"] = ordered_json::array();
  for (size_t i = 0; i < input.job.traffic.size(); ++i) {
    const TrafficCost& cost = candidate.cost.traffic[i];
    ordered_json row;
    row["name"] = input.job.traffic[i].name;
    row["axes"] = ToString(input.job.traffic[i].axes);
    row["times"] = input.job.traffic[i].times;
    row["exposed_ms"] = Milliseconds(cost.exposed);
    row["once_ms"] = Milliseconds(cost.once);
    row["latency_ms"] = Milliseconds(cost.latency);
    row["transfer_ms"] = Milliseconds(cost.transfer);
    row["floor_ms"] = Milliseconds(cost.floor);
    row["bound_exposed_ms"] = Milliseconds(candidate.bound.traffic[i].exposed);
    row["flows_meeting_at_tier"] = cost.flows_at;
    row["bytes_meeting_at_tier"] = ordered_json::array();
    for (Bytes bytes : cost.bytes_at) row["bytes_meeting_at_tier"].push_back(bytes.count());
    if (cost.worst.group >= 0) {
      row["worst_cut"] = {{"name", CutName(input, cost.worst)},
                          {"links", input.tree->cut(cost.worst.group).links},
                          {"flows", cost.worst.flows},
                          {"bytes", cost.worst.bytes.count()},
                          {"time_ms", Milliseconds(cost.worst.time)}};
    }
    json["traffic"].push_back(std::move(row));
  }
  return json;
}

ordered_json HotCutsJson(absl::Span<const HotCut> cuts) {
  ordered_json rows = ordered_json::array();
  for (const HotCut& cut : cuts) {
    rows.push_back({{"traffic", cut.traffic},
                    {"cut", cut.cut},
                    {"links", cut.links},
                    {"flows", cut.load.flows},
                    {"bytes", cut.load.bytes.count()},
                    {"time_ms", Milliseconds(cut.load.time)},
                    {"times_nics", cut.times_floor},
                    {"groups", cut.groups}});
  }
  return rows;
}

}  // namespace weft::plan
