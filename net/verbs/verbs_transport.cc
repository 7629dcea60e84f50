#include "net/verbs/verbs_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/links.h"
#include "net/verbs/options.h"
#include "topology/ecmp/roce.h"

namespace weft::net {
namespace {

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

// Asynchronous events of a rail, through the transport's poller.
class VerbsTransport::EventReader final : public Handler {
 public:
  EventReader(Poller& poller, Rails& rails, int rail)
      : Handler(poller), rails_(rails), rail_(rail) {}
  ~EventReader() override { poller().Remove(rails_[rail_].device->event_fd()); }
  absl::Status Start() { return poller().Add(rails_[rail_].device->event_fd(), EPOLLIN, this); }
  void OnEvents(uint32_t, absl::Time) override { rails_.TakeEvents(rail_); }

 private:
  Rails& rails_;
  int rail_;
};

VerbsTransport::VerbsTransport(const TransportOptions& options) : TcpTransport(options) {
  context_.purpose = HandshakePurpose::kVerbsLink;
  context_.name = "verbs";
  context_.sockets = 1;
}

VerbsTransport::~VerbsTransport() { events_.clear(); }

absl::StatusOr<std::unique_ptr<Transport>> VerbsTransport::Create(const TransportOptions& options,
                                                                  std::unique_ptr<Nic> nic) {
  std::unique_ptr<VerbsTransport> out(new VerbsTransport(options));
  WEFT_RETURN_IF_ERROR(Annotate(out->OpenRails(std::move(nic)), "verbs transport"));
  out->StateTerms();
  WEFT_RETURN_IF_ERROR(out->Open());
  WEFT_RETURN_IF_ERROR(Annotate(out->WatchDevices(), "verbs transport"));
  return out;
}

absl::Status VerbsTransport::OpenRails(std::unique_ptr<Nic> nic) {
  const Environment environment = [](const char* name) { return std::getenv(name); };
  WEFT_ASSIGN_OR_RETURN(const VerbsOptions options,
                        ReadVerbsOptions(context_.options.settings, environment));
  WEFT_ASSIGN_OR_RETURN(ports_, SourcePorts::FromFile(options.source_ports, context_.options.self));
  shared_.host = HostName();
  shared_.self = context_.options.self.value();
  WEFT_ASSIGN_OR_RETURN(shared_.rails, Rails::Open(std::move(nic), options));
  std::string text;
  for (int rail = 0; rail < shared_.rails->size(); ++rail) {
    absl::StrAppend(&text, rail > 0 ? "; " : "", rails()[rail].Describe());
  }
  WEFT_LOG_INFO("verbs: {}; {} queue pairs a link, traffic class {}, timeout {}, retries {}", text,
                options.queue_pairs, options.traffic_class, options.timeout, options.retry_count);
  return absl::OkStatus();
}

// What the handshake compares.
void VerbsTransport::StateTerms() {
  const Rail& first = rails()[0];
  VerbsTerms terms;
  terms.ethernet = first.port.ethernet;
  terms.roce_version = !terms.ethernet ? 0 : first.gid.gid.kind == GidKind::kRoceV1 ? 1 : 2;
  terms.ipv6 = terms.ethernet && !IsIpv4(first.gid.gid.gid);
  terms.device = absl::StrCat(shared_.host, " ", first.device->name());
  context_.own_terms = terms.Encode();
  context_.check_terms = [terms](absl::string_view bytes) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const VerbsTerms other, VerbsTerms::Decode(bytes));
    return terms.Check(other);
  };
}

absl::Status VerbsTransport::WatchDevices() {
  wait_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!wait_) return ErrnoStatus(errno, "make an epoll");
  std::vector<int> descriptors = {context_.poller->fd()};
  for (int rail = 0; rail < rails().size(); ++rail) {
    descriptors.push_back(rails()[rail].device->completion_fd());
    auto reader = std::make_unique<EventReader>(*context_.poller, rails(), rail);
    WEFT_RETURN_IF_ERROR(reader->Start());
    events_.push_back(std::move(reader));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  for (int fd : descriptors) {
    if (epoll_ctl(wait_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoStatus(errno, "watch a device's descriptor");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Region> VerbsTransport::Register(void* data, size_t size) {
  WEFT_ASSIGN_OR_RETURN(const MemoryCache::Entry* entry, rails().memory().Acquire(data, size));
  return Region(static_cast<std::byte*>(data), size,
                [rails = std::weak_ptr<Rails>(shared_.rails), entry] {
                  if (auto there = rails.lock()) there->memory().Release(entry);
                });
}

bool VerbsTransport::Progress(absl::Time now) {
  shared_.now = std::max(shared_.now, now);
  const bool moved = rails().Poll();
  if (!context_.poller->HasTurns() && NextDeadline() > now &&
      ++turns_without_sockets_ < kTurnsWithoutSockets &&
      now - sockets_seen_ < kTimeWithoutSockets) {
    return moved;
  }
  sockets_seen_ = now;
  turns_without_sockets_ = 0;
  return TcpTransport::Progress(now) || moved;
}

std::unique_ptr<TcpSendLink> VerbsTransport::MakeSendLink(Rank peer) {
  return std::make_unique<VerbsSendLink>(context_, shared_, ports_, peer);
}

std::unique_ptr<TcpReceiveLink> VerbsTransport::MakeReceiveLink(
    Rank peer, TcpReceiveLink::OnDestroyed on_destroyed) {
  return std::make_unique<VerbsReceiveLink>(context_, shared_, ports_, peer,
                                            std::move(on_destroyed));
}

}  // namespace weft::net
