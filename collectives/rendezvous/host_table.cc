#include "collectives/rendezvous/host_table.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace weft::collectives {

std::vector<int> NumberNames(absl::Span<const std::string> names) {
  std::map<absl::string_view, int> numbers;
  std::vector<int> hosts;
  hosts.reserve(names.size());
  for (const std::string& name : names) {
    hosts.push_back(numbers.emplace(name, static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

std::string EncodeNumbers(absl::Span<const int> numbers) {
  std::vector<std::pair<int, int>> runs;  // number, ranks
  for (int number : numbers) {
    if (runs.empty() || runs.back().first != number) runs.emplace_back(number, 0);
    ++runs.back().second;
  }
  bool regular = !runs.empty();
  for (size_t i = 0; i < runs.size(); ++i) {
    regular = regular && runs[i] == std::pair(static_cast<int>(i), runs[0].second);
  }
  if (regular) return absl::StrCat(runs[0].second, "*");
  return absl::StrJoin(runs, ",", [](std::string* out, const std::pair<int, int>& run) {
    absl::StrAppend(out, run.first, "x", run.second);
  });
}

absl::StatusOr<std::vector<int>> DecodeNumbers(absl::string_view text, int ranks) {
  const auto wrong = [&] {
    return absl::DataLossError(absl::StrCat("'", text, "' holds no numbers of ", ranks, " ranks"));
  };
  std::vector<int> hosts;
  hosts.reserve(static_cast<size_t>(ranks));
  int every = 0;
  if (absl::EndsWith(text, "*")) {
    if (!absl::SimpleAtoi(text.substr(0, text.size() - 1), &every) || every < 1) return wrong();
    for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / every);
    return hosts;
  }
  for (absl::string_view run : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(run, absl::MaxSplits('x', 1));
    int host = 0, count = 0;
    const bool good = absl::SimpleAtoi(parts.first, &host) && host >= 0 && host < ranks &&
                      absl::SimpleAtoi(parts.second, &count) && count >= 1 &&
                      count <= ranks - static_cast<int>(hosts.size());
    if (!good) return wrong();
    hosts.insert(hosts.end(), static_cast<size_t>(count), host);
  }
  if (static_cast<int>(hosts.size()) != ranks) return wrong();
  return hosts;
}

}  // namespace weft::collectives
