#include "net/verbs/verbs_transport.h"

#include <cstdlib>
#include <utility>

#include "base/host_name.h"
#include "base/status.h"
#include "net/verbs/data_path.h"
#include "net/verbs/options.h"

namespace weft::net {
VerbsTransport::VerbsTransport(const TransportOptions& options) : TcpTransport(options) {
  context_.purpose = HandshakePurpose::kVerbsLink;
  context_.name = "verbs";
  context_.sockets = 1;
}

VerbsTransport::~VerbsTransport() {
  flush_.reset();
  watch_.reset();
  shared_.news.reset();
}

absl::StatusOr<std::unique_ptr<Transport>> VerbsTransport::Create(const TransportOptions& options,
                                                                  std::unique_ptr<Nic> nic) {
  std::unique_ptr<VerbsTransport> out(new VerbsTransport(options));
  WEFT_RETURN_IF_ERROR(Annotate(out->OpenRails(std::move(nic)), "verbs transport"));
  out->StateTerms();
  WEFT_RETURN_IF_ERROR(out->Open());
  WEFT_RETURN_IF_ERROR(Annotate(out->WatchDevices(), "verbs transport"));
  out->flush_ = std::make_unique<VerbsFlush>(*out->context_.poller, out->shared_.rails);
  out->shared_.flush = out->flush_.get();
  if (out->shared_.ways) {
    out->shared_.news = std::make_unique<PathNews>(*out->context_.poller, out->shared_.ways);
    WatchRails(out->shared_.ways, *out->shared_.rails);
  }
  return out;
}

absl::Status VerbsTransport::OpenRails(std::unique_ptr<Nic> nic) {
  const Environment environment = [](const char* name) { return std::getenv(name); };
  WEFT_ASSIGN_OR_RETURN(const VerbsOptions options,
                        ReadVerbsOptions(context_.options.settings, environment));
  WEFT_ASSIGN_OR_RETURN(ports_, SourcePorts::FromFile(options.source_ports, context_.options.self));
  shared_.host = HostName();
  shared_.self = context_.options.self.value();
  WEFT_ASSIGN_OR_RETURN(shared_.ways,
                        PlannedWays::Open(context_.options.settings, context_.options.self,
                                          context_.options.world_size));
  WEFT_ASSIGN_OR_RETURN(shared_.rails,
                        net::OpenRails(std::move(nic), options, {}, "verbs", options.queue_pairs));
  WEFT_RETURN_IF_ERROR(CheckRails(shared_.ways, *shared_.rails));
  return absl::OkStatus();
}

// What the handshake compares.
void VerbsTransport::StateTerms() {
  const VerbsTerms terms = TermsOf(rails());
  context_.own_terms = terms.Encode();
  context_.check_terms = [terms](absl::string_view bytes) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const VerbsTerms other, VerbsTerms::Decode(bytes));
    return terms.Check(other);
  };
}

absl::Status VerbsTransport::WatchDevices() {
  WEFT_ASSIGN_OR_RETURN(watch_, RailWatch::Open(*context_.poller, rails()));
  return absl::OkStatus();
}

absl::StatusOr<Region> VerbsTransport::Register(void* data, size_t size) {
  if (size == 0) return Region(static_cast<std::byte*>(data), 0, nullptr);  // there is no page
  // What goes eagerly is copied.
  MemoryCache& memory = rails().memory();
  WEFT_ASSIGN_OR_RETURN(const MemoryCache::Entry* entry, size <= rails().options().eager_max
                                                             ? memory.AcquireForLater(data, size)
                                                             : memory.Acquire(data, size));
  return RegionOf(data, size, entry);
}

absl::StatusOr<Region> VerbsTransport::RegisterDevice(const DeviceMemory& memory) {
  WEFT_ASSIGN_OR_RETURN(const MemoryCache::Entry* entry, rails().memory().AcquireDevice(memory));
  return RegionOf(memory.data, memory.size, entry);
}

Region VerbsTransport::RegionOf(void* data, size_t size, const MemoryCache::Entry* entry) {
  return Region(static_cast<std::byte*>(data), size,
                [rails = std::weak_ptr<Rails>(shared_.rails), entry, data, size] {
                  if (auto there = rails.lock()) there->memory().Release(entry, data, size);
                });
}

bool VerbsTransport::Progress(absl::Time now) {
  shared_.now = std::max(shared_.now, now);
  bool moved = rails().Poll();
  moved |= context_.poller->RunTurnsOnly(now);
  if (NextDeadline() > now && ++turns_without_sockets_ < kTurnsWithoutSockets &&
      now - sockets_seen_ < kTimeWithoutSockets) {
    return moved;
  }
  sockets_seen_ = now;
  turns_without_sockets_ = 0;
  return TcpTransport::Progress(now) || moved;
}

std::unique_ptr<SendDataPath> VerbsTransport::MakeDataPath(LinkSession& session,
                                                           SendMatching& matching, Rank peer) {
  return std::make_unique<VerbsSendDataPath>(session, matching, shared_, ports_, peer);
}

std::unique_ptr<ReceiveDataPath> VerbsTransport::MakeDataPath(LinkSession& session,
                                                              ReceiveMatching& matching,
                                                              Rank peer) {
  return std::make_unique<VerbsReceiveDataPath>(session, matching, shared_, ports_, peer);
}

}  // namespace weft::net
