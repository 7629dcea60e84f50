// Whether the paths of a plan are still those that packets take. Flows of this host, from each of
// its NICs, are asked for at every switch with a choice on their way: behind it the time to live of
// a probe ends, and the answer names the switch that was chosen. A reboot, another order of next
// hops or a lost link change them.
//
// A tier of a NIC is verified when as many answers agree as leave a hash that has moved a chance of
// `missed_max` to agree as well, and none differs. One whose switches are silent is not.
#ifndef WEFT_TOPOLOGY_DISCOVERY_VERIFY_H_
#define WEFT_TOPOLOGY_DISCOVERY_VERIFY_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "topology/ecmp/hash_file.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

// The name of what answers a flow at one position, counted from 1; "": nothing does.
using AskName = std::function<absl::StatusOr<std::string>(const FiveTuple& flow, int position)>;

struct VerifyOptions {
  std::string host;                                  // of the fabric: this one
  std::vector<std::string> targets;                  // hosts; empty: all of the fabric
  int flows = 16;                                    // of each NIC and tier
  double missed_max = 0.02;                          // of a tier of a NIC
  absl::Duration limit = absl::Seconds(1);           // for all of it
  absl::Duration timeout = absl::Milliseconds(100);  // of one answer
};

// What one tier of switches does with the flows of one NIC.
struct VerifiedTier {
  int nic = 0, tier = 0;  // of the fabric: 1 is a leaf
  int asked = 0, right = 0, silent = 0;
  double missed = 1;             // chance that a hash that has moved gives these answers
  std::string at;                // a switch of it
  std::string ToString() const;  // "NIC 0, tier 1 (leaf0): 8 of 16 as planned, 8 silent"
};

struct Verified {
  std::vector<VerifiedTier> tiers;  // with a choice on the way of some flow
  double missed_max = 0;
  // A flow that is wrong: "UDP port 50000 to h4 (10.1.2.1): leaf0 sends it to spine1, not
  // spine0".
  std::string example;

  int asked() const { return Sum(&VerifiedTier::asked); }
  int right() const { return Sum(&VerifiedTier::right); }
  int silent() const { return Sum(&VerifiedTier::silent); }
  bool HasMoved() const { return asked() - right() - silent() > 0; }
  // Tiers with too few answers.
  std::vector<VerifiedTier> Unverified() const;
  std::string ToString() const;  // "32 flows asked for: 32 as planned"

 private:
  int Sum(int VerifiedTier::*count) const;
};

// `origin`: of `known`, for messages. NotFound: no such host. Unavailable: a switch has a choice,
// and `known` names no router, so nothing can be verified. Takes `limit` and one answer's time at
// most.
absl::StatusOr<Verified> VerifyPaths(const Fabric& fabric, const HashFile& known,
                                     absl::string_view origin, const VerifyOptions& options,
                                     const AskName& ask, const Clock& clock);

// The same of a plan directory, by probes: its fabric.toml, hashes.txt, and the hosts of its
// paths.txt.
absl::StatusOr<Verified> VerifyPlan(const std::string& folder, const VerifyOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_VERIFY_H_
