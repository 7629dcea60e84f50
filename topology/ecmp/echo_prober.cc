#include "topology/ecmp/echo_prober.h"

#include <netinet/ip.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/ecmp/udp_address.h"
#include "topology/ecmp/udp_load.h"

namespace weft::topology {
namespace {

constexpr uint32_t kMagic = 0x54505750;  // "PWPT"
constexpr int kHops = 64;                // time to live of probes
constexpr size_t kRouteMost = 9;         // that fit into an IPv4 header
constexpr int kServerLooks = 50;         // milliseconds between looks whether it is to end
constexpr size_t kSocketsAtOnce = 64;
constexpr uint8_t kRecordRoute = 7, kEndOfOptions = 0, kNoOperation = 1;

struct Probe {
  uint32_t magic = kMagic;
  uint32_t number = 0;
};

struct Answer {
  uint32_t magic = kMagic;
  uint32_t number = 0;
  uint8_t hops_left = 0;
  uint8_t recorded = 0;
  std::array<uint8_t, 2> zero{};
  std::array<std::array<uint8_t, 4>, kRouteMost> route{};
};

int64_t Nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

absl::StatusOr<int> Socket(const IpAddress& address, uint16_t port) {
  const int fd =
      socket(address.v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ErrnoStatus(errno, "socket");
  if (address.v6) SendFlowLabelZero(fd);
  UdpAddress own = MakeUdpAddress(address, port);
  if (bind(fd, own.get(), own.size) == 0) return fd;
  const int error = errno;
  close(fd);
  return ErrnoStatus(error, absl::StrCat("bind to UDP port ", port, " of ", address.ToString()));
}

bool SetOption(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

// The addresses of a Record Route option among `options`.
void ReadRoute(const uint8_t* options, size_t size, Answer& answer) {
  for (size_t at = 0; at < size && options[at] != kEndOfOptions;) {
    if (options[at] == kNoOperation) {
      ++at;
      continue;
    }
    if (at + 2 >= size || options[at + 1] < 3 || at + options[at + 1] > size) return;
    if (options[at] == kRecordRoute) {
      const size_t used =
          std::min<size_t>(options[at + 2] > 4 ? options[at + 2] - 4u : 0, options[at + 1] - 3u);
      answer.recorded = static_cast<uint8_t>(std::min(used / 4, kRouteMost));
      for (size_t i = 0; i < answer.recorded; ++i) {
        std::memcpy(answer.route[i].data(), options + at + 3 + 4 * i, 4);
      }
      return;
    }
    at += options[at + 1];
  }
}

// The sockets of one call, closed at its end.
struct Sockets {
  std::vector<int> fds;
  ~Sockets() {
    for (int fd : fds) {
      if (fd >= 0) close(fd);
    }
  }
};

void RequestRoute(int fd) {
  std::array<uint8_t, 40> option{kRecordRoute, 3 + 4 * kRouteMost, 4};
  setsockopt(fd, IPPROTO_IP, IP_OPTIONS, option.data(), option.size());
}

EchoAnswer Understand(const Answer& answer) {
  EchoAnswer out;
  out.heard = true;
  out.routers = std::max(0, kHops - answer.hops_left);
  for (size_t i = 0; i < answer.recorded && i < kRouteMost; ++i) {
    IpAddress address;
    std::copy(answer.route[i].begin(), answer.route[i].end(), address.bytes.begin());
    out.route.push_back(address);
  }
  // The first is the source's own, the last the target's.
  if (out.route.size() >= 2) {
    out.route.pop_back();
    out.route.erase(out.route.begin());
  }
  if (static_cast<int>(out.route.size()) != out.routers) out.route.clear();
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EchoServer>> EchoServer::Open(const IpAddress& address,
                                                             uint16_t port) {
  WEFT_ASSIGN_OR_RETURN(const int fd, Socket(address, port));
  const bool good = address.v6 ? SetOption(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1)
                               : SetOption(fd, IPPROTO_IP, IP_RECVTTL, 1) &&
                                     SetOption(fd, IPPROTO_IP, IP_RECVOPTS, 1);
  if (!good) {
    const int error = errno;
    close(fd);
    return ErrnoStatus(error, "ask for the time to live of probes");
  }
  return std::unique_ptr<EchoServer>(new EchoServer(fd, address.v6));
}

EchoServer::EchoServer(int fd, bool v6)
    : fd_(fd), header_bytes_(UdpHeaderBytes(v6)), thread_([this] { Serve(); }) {}

EchoServer::~EchoServer() {
  ends_ = true;
  thread_.join();
  close(fd_);
}

void EchoServer::Serve() {
  while (!ends_) {
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, kServerLooks) <= 0) continue;
    while (!ends_ && ServeOne()) {
    }
  }
}

ReceivedLoad EchoServer::load() {
  std::lock_guard lock(mutex_);
  return {Bytes(load_bytes_), absl::Nanoseconds(load_last_ - load_first_)};
}

void EchoServer::ForgetLoad() {
  std::lock_guard lock(mutex_);
  load_bytes_ = load_first_ = load_last_ = 0;
}

bool EchoServer::ServeOne() {
  Probe probe;
  sockaddr_storage from{};
  alignas(cmsghdr) std::array<char, 512> control;
  iovec piece{&probe, sizeof(probe)};
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof(from);
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0) return errno == EINTR;
  if (got >= static_cast<ssize_t>(sizeof(probe)) && probe.magic == kUdpLoadMagic) {
    std::lock_guard lock(mutex_);
    load_last_ = Nanoseconds();
    if (load_bytes_ == 0) load_first_ = load_last_;
    load_bytes_ += got + header_bytes_;
  }
  if (got != sizeof(probe) || probe.magic != kMagic) return true;
  Answer answer;
  answer.number = probe.number;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    const bool is_hops = (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_TTL) ||
                         (one->cmsg_level == IPPROTO_IPV6 && one->cmsg_type == IPV6_HOPLIMIT);
    if (is_hops) {
      int value = 0;
      std::memcpy(&value, CMSG_DATA(one), sizeof(value));
      answer.hops_left = static_cast<uint8_t>(value);
    }
    if (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_RECVOPTS) {
      ReadRoute(CMSG_DATA(one), one->cmsg_len - CMSG_LEN(0), answer);
    }
  }
  sendto(fd_, &answer, sizeof(answer), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from),
         message.msg_namelen);
  return true;
}

absl::StatusOr<std::vector<EchoAnswer>> EchoProber::Ask(absl::Span<const uint16_t> ports) {
  std::vector<EchoAnswer> answers(ports.size());
  for (size_t begin = 0; begin < ports.size(); begin += kSocketsAtOnce) {
    const size_t end = std::min(ports.size(), begin + kSocketsAtOnce);
    Sockets sockets;
    std::vector<int64_t> sent_at(end - begin);
    for (size_t i = begin; i < end; ++i) {
      absl::StatusOr<int> fd = Socket(options_.source, ports[i]);
      sockets.fds.push_back(fd.ok() ? *fd : -1);
      if (!fd.ok()) continue;
      const bool v6 = options_.source.v6;
      SetOption(*fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_UNICAST_HOPS : IP_TTL, kHops);
      if (!v6 && options_.records_route) RequestRoute(*fd);
      UdpAddress target = MakeUdpAddress(options_.target, options_.target_port);
      if (connect(*fd, target.get(), target.size) != 0) {
        return ErrnoStatus(errno, absl::StrCat("no route to ", options_.target.ToString()));
      }
    }
    size_t left = static_cast<size_t>(
        std::count_if(sockets.fds.begin(), sockets.fds.end(), [](int fd) { return fd >= 0; }));
    for (int round = 0; round < options_.rounds && left > 0; ++round) {
      for (size_t i = begin; i < end; ++i) {
        const int fd = sockets.fds[i - begin];
        if (fd < 0 || answers[i].heard) continue;
        const Probe probe{kMagic, static_cast<uint32_t>(i)};
        sent_at[i - begin] = Nanoseconds();
        if (send(fd, &probe, sizeof(probe), MSG_DONTWAIT) > 0) ++sent_;
      }
      const int64_t deadline = Nanoseconds() + absl::ToInt64Nanoseconds(options_.timeout);
      while (left > 0 && Nanoseconds() < deadline) {
        std::vector<pollfd> wait;
        for (size_t i = begin; i < end; ++i) {
          wait.push_back({answers[i].heard ? -1 : sockets.fds[i - begin], POLLIN, 0});
        }
        const int64_t pause = (deadline - Nanoseconds()) / 1'000'000;
        poll(wait.data(), wait.size(), static_cast<int>(std::max<int64_t>(0, pause)));
        for (size_t i = begin; i < end; ++i) {
          Answer answer;
          // A pending error (a target that does not listen yet) is taken, and asked again.
          if (wait[i - begin].fd < 0 || wait[i - begin].revents == 0) continue;
          const ssize_t got = recv(wait[i - begin].fd, &answer, sizeof(answer), MSG_DONTWAIT);
          if (got != sizeof(answer) || answer.magic != kMagic || answer.number != i) continue;
          answers[i] = Understand(answer);
          answers[i].rtt = absl::Nanoseconds(Nanoseconds() - sent_at[i - begin]);
          --left;
        }
      }
      lost_ += static_cast<int64_t>(left);
    }
  }
  return answers;
}

}  // namespace weft::topology
