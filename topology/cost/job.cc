#include "topology/cost/job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::topology {
namespace {

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

const char* ToString(GroupAlgorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)];
}
absl::StatusOr<CollectiveKind> ParseTrafficKind(absl::string_view name) {
  using enum CollectiveKind;
  return ParseCollectiveKind(name,
                             {kAllReduce, kReduceScatter, kAllGather, kAllToAll, kSendReceive});
}
absl::StatusOr<GroupAlgorithm> ParseGroupAlgorithm(absl::string_view name) {
  return Parse<GroupAlgorithm>(name, kAlgorithmNames, "algorithm");
}

absl::Duration Traffic::Exposed(absl::Duration once) const {
  absl::Duration all = once * times;
  absl::Duration hidden = all * (1 - exposed);
  return all - hidden + std::max(absl::ZeroDuration(), hidden - window);
}

absl::Status Job::Validate() const {
  if (node.gpus < 0 || node.gpus > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("node.gpus is ", node.gpus, ", must be from 1 to 1024"));
  }
  if (node.gpus > 0 && mesh.ranks() % node.gpus != 0) {
    return absl::InvalidArgumentError(absl::StrCat(mesh.Describe(), " is ", mesh.ranks(),
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
    if (one.algorithm == GroupAlgorithm::kTree && one.collective != CollectiveKind::kAllReduce) {
      return error(absl::StrCat("there is no tree for ", ToString(one.collective)));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::topology
