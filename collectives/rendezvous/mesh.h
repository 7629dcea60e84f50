// A parallel layout, "tp8,pp8,dp256": axes with their sizes, the first varies fastest with the
// rank. Every rank computes from it every group it belongs to; nobody needs to be asked.
//
// The group of a rank along an axis is the ranks that differ from it in that coordinate only: with
// Megatron's order (tensor, pipeline, data), tp groups are 8 neighbours and dp groups are spread.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_MESH_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_MESH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::collectives {

class Mesh {
 public:
  struct Axis {
    std::string name;  // letters
    int size = 1;
    int stride = 1;  // between neighbours of a group
  };
  struct Group {
    int axis = 0;
    int index = 0;             // among the groups of this axis
    int position = 0;          // of the rank in it
    std::vector<int> members;  // ranks, ascending
  };

  // kInvalidArgument says which part is wrong. At most 2^20 ranks.
  static absl::StatusOr<Mesh> Parse(absl::string_view layout);

  int ranks() const { return ranks_; }
  const std::vector<Axis>& axes() const { return axes_; }
  int GroupsOf(int axis) const { return ranks_ / axes_[static_cast<size_t>(axis)].size; }
  Group GroupOf(int rank, int axis) const;
  std::vector<Group> GroupsOfRank(int rank) const;  // one an axis
  std::string ToText() const;                       // "tp8,pp8,dp256"

 private:
  std::vector<Axis> axes_;
  int ranks_ = 1;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_MESH_H_
