#include "base/epoll.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/open_files.h"
#include "base/status.h"

namespace weft {

absl::StatusOr<Epoll> Epoll::Create() {
  Epoll out;
  out.fd_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!out.fd_) {
    return IsDescriptorExhaustion(errno) ? DescriptorsExhausted(errno, "epoll_create1")
                                         : ErrnoStatus(errno, "epoll_create1");
  }
  out.process_ = getpid();
  return out;
}

absl::StatusOr<Epoll> Epoll::Watching(absl::Span<const int> descriptors) {
  WEFT_ASSIGN_OR_RETURN(Epoll out, Create());
  for (int fd : descriptors) WEFT_RETURN_IF_ERROR(out.Add(fd, EPOLLIN, {.fd = fd}));
  return out;
}

absl::Status Epoll::Add(int fd, uint32_t events, epoll_data_t data) {
  epoll_event event{.events = events, .data = data};
  if (epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("epoll_ctl: add descriptor ", fd));
}

absl::Status Epoll::Change(int fd, uint32_t events, epoll_data_t data) {
  epoll_event event{.events = events, .data = data};
  if (epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("epoll_ctl: change descriptor ", fd));
}

void Epoll::Remove(int fd) {
  if (process_ == getpid()) epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

int Epoll::Wait(absl::Span<epoll_event> events, absl::Duration limit) const {
  limit = std::clamp(limit, absl::ZeroDuration(), absl::Hours(1));
  const auto milliseconds = absl::ToInt64Milliseconds(absl::Ceil(limit, absl::Milliseconds(1)));
  const int count = epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()),
                               static_cast<int>(milliseconds));
  return std::max(count, 0);  // interrupted: nothing is ready yet
}

}  // namespace weft
