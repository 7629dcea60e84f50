#include "collectives/group_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::collectives {

absl::Status GroupRegistry::Add(const std::shared_ptr<Group>& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [at, fresh] = groups_.try_emplace(group->id, group);
  if (!fresh) {
    return absl::AlreadyExistsError(
        absl::StrCat("the name of communicator \"", group->name, "\" is taken",
                     at->second->name == group->name
                         ? ""
                         : absl::StrCat(" (it hashes like \"", at->second->name, "\")")));
  }
  std::erase_if(over_, [&](const Over& one) { return one.id == group->id; });
  if (auto early = failed_early_.find(group->id); early != failed_early_.end()) {
    group->status = early->second;
    failed_early_.erase(early);
  }
  group->left.resize(group->ranks.size());
  for (size_t r = 0; r < group->ranks.size(); ++r) {
    const auto early = left_early_.find({group->id, group->ranks[r]});
    if (early == left_early_.end()) continue;
    group->left[r] = early->second;
    left_early_.erase(early);
  }
  return absl::OkStatus();
}

void GroupRegistry::Remove(Group& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  bool failed = false;
  {
    std::lock_guard<std::mutex> group_lock(group.mutex);
    failed = !group.status.ok();
  }
  groups_.erase(group.id);
  over_.push_back({group.id, failed});
  if (over_.size() > kOverMost) over_.pop_front();
}

const GroupRegistry::Over* GroupRegistry::FindOver(uint32_t id) const {
  const auto found =
      std::find_if(over_.begin(), over_.end(), [id](const Over& one) { return one.id == id; });
  return found == over_.end() ? nullptr : &*found;
}

bool GroupRegistry::HasFailed(uint32_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (Group* group = FindLocked(id); group != nullptr) {
    std::lock_guard<std::mutex> group_lock(group->mutex);
    return !group->status.ok();
  }
  const Over* over = FindOver(id);
  return over != nullptr ? over->failed : failed_early_.count(id) > 0;
}

size_t GroupRegistry::kept() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failed_early_.size() + left_early_.size() + over_.size();
}

Group* GroupRegistry::FindLocked(uint32_t id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.get();
}

Group* GroupRegistry::Find(uint32_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  return FindLocked(id);
}

Group* GroupRegistry::FindElseFail(uint32_t id, const absl::Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  Group* group = FindLocked(id);
  if (group == nullptr && FindOver(id) == nullptr) failed_early_.try_emplace(id, reason);
  return group;
}

Group* GroupRegistry::FindElseLeave(uint32_t id, Rank rank, uint32_t next) {
  std::lock_guard<std::mutex> lock(mutex_);
  Group* group = FindLocked(id);
  if (group == nullptr && FindOver(id) == nullptr) left_early_.insert_or_assign({id, rank}, next);
  return group;
}

void GroupRegistry::Depart(Rank rank, const absl::Status& gone) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [id, group] : groups_) {
    const auto& ranks = group->ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    std::lock_guard<std::mutex> group_lock(group->mutex);
    group->departed.emplace_back(rank, gone);
  }
}

}  // namespace weft::collectives
