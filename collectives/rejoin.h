// Endpoints of a job that goes on after the loss of ranks (recovery.h), when new processes have
// taken their places: the other ranks keep endpoint, links and what they know of each other, and
// only what leads to the new processes is made.
//
// On the ranks that are left: first all of them let go of the ranks that are replaced, then the new
// processes come, and everybody calls Rejoin(). Communicators are made anew, which takes no
// message. In between, no communicator is there. Used by one thread at a time.
#ifndef WEFT_COLLECTIVES_REJOIN_H_
#define WEFT_COLLECTIVES_REJOIN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/endpoint.h"

namespace weft::collectives {

// Ranks of a job whose processes were replaced by new ones, all at once.
struct Rejoining {
  int64_t epoch = 0;          // of the job: another one each time
  std::vector<int> replaced;  // ascending
};

struct RejoinableOptions : EndpointOptions {
  RejoinableOptions() = default;
  explicit RejoinableOptions(EndpointOptions options) : EndpointOptions(std::move(options)) {}

  // Links between the other ranks are to outlive the loss of one; the same on all ranks.
  bool rejoins = false;
  // This process is one of those that come into a job which goes on: it waits for the others of
  // these alone, and learns from the store who the rest are.
  std::optional<Rejoining> rejoining;
};

class Rejoinable {
 public:
  virtual ~Rejoinable() = default;
  // FailedPrecondition: a link to another rank is lost as well, so that all have to join anew.
  virtual absl::Status Forget(const std::vector<int>& replaced) = 0;
  // Learns where the new processes are; kDeadlineExceeded: they did not say.
  virtual absl::Status Rejoin(const Rejoining& rejoining) = 0;
  // Since the endpoint was made.
  struct LinkTotals {
    int64_t opened = 0, accepted = 0;
  };
  virtual LinkTotals links_made() const = 0;
};

// As Endpoint::Create().
absl::StatusOr<std::shared_ptr<Endpoint>> CreateRejoinable(RejoinableOptions options);
Rejoinable& AsRejoinable(Endpoint& endpoint);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_REJOIN_H_
