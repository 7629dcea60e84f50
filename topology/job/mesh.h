// The parallel layout of a job: a mesh of ranks, with one axis for each kind of parallelism.
//
// A mesh lists its axes with their sizes; the order of the list is the nesting. Neighbours along
// the first axis have consecutive ranks; along each further axis they are as many ranks apart as
// the axes before it have places. Both orders of the field are lists:
//
//   tensor, context, expert, data, pipeline   Megatron-LM's default, and MegaScale's (NSDI'24,
//                                             section 2): data groups lie nearer than pipelines
//   tensor, pipeline, data                    pipelines lie nearer than data groups
//
// The group of a rank along a set of axes is the ranks that differ from it in those coordinates
// only, in ascending order: along {data, context} it is the ranks that reduce gradients together,
// along {tensor, pipeline} those that hold one copy of the model. The groups of a set partition the
// ranks. Every rank computes all of its groups from the mesh alone.
//
// The expert axis is one of its own: the ranks along it hold different experts and the same dense
// parameters. Dense parameters are thus replicated along {data, expert, context}, an expert's along
// {data, context}. Where a program counts expert parallelism as a part of data parallelism (a `dp`
// that `ep` divides), its data axis here has dp / ep places.
//
// Pure values without I/O; thread-safe as such. A rank or an axis out of range aborts.
#ifndef WEFT_TOPOLOGY_JOB_MESH_H_
#define WEFT_TOPOLOGY_JOB_MESH_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"

namespace weft::topology {

using JobRank = Rank;  // a process of a job, from 0; positions in groups are ints

enum class Axis : uint8_t { kTensor, kContext, kExpert, kData, kPipeline };
inline constexpr int kAxisCount = 5;
inline constexpr std::array<Axis, kAxisCount> kDataInsidePipeline = {
    Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kData, Axis::kPipeline};
inline constexpr int kMeshRanksMax = 1 << 20;

const char* ToString(Axis axis);  // "tensor"
const char* Brief(Axis axis);     // "tp"
// Reads "tensor" or "tp", "context" or "cp", "expert" or "ep", "data" or "dp", "pipeline" or "pp".
absl::StatusOr<Axis> ParseAxis(absl::string_view name);

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) Add(axis);
  }
  constexpr void Add(Axis axis) { bits_ |= static_cast<uint8_t>(1U << static_cast<int>(axis)); }
  constexpr bool Has(Axis axis) const { return (bits_ >> static_cast<int>(axis) & 1U) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const AxisSet&) const = default;

 private:
  uint8_t bits_ = 0;
};

std::string ToString(AxisSet axes);  // "context+data"
std::string Brief(AxisSet axes);     // "cp+dp"

struct AxisSize {
  Axis axis = Axis::kTensor;
  int size = 1;
};

struct MeshAxis {
  Axis axis = Axis::kTensor;
  int size = 1;
  int stride = 1;  // ranks between neighbours along the axis
};

using MeshCoordinate = std::array<int, kAxisCount>;  // by Axis; 0 on axes that are not listed

struct MeshGroup {
  AxisSet axes;
  int index = 0;                 // among the groups of these axes, in the order of lowest ranks
  int position = 0;              // in `members`, of the rank that was asked for
  std::vector<JobRank> members;  // ascending
};

class Mesh {
 public:
  Mesh() = default;  // one rank, no axes

  // `axes`: the nesting, the fastest first. Axes that are not listed have one place.
  // kInvalidArgument: a size below 1, an axis listed twice, or more than kMeshRanksMax ranks.
  static absl::StatusOr<Mesh> Create(absl::Span<const AxisSize> axes);

  int ranks() const { return ranks_; }
  absl::Span<const MeshAxis> axes() const { return axes_; }  // as listed
  int Size(Axis axis) const;                                 // 1 if it is not listed
  int Stride(Axis axis) const;                               // ranks() if it is not listed

  MeshCoordinate CoordinateOf(JobRank rank) const;
  int CoordinateOf(JobRank rank, Axis axis) const;
  JobRank RankAt(const MeshCoordinate& coordinate) const;

  int GroupSize(AxisSet axes) const;
  int GroupCount(AxisSet axes) const { return ranks_ / GroupSize(axes); }
  MeshGroup GroupOf(JobRank rank, AxisSet axes) const;
  // GroupOf() without the members: index and position alone.
  int GroupIndexOf(JobRank rank, AxisSet axes) const;
  int PositionIn(JobRank rank, AxisSet axes) const;
  // The groups along each single axis that is listed, in the order of the list.
  std::vector<MeshGroup> GroupsOf(JobRank rank) const;

  std::string ToText() const;    // "tp8,pp8,dp256", as listed; ParseMesh() reads it
  std::string Describe() const;  // "tensor 8 x data 192 x pipeline 8"; "1 rank"

 private:
  const MeshAxis* Find(Axis axis) const;

  std::vector<MeshAxis> axes_;
  int ranks_ = 1;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_MESH_H_
