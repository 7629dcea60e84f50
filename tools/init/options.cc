#include "tools/init/options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/job/mesh_text.h"

namespace weft::init {

absl::Status Resolve(Options& o) {
  WEFT_ASSIGN_OR_RETURN(o.mesh, topology::ParseMesh(o.layout));
  if (o.ranks == 0) o.ranks = o.mesh.ranks();
  if (o.ranks != o.mesh.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ranks ", o.ranks, ", but --layout ", o.layout, " has ", o.mesh.ranks()));
  }
  if (o.hosts == 0) {
    o.hosts = std::max(1, o.ranks / 8);
    while (o.ranks % o.hosts != 0) --o.hosts;
  }
  if (o.hosts > o.ranks || o.ranks % o.hosts != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(o.ranks, " ranks cannot be spread evenly over --hosts ", o.hosts));
  }
  if (o.replace < 0 || o.replace > o.ranks / 2 || o.replace % o.ranks_per_host() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--replace ", o.replace, ": at most half of the ranks, in whole hosts, of ",
                     o.ranks_per_host(), " ranks each"));
  }
  if (!o.store->has_exchanges() && (o.relay || o.replace > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        o.relay ? "--relay" : "--replace", ": only --store weft has that, not ", o.store->name()));
  }
  if (!o.store->has_exchanges() && !o.all_records) {
    return absl::InvalidArgumentError(
        absl::StrCat("--records wanted: only --store weft has exchanges, not ", o.store->name()));
  }
  if (o.replace > 0 && o.all_records) {
    return absl::InvalidArgumentError(
        absl::StrCat("--replace ", o.replace,
                     ": new ranks find the others' records where an exchange has left them; not "
                     "with --records all"));
  }
  if (o.fan_out > 0 && !o.relay) {
    return absl::InvalidArgumentError(
        absl::StrCat("--fan-out ", o.fan_out, ": relays of relays need --relay"));
  }
  return absl::OkStatus();
}

Options Shrink(const Options& options, int factor) {
  Options small = options;
  const auto& axes = options.mesh.axes();
  small.layout.clear();
  for (size_t i = 0; i < axes.size(); ++i) {
    int size = axes[i].size / (i + 1 == axes.size() ? factor : 1);
    absl::StrAppend(&small.layout, i == 0 ? "" : ",", Brief(axes[i].axis), size);
  }
  small.ranks = options.ranks / factor;
  // The smaller job keeps the ranks of a host where the hosts can be divided by `factor`; else
  // Resolve() chooses the hosts.
  small.hosts = options.hosts % factor == 0 ? options.hosts / factor : 0;
  small.replace = 0;
  small.workers = 0;
  return small;
}

}  // namespace weft::init
