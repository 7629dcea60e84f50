#include "collectives/rendezvous/mesh.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace weft::collectives {
namespace {

constexpr int kRanksMax = 1 << 20;

}  // namespace

absl::StatusOr<Mesh> Mesh::Parse(absl::string_view layout) {
  Mesh mesh;
  auto wrong = [&](absl::string_view part, absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout '", layout, "': '", part, "' ", why, "; right is tp8,pp8,dp256"));
  };
  for (absl::string_view part : absl::StrSplit(layout, ',')) {
    part = absl::StripAsciiWhitespace(part);
    size_t letters = 0;
    while (letters < part.size() && absl::ascii_isalpha(part[letters])) ++letters;
    Axis axis;
    axis.name = std::string(part.substr(0, letters));
    axis.stride = mesh.ranks_;
    if (letters == 0 || !absl::SimpleAtoi(part.substr(letters), &axis.size) || axis.size < 1) {
      return wrong(part, "is no axis and its size");
    }
    for (const Axis& other : mesh.axes_) {
      if (other.name == axis.name) return wrong(part, "names an axis again");
    }
    if (axis.size > kRanksMax / mesh.ranks_) {
      return wrong(part, absl::StrCat("makes more than ", kRanksMax, " ranks"));
    }
    mesh.ranks_ *= axis.size;
    mesh.axes_.push_back(std::move(axis));
  }
  return mesh;
}

Mesh::Group Mesh::GroupOf(int rank, int axis) const {
  const Axis& a = axes_[static_cast<size_t>(axis)];
  int low = rank % a.stride;
  int high = rank / (a.stride * a.size);
  Group group;
  group.axis = axis;
  group.index = low + high * a.stride;
  group.position = rank / a.stride % a.size;
  group.members.reserve(static_cast<size_t>(a.size));
  int first = low + high * a.stride * a.size;
  for (int i = 0; i < a.size; ++i) group.members.push_back(first + i * a.stride);
  return group;
}

std::vector<Mesh::Group> Mesh::GroupsOfRank(int rank) const {
  std::vector<Group> groups;
  groups.reserve(axes_.size());
  for (int axis = 0; axis < static_cast<int>(axes_.size()); ++axis) {
    groups.push_back(GroupOf(rank, axis));
  }
  return groups;
}

std::string Mesh::ToText() const {
  return absl::StrJoin(axes_, ",", [](std::string* out, const Axis& axis) {
    absl::StrAppend(out, axis.name, axis.size);
  });
}

}  // namespace weft::collectives
