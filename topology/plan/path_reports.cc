#include "topology/plan/path_reports.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace weft::topology {
namespace {

constexpr absl::string_view kNobody = "-";
constexpr size_t kReportsShown = 3;
// Reports with stamps from this on are refused.
constexpr uint64_t kStampMost = uint64_t{1} << 62;

absl::string_view NameOf(PathReports::State state) {
  switch (state) {
    case PathReports::State::kDropping:
      return "dropping";
    case PathReports::State::kLeft:
      return "left";
    case PathReports::State::kGood:
      break;
  }
  return "good";
}

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= PathReports::kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isgraph(c); });
}

}  // namespace

void PathReports::Forget() {
  while (entries_.size() > kMost) {
    entries_.erase(std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.second.stamp < b.second.stamp; }));
  }
}

bool PathReports::Report(const Subject& subject, State state) {
  if (!IsName(subject.over) || !IsName(subject.source) || !IsName(subject.target)) return false;
  const auto known = entries_.find(subject);
  if (known == entries_.end() ? state == State::kGood : known->second.state == state) return false;
  // What is known of the switch already says enough.
  if (state == State::kDropping && IsLost(subject.over)) return false;
  if (!Change(subject, state)) return false;
  Forget();
  return true;
}

bool PathReports::Change(const Subject& subject, State state) {
  if (newest_ + 1 >= kStampMost) return false;
  entries_[subject] = {state, ++newest_};
  return true;
}

bool PathReports::Passes(const std::string& over) {
  bool any = false;
  for (auto& [subject, entry] : entries_) {
    if (subject.over != over || entry.state != State::kDropping) continue;
    any |= Change(subject, State::kGood);
  }
  return any;
}

absl::StatusOr<bool> PathReports::Merge(absl::string_view text) {
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(text.size(), " bytes of reports about paths; at most ", kTextBytesMax));
  }
  std::vector<std::pair<Subject, Entry>> heard;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    Entry entry;
    const bool is_good = words.size() == 5 && IsName(words[1]) && IsName(words[2]) &&
                         IsName(words[3]) && absl::SimpleAtoi(words[4], &entry.stamp) &&
                         entry.stamp < kStampMost && heard.size() < kMost;
    bool is_known = false;
    for (State state : {State::kDropping, State::kLeft, State::kGood}) {
      if (!is_good || words[0] != NameOf(state)) continue;
      entry.state = state;
      is_known = true;
    }
    if (!is_known) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", line.substr(0, 80),
                       "\" is no report about a path; right is \"dropping spine0 leaf3 leaf2 7\""));
    }
    heard.push_back({{std::string(words[1]), std::string(words[2]), std::string(words[3])}, entry});
  }
  bool any = false;
  for (auto& [subject, entry] : heard) {
    newest_ = std::max(newest_, entry.stamp);
    Entry& own = entries_[subject];
    // Where two authors gave the same stamp, the same one wins everywhere.
    if (std::pair(entry.stamp, entry.state) <= std::pair(own.stamp, own.state)) continue;
    own = entry;
    any = true;
  }
  Forget();
  return any;
}

std::string PathReports::ToText() const {
  std::string text;
  for (const auto& [subject, entry] : entries_) {
    std::string line = absl::StrCat(NameOf(entry.state), " ", subject.over, " ", subject.source,
                                    " ", subject.target, " ", entry.stamp, "\n");
    if (text.size() + line.size() <= kTextBytesMax) text += line;
  }
  return text;
}

std::string PathReports::Summary() const {
  std::vector<std::string> all;
  for (const auto& [subject, entry] : entries_) {
    if (entry.state == State::kGood) continue;
    all.push_back(absl::StrCat(NameOf(entry.state), " ", subject.over, " ", subject.source,
                               subject.target == kNobody ? "" : " ",
                               subject.target == kNobody ? "" : subject.target));
  }
  const size_t more = all.size() > kReportsShown ? all.size() - kReportsShown : 0;
  all.resize(all.size() - more);
  std::string text = absl::StrJoin(all, ", ");
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

bool PathReports::IsLost(const std::string& over) const {
  std::vector<const Subject*> dropping;
  std::set<std::string> left;
  for (const auto& [subject, entry] : entries_) {
    if (subject.over != over) continue;
    if (entry.state == State::kDropping) dropping.push_back(&subject);
    if (entry.state == State::kLeft) left.insert(subject.source);
  }
  return left.size() > 1 || std::any_of(dropping.begin(), dropping.end(), [&](const Subject* a) {
           return std::any_of(dropping.begin(), dropping.end(), [&](const Subject* b) {
             return a->source != b->source && a->target != b->target;
           });
         });
}

bool PathReports::HasLeft(const std::string& over, const std::string& source) const {
  const auto found = entries_.find({over, source, std::string(kNobody)});
  return found != entries_.end() && found->second.state == State::kLeft;
}

int PathReports::Count(const std::string& over) const {
  return static_cast<int>(std::count_if(entries_.begin(), entries_.end(), [&](const auto& one) {
    return one.first.over == over && one.second.state != State::kGood;
  }));
}

std::vector<std::string> PathReports::LostFrom(const std::string& source) const {
  std::set<std::string> names;
  for (const auto& [subject, entry] : entries_) {
    if (entry.state != State::kGood) names.insert(subject.over);
  }
  std::vector<std::pair<int, std::string>> ranked;
  for (const std::string& name : names) {
    if (IsLost(name) || HasLeft(name, source)) ranked.emplace_back(-Count(name), name);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> out;
  for (auto& [_, name] : ranked) out.push_back(std::move(name));
  return out;
}

}  // namespace weft::topology
