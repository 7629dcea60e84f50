#include "topology/cost/layout.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/settings.h"

namespace weft::topology {
namespace {

struct AxisName {
  Axis axis;
  const char* name;
  const char* brief;
};
constexpr AxisName kAxisNames[] = {{Axis::kTensor, "tensor", "tp"},
                                   {Axis::kContext, "context", "cp"},
                                   {Axis::kExpert, "expert", "ep"},
                                   {Axis::kData, "data", "dp"},
                                   {Axis::kPipeline, "pipeline", "pp"}};
static_assert(std::size(kAxisNames) == kAxisCount);

constexpr const char* kCollectiveNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                            "all_to_all", "send_recv"};
constexpr const char* kAlgorithmNames[] = {"ring", "tree", "hierarchical"};

template <typename T>
absl::StatusOr<T> Parse(absl::string_view name, absl::Span<const char* const> names,
                        absl::string_view what) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<T>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no ", what, "; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace

const char* ToString(Axis axis) { return kAxisNames[static_cast<size_t>(axis)].name; }

absl::StatusOr<Axis> ParseAxis(absl::string_view name) {
  for (const AxisName& row : kAxisNames) {
    if (name == row.name || name == row.brief) return row.axis;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name,
                   "' is no axis; there are tensor (tp), context (cp), expert (ep), data (dp) and "
                   "pipeline (pp)"));
}

std::string ToString(AxisSet axes) {
  std::string text;
  for (const AxisName& row : kAxisNames) {
    if (axes.Has(row.axis)) absl::StrAppend(&text, text.empty() ? "" : "+", row.name);
  }
  return text;
}

const char* ToString(Collective collective) {
  return kCollectiveNames[static_cast<size_t>(collective)];
}
const char* ToString(GroupAlgorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)];
}
absl::StatusOr<Collective> ParseCollective(absl::string_view name) {
  return Parse<Collective>(name, kCollectiveNames, "collective");
}
absl::StatusOr<GroupAlgorithm> ParseGroupAlgorithm(absl::string_view name) {
  return Parse<GroupAlgorithm>(name, kAlgorithmNames, "algorithm");
}

absl::Duration Traffic::Exposed(absl::Duration once) const {
  absl::Duration all = once * times;
  absl::Duration hidden = all * (1 - exposed);
  return all - hidden + std::max(absl::ZeroDuration(), hidden - window);
}

int JobLayout::world() const {
  int world = 1;
  for (int size : sizes) world *= size;
  return world;
}

int JobLayout::Stride(Axis axis) const {
  int stride = 1;
  for (Axis inner : nesting) {
    if (inner == axis) break;
    stride *= Size(inner);
  }
  return stride;
}

int JobLayout::GroupSize(AxisSet axes) const {
  int size = 1;
  for (Axis axis : nesting) {
    if (axes.Has(axis)) size *= Size(axis);
  }
  return size;
}

JobLayout::Place JobLayout::PlaceOf(int rank, AxisSet axes) const {
  Place place{0, 0};
  int group_stride = 1, index_stride = 1;
  for (Axis axis : nesting) {
    int coordinate = rank % Size(axis);
    rank /= Size(axis);
    int& number = axes.Has(axis) ? place.index : place.group;
    int& stride = axes.Has(axis) ? index_stride : group_stride;
    number += coordinate * stride;
    stride *= Size(axis);
  }
  return place;
}

std::string JobLayout::Describe() const {
  std::vector<std::string> parts;
  for (Axis axis : nesting) {
    if (Size(axis) > 1) parts.push_back(absl::StrCat(ToString(axis), " ", Size(axis)));
  }
  return parts.empty() ? "1 rank" : absl::StrJoin(parts, " x ");
}

absl::Status Job::Validate() const {
  int64_t world = 1;
  for (Axis axis : layout.nesting) {
    if (layout.Size(axis) < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToString(axis), " is ", layout.Size(axis), ", must be at least 1"));
    }
    world *= layout.Size(axis);
    if (world > (1 << 22)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the axes multiply to more than ", 1 << 22, " ranks"));
    }
  }
  if (node.gpus < 0 || node.gpus > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("node.gpus is ", node.gpus, ", must be from 1 to 1024"));
  }
  if (node.gpus > 0 && world % node.gpus != 0) {
    return absl::InvalidArgumentError(absl::StrCat(layout.Describe(), " is ", world,
                                                   " ranks, which does not fill hosts of ",
                                                   node.gpus, " GPUs"));
  }
  if (traffic.empty()) {
    return absl::InvalidArgumentError("no traffic: give a [model] or at least one [[traffic]]");
  }
  for (const Traffic& one : traffic) {
    auto error = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("traffic '", one.name, "': ", what));
    };
    if (one.axes.empty()) return error("names no axis");
    if (one.bytes < Bytes(0)) return error("bytes must not be below 0");
    if (!(one.times >= 0 && one.times < 1e9)) return error("times must be from 0 to 1e9");
    if (!(one.exposed >= 0 && one.exposed <= 1)) return error("exposed must be from 0 to 1");
    if (one.algorithm == GroupAlgorithm::kTree && one.collective != Collective::kAllReduce) {
      return error(absl::StrCat("there is no tree for ", ToString(one.collective)));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::topology
