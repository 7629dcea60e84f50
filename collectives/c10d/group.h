// How processes that meet at a c10d::Store become a group of ours: store -> endpoint -> backend.
#ifndef WEFT_COLLECTIVES_C10D_GROUP_H_
#define WEFT_COLLECTIVES_C10D_GROUP_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "base/settings.h"
#include "collectives/c10d/backend.h"
#include "collectives/endpoint.h"

namespace weft::collectives {

struct GroupOptions {
  c10::intrusive_ptr<c10d::Store> store;  // the group's own name space
  int rank = 0;                           // in the group
  int size = 1;
  // No other group of these processes has it, unless that has the same ranks in the same order.
  std::string name;
  // Ranks of its members in the default group, by group rank; empty: this is the default group.
  std::vector<int64_t> global_ranks;
  // The default group, which shrink() may have made: what `global_ranks` count. Null: the default
  // group that Make() made last, while it is alive.
  c10::intrusive_ptr<WeftBackend> default_group;
  // Limit of waits; also of collectives and of the rendezvous, where the settings set none. A group
  // that shares an endpoint has the longer one of this and the default group's for its collectives.
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  Settings settings{LibrarySettings()};
  // "name=value" each, over `settings`: what this group was asked to have.
  std::vector<std::string> own_settings;
};

// A group with an endpoint of its own. Returns when all its processes are there, or
// kDeadlineExceeded that names those missing.
absl::StatusOr<c10::intrusive_ptr<WeftBackend>> JoinGroup(GroupOptions options);

// The groups of one process: weakly, as their users own them. Thread-safe.
class BackendRegistry {
 public:
  void Add(const c10::intrusive_ptr<WeftBackend>& group);
  // In the order in which they were made.
  std::vector<c10::intrusive_ptr<WeftBackend>> All();

 private:
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<WeftBackend>> groups_;
};

// The groups of one process. The default group makes the endpoint that the others share, which need
// no meeting then; where there is no default group of ours, each makes its own. Thread-safe, where
// all processes make their groups in the same order.
class ProcessGroups {
 public:
  // As JoinGroup. kFailedPrecondition in a process that was forked while groups were alive;
  // kInvalidArgument where a group that shares the endpoint was asked to have a setting that
  // belongs to that, with another value (group_settings.h).
  absl::StatusOr<c10::intrusive_ptr<WeftBackend>> Make(GroupOptions options);
  // That are alive: not shut down. Also those that were made by split(), merge() and shrink().
  std::vector<c10::intrusive_ptr<WeftBackend>> Alive();
  // At the end of the process, before the interpreter goes that futures' callbacks need.
  void ShutDownAll();

 private:
  const std::shared_ptr<BackendRegistry> registry_ = std::make_shared<BackendRegistry>();
  std::mutex mutex_;  // one group is made at a time
  c10::weak_intrusive_ptr<WeftBackend> default_group_{c10::intrusive_ptr<WeftBackend>()};
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_GROUP_H_
