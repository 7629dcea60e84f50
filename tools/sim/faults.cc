#include "topology/fabric/faults.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "tools/sim/options.h"

namespace weft::sim {
namespace {

using topology::Fabric;
using topology::LinkFault;

absl::Status ParseLine(const std::string& line, const Fabric& fabric,
                       std::vector<LinkFault>& faults) {
  std::istringstream words(line.substr(0, line.find('#')));
  std::string at, what, cables, more, rest;
  if (!(words >> at)) return absl::OkStatus();
  words >> what >> cables >> more;
  if (cables.empty() || words >> rest) {
    return absl::InvalidArgumentError(
        "a line is: TIME down|up|bandwidth CABLES [RATE|norerouting]");
  }
  LinkFault fault;
  if (!absl::ParseDuration(at, &fault.at) || fault.at < absl::ZeroDuration()) {
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
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  std::istringstream file(std::move(text));
  std::vector<LinkFault> faults;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (absl::Status status = ParseLine(line, fabric, faults); !status.ok()) {
      return Annotate(status, absl::StrCat(path, ":", number));
    }
  }
  std::stable_sort(faults.begin(), faults.end(),
                   [](const LinkFault& a, const LinkFault& b) { return a.at < b.at; });
  return faults;
}

}  // namespace weft::sim
