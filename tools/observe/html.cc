// The page of weft-trace: data as JSON in the page, drawn by the script in it; no other file, no
// network.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/json_text.h"
#include "tools/observe/page.h"
#include "tools/observe/timeline.h"

namespace weft::observe {
namespace {

using Json = nlohmann::json;

class Names {
 public:
  size_t Of(const std::string& name) {
    const auto [at, fresh] = index_.try_emplace(name, list_.size());
    if (fresh) list_.push_back(name);
    return at->second;
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::map<std::string, size_t> index_;
  std::vector<std::string> list_;
};

int64_t Begin(const Timeline& timeline) {
  int64_t begin = INT64_MAX;
  for (const TimelineRank& rank : timeline.ranks) {
    if (!rank.spans.empty()) begin = std::min(begin, rank.spans.front().start_ns);
  }
  return begin == INT64_MAX ? 0 : begin;
}

// Milliseconds a step in each phase, without the phases within it.
Json HeatOf(const RankView& rank) {
  Json heat = Json::object();
  if (rank.steps.empty()) return heat;
  std::map<std::string, double> sums;
  for (const StepTimes& step : rank.steps) {
    for (const auto& [phase, seconds] : step.seconds) sums[phase] += seconds;
  }
  for (const auto& [phase, seconds] : sums) {
    heat[phase] = 1e3 * seconds / static_cast<double>(rank.steps.size());
  }
  return heat;
}

Json RankJson(const TimelineRank& rank, const JobView& view, int64_t begin_ns, Names* names,
              Names* groups) {
  Json spans = Json::array();
  for (const TimelineSpan& span : rank.spans) {
    spans.push_back({names->Of(span.name), groups->Of(span.group),
                     (span.start_ns - begin_ns) / 1000, (span.end_ns - span.start_ns) / 1000,
                     span.number, span.bytes, span.peer, span.done ? 1 : 0});
  }
  Json out = {{"rank", rank.rank}, {"host", rank.host}, {"pid", rank.pid}, {"lost", rank.lost}};
  out["spans"] = std::move(spans);
  out["heat"] = Json::object();
  out["flows"] = Json::array();
  const auto found = view.ranks.find(rank.rank);
  if (found == view.ranks.end()) return out;
  out["heat"] = HeatOf(found->second);
  out["step"] = found->second.process.step;
  out["phase"] = found->second.process.phase;
  for (const auto& [key, flow] : found->second.flows) {
    out["flows"].push_back({{"peer", key.first},
                            {"sends", key.second},
                            {"transport", flow.transport},
                            {"bytes", flow.record.bytes_done},
                            {"outstanding", flow.record.outstanding},
                            {"stuck_ms", flow.record.stuck_ms},
                            {"repeats", flow.record.repeats}});
  }
  return out;
}

}  // namespace

std::string HtmlPage(const Timeline& timeline, const JobView& view,
                     const std::vector<Finding>& findings) {
  Names names, groups;
  groups.Of("");  // phases are group 0
  const int64_t begin_ns = Begin(timeline);
  Json data = {{"job", timeline.job}, {"mesh", timeline.mesh}, {"world", timeline.world_size}};
  data["members"] = Json::object();
  for (const auto& [name, ranks] : timeline.groups) data["members"][name] = ranks;
  data["ranks"] = Json::array();
  for (const TimelineRank& rank : timeline.ranks) {
    data["ranks"].push_back(RankJson(rank, view, begin_ns, &names, &groups));
  }
  data["clocks"] = Json::array();
  for (const auto& [host, clock] : timeline.clocks) {
    data["clocks"].push_back({{"host", host},
                              {"added_us", clock.first / 1000},
                              {"within_us", clock.second == INT64_MAX ? -1 : clock.second / 1000}});
  }
  data["findings"] = Json::array();
  for (const Finding& finding : findings) {
    data["findings"].push_back({{"text", ToText(finding)}, {"culprits", finding.culprits}});
  }
  data["names"] = names.list();
  data["groups"] = groups.list();
  const std::string json = JsonText(data);
  // Nothing in the data can end the element that it stands in.
  return absl::StrReplaceAll(kPage, {{"@DATA@", absl::StrReplaceAll(json, {{"<", "\\u003c"}})}});
}

}  // namespace weft::observe
