#include "topology/ecmp/udp_load.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "topology/ecmp/udp_address.h"

namespace weft::topology {
namespace {

constexpr int kPayload = 1400;                              // fits a frame of 1500 bytes
constexpr absl::Duration kPause = absl::Microseconds(200);  // between bursts
constexpr absl::Duration kBurst = absl::Milliseconds(50);   // what may be made up for at once

}  // namespace

absl::StatusOr<Bytes> SendUdpLoad(const UdpLoad& load) {
  const int fd = socket(load.source.v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, "socket");
  if (load.source.v6) SendFlowLabelZero(fd);
  UdpAddress own = MakeUdpAddress(load.source, load.source_port);
  UdpAddress target = MakeUdpAddress(load.target, load.target_port);
  if (bind(fd, own.get(), own.size) != 0 || connect(fd, target.get(), target.size) != 0) {
    const int error = errno;
    close(fd);
    return ErrnoStatus(error, absl::StrCat("load from UDP port ", load.source_port, " of ",
                                           load.source.ToString(), " to ", load.target.ToString()));
  }
  std::array<char, kPayload> data{};
  std::memcpy(data.data(), &kUdpLoadMagic, sizeof(kUdpLoadMagic));
  const int size = kPayload + UdpHeaderBytes(load.source.v6);
  SystemClock clock;
  const absl::Time begin = clock.Now();
  const int64_t most_late = (load.rate * kBurst).count();
  int64_t sent = 0, skipped = 0;  // skipped: what a late thread does not send any more
  for (absl::Time now = begin; now < begin + load.duration; now = clock.Now()) {
    const int64_t due = (load.rate * (now - begin)).count() - skipped;
    skipped += std::max<int64_t>(0, due - sent - most_late - size);
    for (int64_t left = std::min(due - sent, most_late + size); left >= size; left -= size) {
      if (send(fd, data.data(), data.size(), MSG_DONTWAIT) < 0) break;  // full, or refused once
      sent += size;
    }
    absl::SleepFor(kPause);
  }
  close(fd);
  return Bytes(sent);
}

}  // namespace weft::topology
