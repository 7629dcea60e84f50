// The groups of a process, and what was heard of groups that it has yet to make: other ranks may
// have made a group, and failed or left it, before this rank makes it. What comes of a group after
// this rank has left it is not kept, as a group's name is used once. Thread-safe.
#ifndef WEFT_COLLECTIVES_GROUP_REGISTRY_H_
#define WEFT_COLLECTIVES_GROUP_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
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
  // So many groups that were removed are known as such. What comes even later of one is kept as if
  // the group were yet to be made, which costs its memory and nothing else.
  static constexpr size_t kOverMost = 1024;

  // Gives the group what was heard of it. kAlreadyExists: another has its name or its id.
  absl::Status Add(const std::shared_ptr<Group>& group);
  void Remove(Group& group);

  // Null: it is not made yet, or gone. The pointer holds for as long as nobody removes the group,
  // which only the driver does.
  Group* Find(uint32_t id);
  // The same; where it is not made yet, keeps for later why it failed, or after how many
  // collectives `rank` of the job has left it.
  Group* FindElseFail(uint32_t id, const absl::Status& reason);
  Group* FindElseLeave(uint32_t id, Rank rank, uint32_t next);
  // Whether anything that comes of the group will never be received: it has failed, here or as was
  // heard of it, whether it was removed since or not.
  bool HasFailed(uint32_t id);

  // All groups that `rank` of the job belongs to learn that no link leads to it any more.
  void Depart(Rank rank, const absl::Status& gone);

  // What is kept of groups that are not here.
  size_t kept();

 private:
  struct Over {
    uint32_t id = 0;
    bool failed = false;
  };

  Group* FindLocked(uint32_t id) const;
  const Over* FindOver(uint32_t id) const;  // null: it is not over

  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Group>> groups_;
  std::map<uint32_t, absl::Status> failed_early_;
  std::map<std::pair<uint32_t, Rank>, uint32_t> left_early_;  // by group and rank of the job
  std::deque<Over> over_;  // groups that were removed last, at most kOverMost
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_GROUP_REGISTRY_H_
