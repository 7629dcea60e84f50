#include "topology/fabric/faults.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "topology/fabric/name_list.h"

namespace weft::topology {
namespace {

absl::StatusOr<std::vector<NodeId>> NodesNamed(absl::string_view text, const Fabric& fabric) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, ExpandNames(text, kMaxNodes));
  std::vector<NodeId> nodes;
  nodes.reserve(names.size());
  for (const std::string& name : names) {
    WEFT_ASSIGN_OR_RETURN(NodeId node, fabric.Find(name));
    nodes.push_back(node);
  }
  return nodes;
}

// `number`: which of the parallel cables; -1: all.
absl::Status AddBetween(NodeId a, NodeId b, int number, const Fabric& fabric,
                        std::vector<LinkId>& cables) {
  if (fabric.LinksFrom(b).size() < fabric.LinksFrom(a).size()) std::swap(a, b);
  std::vector<LinkId> between;
  for (LinkId link : fabric.LinksFrom(a)) {
    if (fabric.link(link).target == b) between.push_back(std::min(link, fabric.link(link).reverse));
  }
  std::sort(between.begin(), between.end());
  if (between.empty() || number >= static_cast<int>(between.size())) {
    return absl::NotFoundError(absl::StrCat("there are ", between.size(), " cables between ",
                                            fabric.node(a).name, " and ", fabric.node(b).name,
                                            number < 0 ? "" : absl::StrCat(", no #", number)));
  }
  if (number >= 0) between = {between[static_cast<size_t>(number)]};
  cables.insert(cables.end(), between.begin(), between.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LinkId>> CablesNamed(absl::string_view text, const Fabric& fabric) {
  std::vector<LinkId> cables;
  size_t arrow = text.find('>');
  if (arrow == absl::string_view::npos) {
    WEFT_ASSIGN_OR_RETURN(std::vector<NodeId> nodes, NodesNamed(text, fabric));
    for (NodeId node : nodes) {
      for (LinkId link : fabric.LinksFrom(node)) {
        cables.push_back(std::min(link, fabric.link(link).reverse));
      }
    }
  } else {
    absl::string_view far = text.substr(arrow + 1);
    int number = -1;
    size_t hash = far.find('#');
    if (hash != absl::string_view::npos) {
      if (!absl::SimpleAtoi(far.substr(hash + 1), &number) || number < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "\"", text.substr(0, 80), "\": after # goes the number of a cable, from 0"));
      }
      far = far.substr(0, hash);
    }
    WEFT_ASSIGN_OR_RETURN(std::vector<NodeId> from, NodesNamed(text.substr(0, arrow), fabric));
    WEFT_ASSIGN_OR_RETURN(std::vector<NodeId> to, NodesNamed(far, fabric));
    if (from.size() * to.size() > kMaxLinks) {
      return absl::ResourceExhaustedError(
          absl::StrCat("\"", text.substr(0, 80), "\" means more than ", kMaxLinks, " pairs"));
    }
    for (NodeId a : from) {
      for (NodeId b : to) WEFT_RETURN_IF_ERROR(AddBetween(a, b, number, fabric, cables));
    }
  }
  std::sort(cables.begin(), cables.end());
  cables.erase(std::unique(cables.begin(), cables.end()), cables.end());
  return cables;
}

}  // namespace weft::topology
