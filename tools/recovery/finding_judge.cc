#include "tools/recovery/finding_judge.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace weft::recovery {
namespace {

// A finding counts when it is there in so many looks in a row.
constexpr int kLooks = 2;

std::string LineOf(const observe::Finding& finding) {
  std::string text = absl::StrCat(ToString(finding.fault), " (", ToString(finding.component), ")");
  if (!finding.culprits.empty()) {
    absl::StrAppend(&text, " of ", observe::RanksText(finding.culprits));
  }
  if (!finding.evidence.empty()) absl::StrAppend(&text, ": ", finding.evidence.front());
  return absl::StrReplaceAll(text, {{"\n", " "}});
}

}  // namespace

std::optional<Blame> BlameOf(observe::Fault fault) {
  using observe::Fault;
  switch (fault) {
    case Fault::kDeviceError:
    case Fault::kHostError:
    case Fault::kNicDown:
    case Fault::kLinkFlaps:
    case Fault::kStoppedHost:
      return Blame::kHost;
    case Fault::kStoppedRank:
    case Fault::kHangOutside:
    case Fault::kLivelock:
    case Fault::kReceiverNotPosting:
      return Blame::kRank;
    case Fault::kNotFinite:
    case Fault::kReplicaDiffers:
      return Blame::kNumbers;
    default:
      return std::nullopt;
  }
}

observe::DiagnoseOptions JudgedDiagnosis(absl::Duration still) {
  observe::DiagnoseOptions options;
  options.still_ns = absl::ToInt64Nanoseconds(still);
  options.slow_ratio = 1.3;
  options.slow_steps = 10;
  return options;
}

FindingJudge::News FindingJudge::Look(const std::vector<observe::Finding>& findings) {
  News news;
  std::map<std::string, int> now;
  for (const observe::Finding& finding : findings) {
    const std::string key =
        absl::StrCat(ToString(finding.fault), " ", absl::StrJoin(finding.culprits, ","));
    const int looks = now[key] = seen_[key] + 1;
    if (looks != kLooks) continue;
    const std::string line = LineOf(finding);
    const std::optional<Blame> blame = BlameOf(finding.fault);
    news.lines.push_back(line);
    if (!blame.has_value() || finding.culprits.empty()) continue;
    // Where a finding names several ranks, any of them may be the culprit; but a finding about
    // hosts is made of errors that were counted on each.
    const bool is_certain =
        finding.culprits.size() == 1 || finding.each_is_culprit || blame == Blame::kHost;
    if (is_certain) news.diagnosed.push_back({finding.culprits, *blame, line});
  }
  seen_ = std::move(now);
  return news;
}

}  // namespace weft::recovery
