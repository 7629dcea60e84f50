#include "tests/bench/init/compare.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/bench/init/group_scheme.h"
#include "tools/init/model.h"

namespace weft::init {
namespace {

absl::StatusOr<Options> Smaller(const Options& options, int factor) {
  Options small = Shrink(options, factor);
  WEFT_RETURN_IF_ERROR(Resolve(small));
  return small;
}

}  // namespace

absl::StatusOr<Comparison> Compare(const Options& options, int64_t most_messages,
                                   const MeasureFunction& measure) {
  Comparison comparison;
  int axis = options.mesh.axes().back().size;
  std::vector<int> factors;
  for (int factor = axis; factor >= 1; factor /= 2) {
    if (axis % factor != 0 || options.hosts % factor != 0) continue;
    WEFT_ASSIGN_OR_RETURN(Options small, Smaller(options, factor));
    if (GroupScheme::Messages(small.mesh, *options.store) > most_messages) break;
    factors.push_back(factor);
  }
  if (factors.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups are measured for a smaller last axis: that of --layout ",
                     options.layout, " cannot be halved often enough"));
  }
  if (factors.size() > 3) factors.erase(factors.begin(), factors.end() - 3);
  std::vector<std::pair<double, double>> points;
  for (int factor : factors) {
    WEFT_ASSIGN_OR_RETURN(Options small, Smaller(options, factor));
    small.group_maker = [](Client& client, const topology::Mesh& mesh, int rank) {
      return std::make_unique<GroupScheme>(client, mesh, rank);
    };
    small.connect_ranks = 0;
    WEFT_ASSIGN_OR_RETURN(Measurement m, measure(small));
    Comparison::Row row;
    row.ranks = m.ranks;
    row.groups = GroupScheme::Groups(small.mesh);
    row.messages = GroupScheme::Messages(small.mesh, *options.store);
    row.seconds = m.phases[static_cast<size_t>(Phase::kGroups)].seconds;
    row.server_cpu_seconds = m.server_cpu_seconds;
    comparison.one_by_one.push_back(row);
    points.emplace_back(m.ranks, row.seconds / static_cast<double>(row.groups));
  }
  if (points.size() > 1) {
    auto [ranks, measured] = points.back();
    comparison.error = Fit({points.begin(), points.end() - 1}, 2)(ranks) / measured - 1;
  }
  if (factors.back() != 1) {
    Comparison::Row row;
    row.ranks = options.ranks;
    row.groups = GroupScheme::Groups(options.mesh);
    row.messages = GroupScheme::Messages(options.mesh, *options.store);
    row.seconds = Fit(points, 2)(options.ranks) * static_cast<double>(row.groups);
    row.server_cpu_seconds = -1;
    row.predicted = true;
    comparison.one_by_one.push_back(row);
  }
  WEFT_ASSIGN_OR_RETURN(comparison.exchange, measure(options));
  return comparison;
}

}  // namespace weft::init
