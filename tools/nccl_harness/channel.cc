#include "tools/nccl_harness/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::harness {

absl::StatusOr<std::pair<Channel, Channel>> Channel::CreatePair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  return std::make_pair(Channel(FileDescriptor(fds[0])), Channel(FileDescriptor(fds[1])));
}

absl::Status Channel::Send(absl::string_view message) {
  while (true) {
    ssize_t sent = send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(message.size())) return absl::OkStatus();
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
      return absl::CancelledError("the other rank has ended");
    }
    return ErrnoStatus(errno, absl::StrCat("send ", message.size(), " bytes to the other rank"));
  }
}

bool Channel::Ended() const {
  char byte = 0;
  return recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

absl::StatusOr<std::string> Channel::Receive(absl::Duration limit) {
  pollfd state{fd_.get(), POLLIN, 0};
  int ready = poll(&state, 1, static_cast<int>(absl::ToInt64Milliseconds(limit)));
  if (ready == 0) {
    return absl::DeadlineExceededError(
        absl::StrCat("the other rank said nothing for ", absl::FormatDuration(limit)));
  }
  std::string message(kMessageBytesMax, '\0');
  ssize_t got = recv(fd_.get(), message.data(), message.size(), 0);
  if (got <= 0) return absl::CancelledError("the other rank has ended");
  message.resize(static_cast<size_t>(got));
  return message;
}

absl::StatusOr<std::string> Channel::Exchange(absl::string_view message, absl::Duration limit) {
  WEFT_RETURN_IF_ERROR(Send(message));
  return Receive(limit);
}

}  // namespace weft::harness
