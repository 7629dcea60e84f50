#include "net/verbs/opening.h"

#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/status.h"
#include "net/roce/adaptive_retransmission.h"

namespace weft::net {

namespace {

// Once for each device; what cannot be set is said, and nothing more.
void SetAdaptiveRetransmission(Rails& rails, bool on) {
  std::set<std::string> seen;
  for (int rail = 0; rail < rails.size(); ++rail) {
    const NicDevice& device = *rails[rail].device;
    if (!seen.insert(device.name()).second) continue;
    const std::string pci = device.pci_address();
    absl::StatusOr<bool> was = absl::UnimplementedError("it is no PCI device");
    if (!pci.empty()) was = ReadAdaptiveRetransmission(pci);
    absl::Status set = was.status();
    if (was.ok() && *was != on) set = WriteAdaptiveRetransmission(pci, on);
    const char* const word = on ? "on" : "off";
    if (!set.ok()) {
      WEFT_LOG_WARN("verbs: adaptive retransmission of ", device.name(), " is not turned ", word,
                    " (verbs.adaptive_retransmission): ", set.message());
    } else {
      WEFT_LOG_INFO("verbs: adaptive retransmission of ", device.name(), " is ", word,
                    *was == on ? "" : " from now on, for all who use the device");
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<Rails>> OpenRails(std::unique_ptr<Nic> nic,
                                                 const VerbsOptions& options,
                                                 const PairLayout& layout, absl::string_view name,
                                                 int pairs) {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Rails> rails, Rails::Open(std::move(nic), options, layout));
  if (options.adaptive_retransmission.has_value()) {
    SetAdaptiveRetransmission(*rails, *options.adaptive_retransmission);
  }
  std::string text;
  for (int rail = 0; rail < rails->size(); ++rail) {
    absl::StrAppend(&text, rail > 0 ? "; " : "", (*rails)[rail].Describe());
  }
  WEFT_LOG_INFO(name, ": ", text, "; ", pairs, " queue pairs a link, traffic class ",
                options.traffic_class, ", timeout ", options.timeout, ", retries ",
                options.retry_count);
  return rails;
}

VerbsTerms TermsOf(Rails& rails) {
  const Rail& first = rails[0];
  VerbsTerms terms;
  terms.ethernet = first.port.ethernet;
  terms.roce_version = !terms.ethernet ? 0 : first.gid.gid.kind == GidKind::kRoceV1 ? 1 : 2;
  terms.ipv6 = terms.ethernet && !IsIpv4(first.gid.gid.gid);
  terms.device = absl::StrCat(HostName(), " ", first.device->name());
  return terms;
}

class RailWatch::EventReader final : public PollHandler {
 public:
  EventReader(Poller& poller, Rails& rails, int rail)
      : PollHandler(poller), rails_(rails), rail_(rail) {}
  ~EventReader() override { poller().Remove(rails_[rail_].device->event_fd()); }
  absl::Status Start() { return poller().Add(rails_[rail_].device->event_fd(), EPOLLIN, this); }
  void OnEvents(uint32_t, absl::Time) override { rails_.TakeEvents(rail_); }

 private:
  Rails& rails_;
  int rail_;
};

RailWatch::RailWatch() = default;
RailWatch::~RailWatch() = default;

absl::StatusOr<std::unique_ptr<RailWatch>> RailWatch::Open(Poller& poller, Rails& rails) {
  std::unique_ptr<RailWatch> out(new RailWatch);
  std::vector<int> descriptors = {poller.fd(), rails.connected_fd()};
  for (int rail = 0; rail < rails.size(); ++rail) {
    descriptors.push_back(rails[rail].device->completion_fd());
    auto reader = std::make_unique<EventReader>(poller, rails, rail);
    WEFT_RETURN_IF_ERROR(reader->Start());
    out->events_.push_back(std::move(reader));
  }
  WEFT_ASSIGN_OR_RETURN(out->wait_, Epoll::Watching(descriptors));
  return out;
}

}  // namespace weft::net
