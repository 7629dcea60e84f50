#include "tools/recovery/replay.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::recovery {
namespace {

// The digest that all hosts of the group report. Nullopt: a host was lost, and the result is not
// known. Empty: the replay failed, or its hosts differ, so that the group is wrong.
std::optional<std::string> ResultOf(const ReplayGroup& group) {
  if (group.results.size() < group.hosts.size()) return std::nullopt;
  const std::string& first = group.results.begin()->second;
  const bool is_same = std::all_of(group.results.begin(), group.results.end(),
                                   [&first](const auto& result) { return result.second == first; });
  return is_same ? first : "";
}

// The digest that most groups have, two at least. Empty: there is none.
std::string RightResult(const std::vector<ReplayGroup>& groups) {
  std::map<std::string, int> counts;
  for (const ReplayGroup& group : groups) {
    const std::optional<std::string> result = ResultOf(group);
    if (result.has_value() && !result->empty()) ++counts[*result];
  }
  std::string right;
  int most = 1;  // that one group alone has says nothing
  for (const auto& [result, count] : counts) {
    if (count == most) right.clear();
    if (count <= most) continue;
    most = count;
    right = result;
  }
  return right;
}

}  // namespace

std::vector<ReplayGroup> ReplayGroups(const std::vector<std::string>& hosts, int size, int phase) {
  const auto each = static_cast<size_t>(size);
  if (each == 0 || hosts.size() < 2 * each) return {};
  const size_t count = (hosts.size() + each - 1) / each;
  std::vector<ReplayGroup> groups(count, ReplayGroup{.phase = phase});
  // Hosts as a matrix of `count` rows: its rows, and then what lies apart by `count`, are groups.
  // What is left over in the matrix is filled from the first hosts on, so that none is twice in a
  // group.
  const size_t shift = hosts.size() % count == 0 ? 1 : 0;
  for (size_t i = 0; i < count * each; ++i) {
    const size_t host = i < hosts.size() ? i : i - hosts.size() + shift;
    groups[phase == 0 ? i / each : i % count].hosts.push_back(hosts[host]);
  }
  return groups;
}

ReplayVerdict JudgeReplay(const std::vector<ReplayGroup>& groups) {
  const std::string right = RightResult(groups);
  if (right.empty()) {
    return {.text = "no two groups have a result that is more frequent than the others"};
  }
  std::set<std::string> innocent;
  std::map<std::string, std::set<int>> wrong;  // phases, by host
  for (const ReplayGroup& group : groups) {
    const std::optional<std::string> result = ResultOf(group);
    for (const std::string& host : group.hosts) {
      if (result == right) innocent.insert(host);
      if (result.has_value() && result != right) wrong[host].insert(group.phase);
    }
  }
  ReplayVerdict verdict;
  for (const auto& [host, phases] : wrong) {
    if (innocent.count(host) == 0 && phases.size() == kReplayPhases) verdict.named.push_back(host);
  }
  verdict.text = verdict.named.empty()
                     ? absl::StrCat("no host computes otherwise than the others (", right, ")")
                     : absl::StrCat("all groups with ", absl::StrJoin(verdict.named, ", "),
                                    " computed otherwise than the others (", right, ")");
  return verdict;
}

}  // namespace weft::recovery
