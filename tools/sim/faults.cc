#include "topology/fabric/faults.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "tools/command_line.h"
#include "tools/sim/options.h"

namespace weft::sim {
namespace {

using topology::Fabric;
using topology::LinkFault;

absl::Status TakeLine(absl::Span<const absl::string_view> words, const Fabric& fabric,
                      std::vector<LinkFault>& faults) {
  if (words.size() < 3 || words.size() > 4) {
    return absl::InvalidArgumentError(
        "a line is: TIME down|up|bandwidth CABLES [RATE|norerouting]");
  }
  const absl::string_view at = words[0], what = words[1];
  const absl::string_view cables = words[2], more = words.size() > 3 ? words[3] : "";
  LinkFault fault;
  if (!ParseFinite(at, &fault.at)) {
    return absl::InvalidArgumentError(absl::StrCat("'", at, "' is no time, as in 2ms"));
  }
  if (what == "bandwidth") {
    fault.kind = LinkFault::Kind::kBandwidth;
    WEFT_ASSIGN_OR_RETURN(fault.bandwidth, ParseBandwidth(more));
  } else if (what == "down" || what == "up") {
    fault.kind = what == "up" ? LinkFault::Kind::kUp : LinkFault::Kind::kDown;
    if (!more.empty() && more != "norerouting") {
      return absl::InvalidArgumentError(absl::StrCat("'", more, "' should be norerouting"));
    }
    fault.reroute = more.empty();
  } else {
    return absl::InvalidArgumentError(absl::StrCat("'", what, "' should be down, up or bandwidth"));
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> links, topology::CablesNamed(cables, fabric));
  for (LinkId link : links) {
    fault.link = link;
    faults.push_back(fault);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LinkFault>> ReadFaults(const std::string& path, const Fabric& fabric) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  TextLines lines(text, path);
  absl::string_view line;
  std::vector<LinkFault> faults;
  while (lines.Next(line, /*comments=*/false)) {
    // A comment begins with a word: leaf0>spine1#1 is a cable.
    std::vector<absl::string_view> words = Words(line);
    words.erase(std::find_if(words.begin(), words.end(),
                             [](absl::string_view word) { return word[0] == '#'; }),
                words.end());
    if (words.empty()) continue;
    absl::Status taken = TakeLine(words, fabric, faults);
    if (!taken.ok()) return Annotate(taken, lines.Where());
  }
  std::stable_sort(faults.begin(), faults.end(),
                   [](const LinkFault& a, const LinkFault& b) { return a.at < b.at; });
  return faults;
}

}  // namespace weft::sim
