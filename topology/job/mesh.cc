#include "topology/job/mesh.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

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

std::string Join(AxisSet axes, const char* AxisName::*name) {
  std::string text;
  for (const AxisName& row : kAxisNames) {
    if (axes.Has(row.axis)) absl::StrAppend(&text, text.empty() ? "" : "+", row.*name);
  }
  return text;
}

}  // namespace

const char* ToString(Axis axis) { return kAxisNames[static_cast<size_t>(axis)].name; }
const char* Brief(Axis axis) { return kAxisNames[static_cast<size_t>(axis)].brief; }
std::string ToString(AxisSet axes) { return Join(axes, &AxisName::name); }
std::string Brief(AxisSet axes) { return Join(axes, &AxisName::brief); }

absl::StatusOr<Axis> ParseAxis(absl::string_view name) {
  for (const AxisName& row : kAxisNames) {
    if (name == row.name || name == row.brief) return row.axis;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name,
                   "' is no axis; there are tensor (tp), context (cp), expert (ep), data (dp) and "
                   "pipeline (pp)"));
}

absl::StatusOr<Mesh> Mesh::Create(absl::Span<const AxisSize> axes) {
  Mesh mesh;
  for (const AxisSize& one : axes) {
    if (one.size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToString(one.axis), " is ", one.size, ", must be at least 1"));
    }
    if (mesh.Find(one.axis) != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(ToString(one.axis), " is named twice"));
    }
    if (one.size > kMeshRanksMax / mesh.ranks_) {
      return absl::InvalidArgumentError(
          absl::StrCat("the axes multiply to more than ", kMeshRanksMax, " ranks"));
    }
    mesh.axes_.push_back({one.axis, one.size, mesh.ranks_});
    mesh.ranks_ *= one.size;
  }
  return mesh;
}

const MeshAxis* Mesh::Find(Axis axis) const {
  for (const MeshAxis& one : axes_) {
    if (one.axis == axis) return &one;
  }
  return nullptr;
}

int Mesh::Size(Axis axis) const {
  const MeshAxis* found = Find(axis);
  return found == nullptr ? 1 : found->size;
}

int Mesh::Stride(Axis axis) const {
  const MeshAxis* found = Find(axis);
  return found == nullptr ? ranks_ : found->stride;
}

MeshCoordinate Mesh::CoordinateOf(JobRank rank) const {
  WEFT_CHECK(rank.value() >= 0 && rank.value() < ranks_,
             "rank " << rank.value() << " of " << ranks_);
  MeshCoordinate coordinate{};
  for (const MeshAxis& one : axes_) {
    coordinate[static_cast<size_t>(one.axis)] = rank.value() / one.stride % one.size;
  }
  return coordinate;
}

int Mesh::CoordinateOf(JobRank rank, Axis axis) const {
  return CoordinateOf(rank)[static_cast<size_t>(axis)];
}

JobRank Mesh::RankAt(const MeshCoordinate& coordinate) const {
  for (const AxisName& row : kAxisNames) {
    int place = coordinate[static_cast<size_t>(row.axis)];
    WEFT_CHECK(place >= 0 && place < Size(row.axis),
               row.name << " " << place << " of " << Size(row.axis));
  }
  int rank = 0;
  for (const MeshAxis& one : axes_) rank += coordinate[static_cast<size_t>(one.axis)] * one.stride;
  return JobRank(rank);
}

int Mesh::GroupSize(AxisSet axes) const {
  int size = 1;
  for (const MeshAxis& one : axes_) {
    if (axes.Has(one.axis)) size *= one.size;
  }
  return size;
}

int Mesh::PositionIn(JobRank rank, AxisSet axes) const {
  MeshCoordinate coordinate = CoordinateOf(rank);
  int position = 0, stride = 1;
  for (const MeshAxis& one : axes_) {
    if (!axes.Has(one.axis)) continue;
    position += coordinate[static_cast<size_t>(one.axis)] * stride;
    stride *= one.size;
  }
  return position;
}

int Mesh::GroupIndexOf(JobRank rank, AxisSet axes) const {
  AxisSet others;
  for (const MeshAxis& one : axes_) {
    if (!axes.Has(one.axis)) others.Add(one.axis);
  }
  return PositionIn(rank, others);
}

MeshGroup Mesh::GroupOf(JobRank rank, AxisSet axes) const {
  MeshGroup group{axes, GroupIndexOf(rank, axes), PositionIn(rank, axes), {}};
  MeshCoordinate lowest = CoordinateOf(rank);
  for (const MeshAxis& one : axes_) {
    if (axes.Has(one.axis)) lowest[static_cast<size_t>(one.axis)] = 0;
  }
  group.members.reserve(static_cast<size_t>(GroupSize(axes)));
  group.members.push_back(RankAt(lowest));
  // Every axis repeats the members so far at each of its places; as strides ascend, so do ranks.
  for (const MeshAxis& one : axes_) {
    if (!axes.Has(one.axis)) continue;
    size_t inner = group.members.size();
    for (int place = 1; place < one.size; ++place) {
      for (size_t i = 0; i < inner; ++i) {
        group.members.emplace_back(group.members[i].value() + place * one.stride);
      }
    }
  }
  return group;
}

std::vector<MeshGroup> Mesh::GroupsOf(JobRank rank) const {
  std::vector<MeshGroup> groups;
  groups.reserve(axes_.size());
  for (const MeshAxis& one : axes_) groups.push_back(GroupOf(rank, {one.axis}));
  return groups;
}

std::string Mesh::ToText() const {
  return absl::StrJoin(axes_, ",", [](std::string* out, const MeshAxis& one) {
    absl::StrAppend(out, Brief(one.axis), one.size);
  });
}

std::string Mesh::Describe() const {
  std::vector<std::string> parts;
  for (const MeshAxis& one : axes_) {
    if (one.size > 1) parts.push_back(absl::StrCat(ToString(one.axis), " ", one.size));
  }
  return parts.empty() ? "1 rank" : absl::StrJoin(parts, " x ");
}

}  // namespace weft::topology
