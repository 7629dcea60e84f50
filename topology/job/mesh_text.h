// A mesh as text, for command lines and job files. One reader takes both spellings, also mixed:
//
//   tp8,pp8,dp256
//   tp=8,pp=8,dp=256      or tensor=8,pipeline=8,data=256
//
// `nesting=tp-pp-dp` gives the order of the axes, the fastest first. Without it ReadMesh()'s order
// holds, or, where that is kAsWritten, as always with ParseMesh(), that in which the text names the
// axes.
#ifndef WEFT_TOPOLOGY_JOB_MESH_TEXT_H_
#define WEFT_TOPOLOGY_JOB_MESH_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "topology/job/key_reader.h"
#include "topology/job/mesh.h"

namespace weft::topology {

inline constexpr absl::Span<const Axis> kAsWritten;

// kInvalidArgument quotes the text, the part that is wrong, and what would be right.
absl::StatusOr<Mesh> ParseMesh(absl::string_view text);

// Axes by their names, long or short, with any of the characters `separators` between them:
// "tp,data" with ",". An axis may be named again.
absl::StatusOr<AxisSet> ParseAxes(absl::string_view text, absl::string_view separators);

// The two halves of ParseMesh(), for descriptions in which a text comes on top of a file: the text
// as keys and values, `origin` for messages; and the mesh of keys and values, of which the last
// counts.
absl::StatusOr<Section> MeshSection(absl::string_view text, const std::string& origin);
absl::StatusOr<Mesh> ReadMesh(const Section& section, absl::Span<const Axis> order);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_MESH_TEXT_H_
