// Whether the paths of a plan are still those that packets take: a few flows of this host are asked
// for, at the position behind their first switch, whose answers name the switch that was chosen. A
// reboot, another order of next hops or a lost link change them.
#ifndef WEFT_TOPOLOGY_DISCOVERY_VERIFY_H_
#define WEFT_TOPOLOGY_DISCOVERY_VERIFY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "topology/ecmp/hash_file.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

struct VerifyOptions {
  std::string host;                                  // of the fabric: this one
  int flows = 8;                                     // asked for, of different hosts
  absl::Duration limit = absl::Seconds(1);           // for all of it
  absl::Duration timeout = absl::Milliseconds(100);  // of one answer
};

struct Verified {
  int asked = 0, right = 0, silent = 0;
  std::string
      example;  // of one that is wrong: "UDP port 50000 to h4 (10.1.2.1): spine1, not spine0"
  bool HasMoved() const { return asked - right - silent > 0; }
  std::string ToString() const;  // "8 flows asked for: 8 as planned"
};

// `origin`: of `known`, for messages. NotFound: no such host.
absl::StatusOr<Verified> VerifyPaths(const Fabric& fabric, const HashFile& known,
                                     absl::string_view origin, const VerifyOptions& options);

// The same of a plan directory: its fabric.toml and hashes.txt. FailedPrecondition: they are not
// those that paths.txt was planned for.
absl::StatusOr<Verified> VerifyPlan(const std::string& folder, const VerifyOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_VERIFY_H_
