#include "collectives/planner/forced.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/units.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/planner/planner.h"

namespace weft::collectives::planner {
namespace {

absl::Status Wrong(absl::string_view rule, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("collective.algorithm_by_kind: \"", rule, "\" ", why));
}

// That there is an algorithm of that name at all.
absl::Status CheckName(const std::string& wanted) {
  std::vector<std::string> names{"auto"};
  for (const Algorithm* algorithm : Algorithms()) names.emplace_back(algorithm->name);
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return absl::OkStatus();
  const std::string nearest = NearestName(wanted, names);
  return absl::InvalidArgumentError(
      absl::StrCat("collective.algorithm=", wanted, " is none of ", absl::StrJoin(names, ", "),
                   nearest.empty() ? "" : absl::StrCat("; nearest: ", nearest)));
}

// Cuts off what follows the last `mark`, and returns it.
std::optional<absl::string_view> CutAt(absl::string_view& text, char mark) {
  const size_t at = text.rfind(mark);
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view rest = text.substr(at + 1);
  text = text.substr(0, at);
  return absl::StripAsciiWhitespace(rest);
}

}  // namespace

std::optional<CollectiveKind> FindKind(absl::string_view name) {
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    if (name == ToString(static_cast<CollectiveKind>(k))) return static_cast<CollectiveKind>(k);
  }
  return std::nullopt;
}

std::string KindNames() {
  std::vector<std::string> names;
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    names.emplace_back(ToString(static_cast<CollectiveKind>(k)));
  }
  return absl::StrJoin(names, ", ");
}

std::string AlgorithmNames(CollectiveKind kind) {
  std::vector<std::string> names{"auto"};
  for (const Algorithm* algorithm : Algorithms()) {
    if (algorithm->has(kind)) names.emplace_back(algorithm->name);
  }
  return absl::StrJoin(names, ", ");
}

absl::Status CheckAlgorithm(const Settings& settings, absl::Span<const CollectiveKind> kinds) {
  const std::string& wanted = settings.Text("collective.algorithm");
  WEFT_RETURN_IF_ERROR(CheckName(wanted));
  std::string there;
  for (CollectiveKind kind : kinds) {
    if (wanted == "auto" || FindAlgorithm(wanted, kind) != nullptr) return absl::OkStatus();
    absl::StrAppend(&there, there.empty() ? "" : "; ", ToString(kind), " has ",
                    AlgorithmNames(kind));
  }
  if (kinds.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("collective.algorithm=", wanted, ": ", there));
}

uint64_t BytesOf(const CollectiveSpec& spec, size_t element) {
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return spec.count * element;
    case CollectiveKind::kAllGatherV:
      return element *
             std::accumulate(spec.output_counts.begin(), spec.output_counts.end(), uint64_t{0});
    case CollectiveKind::kBarrier:
      return 0;
    default:
      return PlannedCount(spec, element) * element * static_cast<uint64_t>(spec.size);
  }
}

absl::StatusOr<Forced::Rule> Forced::Parse(absl::string_view text) {
  absl::string_view left = text;
  const auto algorithm = CutAt(left, '=');
  if (!algorithm.has_value()) {
    return Wrong(text, "is not a collective and its algorithm, as all_reduce=tree");
  }
  Rule rule;
  if (const auto group = CutAt(left, '@'); group.has_value()) {
    if (group->empty()) return Wrong(text, "names no group after '@'");
    rule.group = std::string(*group);
  }
  const auto sizes = CutAt(left, ':');
  left = absl::StripAsciiWhitespace(left);
  const auto kind = FindKind(left);
  if (!kind.has_value()) {
    return Wrong(text, absl::StrCat("has no collective; there are ", KindNames()));
  }
  rule.kind = *kind;
  if (sizes.has_value()) {
    const std::vector<std::string> ends = absl::StrSplit(*sizes, "..");
    if (ends.size() != 2) return Wrong(text, "has sizes that are no range, as 1MiB..64MiB");
    for (const auto& [end, bytes] :
         {std::pair(ends[0], &rule.bytes_min), {ends[1], &rule.bytes_max}}) {
      if (absl::StripAsciiWhitespace(end).empty()) continue;
      const absl::StatusOr<Bytes> parsed = ParseBytes(absl::StripAsciiWhitespace(end));
      if (!parsed.ok()) return Wrong(text, absl::StrCat(": ", parsed.status().message()));
      *bytes = static_cast<uint64_t>(parsed->count());
    }
    if (rule.bytes_min > rule.bytes_max) return Wrong(text, "has sizes that end before they begin");
  }
  if (*algorithm != "auto") {
    if (FindAlgorithm(*algorithm, rule.kind) == nullptr) {
      return Wrong(text, absl::StrCat("has an algorithm that ", ToString(rule.kind),
                                      " lacks; there are ", AlgorithmNames(rule.kind)));
    }
    rule.algorithm = std::string(*algorithm);
  }
  return rule;
}

absl::StatusOr<Forced> Forced::Create(const Settings& settings) {
  Forced forced;
  const std::string& every = settings.Text("collective.algorithm");
  WEFT_RETURN_IF_ERROR(CheckName(every));
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    const CollectiveKind kind = static_cast<CollectiveKind>(k);
    if (FindAlgorithm(every, kind) == nullptr) continue;
    Rule rule;
    rule.kind = kind;
    rule.algorithm = every;
    forced.rules_.push_back(std::move(rule));
  }
  const std::string& rules = settings.Text("collective.algorithm_by_kind");
  for (absl::string_view text : absl::StrSplit(rules, ',', absl::SkipWhitespace())) {
    WEFT_ASSIGN_OR_RETURN(Rule rule, Parse(absl::StripAsciiWhitespace(text)));
    forced.rules_.push_back(std::move(rule));
  }
  return forced;
}

absl::string_view Forced::For(const CollectiveSpec& spec, size_t element,
                              absl::string_view group) const {
  const uint64_t bytes = BytesOf(spec, element);
  absl::string_view algorithm;
  for (const Rule& rule : rules_) {
    if (rule.kind != spec.kind || bytes < rule.bytes_min || bytes > rule.bytes_max) continue;
    absl::string_view begin = rule.group;
    const bool fits =
        absl::ConsumeSuffix(&begin, "*") ? absl::StartsWith(group, begin) : group == rule.group;
    if (fits) algorithm = rule.algorithm;
  }
  return algorithm;
}

}  // namespace weft::collectives::planner
