#include "net/tcp/resume_book.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::net {

bool ResumeBook::Enter(uint64_t link_id, Rank peer, uint16_t sockets, std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  Entry entry{peer, std::vector<uint32_t>(sockets), std::move(wake), {}};
  return links_.emplace(link_id, std::move(entry)).second;
}

void ResumeBook::Leave(uint64_t link_id) {
  std::lock_guard lock(mutex_);
  links_.erase(link_id);
}

std::vector<ResumeBook::Arrival> ResumeBook::Take(uint64_t link_id) {
  std::lock_guard lock(mutex_);
  auto found = links_.find(link_id);
  return found == links_.end() ? std::vector<Arrival>() : std::exchange(found->second.arrivals, {});
}

absl::Status ResumeBook::Check(Rank peer, const LinkParameters& parameters) const {
  std::lock_guard lock(mutex_);
  return CheckLocked(peer, parameters);
}

absl::Status ResumeBook::CheckLocked(Rank peer, const LinkParameters& parameters) const {
  auto found = links_.find(parameters.link_id);
  if (found == links_.end() || found->second.peer != peer) {
    return absl::NotFoundError(
        "this process has no such link: it has closed or given up the link, or is another one");
  }
  const Entry& entry = found->second;
  if (parameters.count != entry.epochs.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a link of ", entry.epochs.size(), " sockets, not of ", parameters.count));
  }
  if (parameters.epoch > entry.epochs[parameters.index]) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("epoch ", parameters.epoch, " of socket ",
                                                    parameters.index, ", after ",
                                                    entry.epochs[parameters.index]));
}

void ResumeBook::Deliver(Rank peer, const LinkParameters& parameters, FileDescriptor socket) {
  std::lock_guard lock(mutex_);
  if (!CheckLocked(peer, parameters).ok()) return;
  Entry& entry = links_.at(parameters.link_id);
  entry.epochs[parameters.index] = parameters.epoch;
  entry.arrivals.push_back({parameters.index, parameters.epoch, std::move(socket)});
  entry.wake();
}

}  // namespace weft::net
