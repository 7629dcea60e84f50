#include "net/multipath/udp/multipath_transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "net/multipath/udp/options.h"

namespace weft::net::multipath {
namespace {

// The destructor looks this often whether the last words have arrived, and gives up in the end.
constexpr int kLookMilliseconds = 2;
constexpr absl::Duration kLast = absl::Seconds(2);
// Behind the wire's name in the terms of who authenticates chunks.
constexpr absl::string_view kAuthenticates = "+mac";

}  // namespace

// Makes wait_fd() readable at the next deadline: what a poll() counts in milliseconds is too coarse
// for pacing and probes.
class MultipathTransport::Alarm final : public PollHandler {
 public:
  static absl::StatusOr<std::unique_ptr<Alarm>> Create(Poller& poller) {
    FileDescriptor fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!fd) return ErrnoStatus(errno, "make a timer");
    std::unique_ptr<Alarm> out(new Alarm(poller, std::move(fd)));
    WEFT_RETURN_IF_ERROR(poller.Add(out->fd_.get(), EPOLLIN, out.get()));
    return out;
  }
  ~Alarm() override { poller().Remove(fd_.get()); }

  void Set(absl::Time due) {
    if (due == due_) return;
    due_ = due;
    itimerspec spec{};
    if (due != absl::InfiniteFuture()) spec.it_value = absl::ToTimespec(due);
    timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
  }
  void OnEvents(uint32_t, absl::Time) override {
    uint64_t times = 0;
    ssize_t got = read(fd_.get(), &times, sizeof(times));
    if (got > 0) due_ = absl::InfiniteFuture();
  }

 private:
  Alarm(Poller& poller, FileDescriptor fd) : PollHandler(poller), fd_(std::move(fd)) {}
  FileDescriptor fd_;
  absl::Time due_ = absl::InfiniteFuture();
};

MultipathTransport::MultipathTransport(const TransportOptions& options) : TcpTransport(options) {
  context_.purpose = HandshakePurpose::kMultipathLink;
  context_.name = "multipath";
  context_.sockets = 1;
  context_.frame_bytes = std::numeric_limits<int64_t>::max() / 64 * 64;  // a message is one
  // Its own goodbye is delivered by the kernel; last words wait below.
  context_.await_goodbyes = false;
  // Datagrams show that the peer lives, and where they do not, the link itself asks.
  context_.keep_alive = false;
}

absl::StatusOr<std::unique_ptr<Transport>> MultipathTransport::Create(
    const TransportOptions& options) {
  std::unique_ptr<MultipathTransport> out(new MultipathTransport(options));
  WEFT_RETURN_IF_ERROR(out->OpenAll());
  return out;
}

absl::Status MultipathTransport::OpenAll() {
  const std::string name =
      absl::StrCat("multipath transport of rank ", context_.options.self.value());
  WEFT_RETURN_IF_ERROR(Open());
  WEFT_RETURN_IF_ERROR(Annotate(OpenWire(), name));
  WEFT_ASSIGN_OR_RETURN(alarm_, Alarm::Create(*context_.poller));
  return absl::OkStatus();
}

void MultipathTransport::StateTerms(absl::string_view wire, absl::string_view more,
                                    std::function<absl::Status(absl::string_view)> check) {
  const std::string own =
      absl::StrCat(wire, shared_.wire.authenticates ? kAuthenticates : absl::string_view());
  context_.own_terms = absl::StrCat(own, " ", more);
  context_.check_terms = [own, check = std::move(check)](absl::string_view terms) -> absl::Status {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(terms, absl::MaxSplits(' ', 1));
    const absl::string_view theirs = words.first;
    const absl::string_view wire = absl::StripSuffix(own, kAuthenticates);
    if (absl::StripSuffix(theirs, kAuthenticates) == wire && theirs != own) {
      const bool is_ours = wire != own;
      return absl::FailedPreconditionError(
          absl::StrCat("multipath.authenticate_chunks differs: ", is_ours ? "false" : "true",
                       " at the connecting rank, ", is_ours ? "true" : "false",
                       " at the listening one; set it alike on every rank"));
    }
    if (theirs != own) {
      return absl::FailedPreconditionError(absl::StrCat(
          "multipath.wire differs: ", absl::CHexEscape(theirs), " at the connecting rank, ", wire,
          " at the listening one; set it alike on every rank"));
    }
    return check == nullptr ? absl::OkStatus() : check(words.second);
  };
}

absl::Status MultipathTransport::OpenWire() {
  const TransportOptions& options = context_.options;
  WEFT_ASSIGN_OR_RETURN(Interface interface, ChooseInterface(options.settings));
  WEFT_ASSIGN_OR_RETURN(SocketOptions sockets, MakeSocketOptions(options, interface));
  WEFT_ASSIGN_OR_RETURN(shared_.wire, MakeWireOptions(options, interface, FactsOf(interface.name)));
  WEFT_ASSIGN_OR_RETURN(sockets_, UdpSockets::Open(*context_.poller, sockets));
  SocketAddress host = interface.address;
  host.set_port(sockets_->ports().front());
  WEFT_ASSIGN_OR_RETURN(PlannedWays ways,
                        PlannedWays::Open(options.settings, options.self, options.world_size));
  if (ways) {
    WEFT_RETURN_IF_ERROR(ways.Check(ToIpAddress(host)));
    ways.Watch(ToIpAddress(host));
  }
  shared_.open_paths = [this, host, ways](DatagramOwner& owner, const LinkEnds& ends) {
    return std::make_unique<UdpPaths>(*sockets_, host, owner, ways, ends);
  };
  StateTerms("udp", "", nullptr);
  return absl::OkStatus();
}

void MultipathTransport::Drain() {
  StopListening();
  SystemClock clock;
  absl::Time end = clock.Now() + kLast;
  SweepLingering();
  while (!shared_.lingering.empty() && clock.Now() < end) {
    pollfd fd{wait_fd(), POLLIN, 0};
    if (!context_.poller->HasTurns()) poll(&fd, 1, kLookMilliseconds);
    Progress(clock.Now());
  }
  shared_.lingering.clear();
}

MultipathTransport::~MultipathTransport() {
  Drain();
  if (sockets_ == nullptr) return;
  const SocketStatistics& seen = statistics();
  WEFT_LOG_DEBUG("multipath: ", seen.sent, " packets sent in ", seen.send_calls, " calls, ",
                 seen.send_errors, " not taken; ", seen.received, " received in ",
                 seen.receive_calls, " calls; ", seen.unauthenticated, " unauthenticated, ",
                 seen.malformed, " damaged or forged");
}

void MultipathTransport::SweepLingering() {
  shared_.lingering.remove_if([](const auto& wire) { return wire->is_over(); });
}

bool MultipathTransport::Progress(absl::Time now) {
  bool moved = TcpTransport::Progress(now);
  if (!shared_.lingering.empty()) SweepLingering();
  return moved;
}

bool MultipathTransport::PrepareWait() {
  alarm_->Set(NextDeadline());
  return TcpTransport::PrepareWait();
}

std::unique_ptr<SendDataPath> MultipathTransport::MakeDataPath(LinkSession& session,
                                                               SendMatching& matching, Rank peer) {
  return std::make_unique<MultipathSendDataPath>(session, matching, shared_, peer);
}

std::unique_ptr<ReceiveDataPath> MultipathTransport::MakeDataPath(LinkSession& session,
                                                                  ReceiveMatching& matching,
                                                                  Rank peer) {
  return std::make_unique<MultipathReceiveDataPath>(session, matching, shared_, peer);
}

}  // namespace weft::net::multipath
