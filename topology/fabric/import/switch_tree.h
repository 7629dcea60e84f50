// What formats say that know only which node is below which switch: Slurm's and hosts -> switch.
// Internal.
#ifndef WEFT_TOPOLOGY_FABRIC_IMPORT_SWITCH_TREE_H_
#define WEFT_TOPOLOGY_FABRIC_IMPORT_SWITCH_TREE_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "base/text_lines.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/import/import.h"

namespace weft::topology {

// A node may be below several switches: a host then has a NIC for each, a switch shares its
// bandwidth up among them. Hosts come first, then switches by tier, in natural order of their
// names.
class SwitchTree {
 public:
  // Each of `below` is under `above`. The line is for errors: the same pair twice; a node below
  // itself; more than a fabric may have.
  absl::Status Add(const std::string& above, const std::vector<std::string>& below,
                   const TextLines& line);

  // What has nothing below it is a host, but for `switches`.
  absl::StatusOr<Fabric> Build(const ImportDefaults& defaults, const std::string& file,
                               const absl::flat_hash_set<std::string>& switches = {}) const;

 private:
  struct Node {
    std::string name;
    std::vector<int> above, below;
    int line = 0;  // that named it first
  };
  int Find(const std::string& name, int line);
  absl::StatusOr<std::vector<int>> BottomUp(const std::string& file) const;

  std::vector<Node> nodes_;
  absl::flat_hash_map<std::string, int> by_name_;
  absl::flat_hash_map<std::pair<int, int>, int> pairs_;  // the line of each
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_IMPORT_SWITCH_TREE_H_
