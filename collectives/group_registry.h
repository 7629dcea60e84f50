// The groups of a process, and what was heard of groups that it has yet to make: other ranks may
// have made a group, and failed or left it, before this rank makes it. Thread-safe.
#ifndef WEFT_COLLECTIVES_GROUP_REGISTRY_H_
#define WEFT_COLLECTIVES_GROUP_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "base/ids.h"
#include "collectives/operation.h"

namespace weft::collectives {

class GroupRegistry {
 public:
  // Gives the group what was heard of it. kAlreadyExists: another has its name or its id.
  absl::Status Add(const std::shared_ptr<Group>& group);
  void Remove(const Group& group);

  // Null: it is not made yet, or gone. The pointer holds for as long as nobody removes the group,
  // which only the driver does.
  Group* Find(uint32_t id);
  // The same; where there is none, keeps for later why it failed, or after how many collectives
  // `rank` of the job has left it.
  Group* FindElseFail(uint32_t id, const absl::Status& reason);
  Group* FindElseLeave(uint32_t id, Rank rank, uint32_t next);

  // All groups that `rank` of the job belongs to learn that no link leads to it any more.
  void Depart(Rank rank, const absl::Status& gone);

 private:
  Group* FindLocked(uint32_t id) const;

  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Group>> groups_;
  std::map<uint32_t, absl::Status> failed_early_;
  std::map<std::pair<uint32_t, Rank>, uint32_t> left_early_;  // by group and rank of the job
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_GROUP_REGISTRY_H_
