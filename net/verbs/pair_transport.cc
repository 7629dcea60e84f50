#include "net/verbs/pair_transport.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/multipath/udp/options.h"
#include "net/verbs/options.h"

namespace weft::net::multipath {
namespace {

// What RoCE v2 adds to each packet on the wire: Ethernet with its gap, IPv4, UDP, transport header,
// invariant checksum.
constexpr size_t kRoceBytes = 38 + 20 + 8 + 12 + 4;

// A device that works beside its host gives packets one by one to a host that polls; an
// acknowledgement costs both ends what a packet of data does, but for its bytes.
constexpr int kAckEvery = 8;

// A reliable queue pair sends again the packet that it loses, and no more of a message than was
// behind it; and each message costs both ends a completion, and the device an acknowledgement. A
// power of two, as messages are that are cut into chunks: less would leave a piece over.
constexpr size_t kReliableChunk = 64 << 10;
// For an acknowledgement of kAckEvery packets: one packet more of the path MTU in any case.
constexpr uint32_t kReliableRoom = 256;

// What fills one packet of the path MTU; of a message that is not lost with one of its packets
// several. Or so many bytes as are asked for.
uint32_t ChunkOf(const Settings& settings, int mtu, bool is_reliable) {
  const auto asked = static_cast<size_t>(settings.ByteCount("multipath.chunk_bytes").count());
  const size_t chunk = asked > 0     ? asked
                       : is_reliable ? std::max(kReliableChunk, static_cast<size_t>(mtu))
                                     : static_cast<size_t>(mtu) - kBeforeChunk;
  return static_cast<uint32_t>(std::clamp<size_t>(chunk / 64 * 64, kChunkMin, kChunkMax / 64 * 64));
}

uint32_t OverheadOf(uint32_t chunk, int mtu) {
  const size_t packets =
      (kBeforeChunk + chunk + static_cast<size_t>(mtu) - 1) / static_cast<size_t>(mtu);
  return static_cast<uint32_t>(kBeforeChunk + packets * kRoceBytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> PairTransport::Create(const TransportOptions& options,
                                                                 std::unique_ptr<Nic> nic,
                                                                 const Clock* clock) {
  std::unique_ptr<PairTransport> out(new PairTransport(options, std::move(nic), clock));
  WEFT_RETURN_IF_ERROR(out->OpenAll());
  return out;
}

absl::Status PairTransport::OpenWire() {
  const Settings& settings = context_.options.settings;
  const Environment environment = [](const char* name) { return std::getenv(name); };
  WEFT_ASSIGN_OR_RETURN(const VerbsOptions verbs, ReadVerbsOptions(settings, environment));
  const bool is_reliable = settings.Text("multipath.wire") == "rc";
  const NicService service = is_reliable ? NicService::kReliable : NicService::kUnreliable;
  WEFT_ASSIGN_OR_RETURN(rails_,
                        OpenRails(std::move(nic_), verbs, {service, kPairSendDepth, 0}, "multipath",
                                  static_cast<int>(settings.Integer("multipath.paths"))));
  PairOptions options;
  options.paths = static_cast<int>(settings.Integer("multipath.paths"));
  options.buffer_bytes = settings.ByteCount("multipath.buffer_bytes");
  int mtu = rails()[0].port.mtu;
  double gbps = 0;
  for (int rail = 0; rail < rails().size(); ++rail) {
    mtu = std::min(mtu, rails()[rail].port.mtu);
    gbps += rails()[rail].port.gbps;
  }
  options.chunk_max = ChunkOf(settings, mtu, is_reliable);
  options.room = is_reliable ? kReliableRoom : 0;
  WEFT_ASSIGN_OR_RETURN(options.ways, PlannedWays::Open(settings, context_.options.self,
                                                        context_.options.world_size));
  WEFT_RETURN_IF_ERROR(CheckRails(options.ways, rails()));
  WatchRails(options.ways, rails());
  WEFT_ASSIGN_OR_RETURN(port_, PairPort::Open(rails_, options));
  WEFT_ASSIGN_OR_RETURN(watch_, RailWatch::Open(*context_.poller, rails()));

  WireOptions& wire = shared().wire;
  WEFT_ASSIGN_OR_RETURN(const Interface interface, ChooseInterface(settings));
  InterfaceFacts facts;
  facts.mtu = 1500;
  facts.bandwidth = Bandwidth::GigabitsPerSecond(gbps);
  WEFT_ASSIGN_OR_RETURN(wire, MakeWireOptions(context_.options, interface, facts));
  wire.chunk_max = options.chunk_max;
  wire.sender.overhead = OverheadOf(options.chunk_max, mtu);
  // The invariant CRC of every packet covers all that switches do not change.
  wire.has_checksum = settings.Text("multipath.checksum") == "true";
  wire.clock = clock_;
  // A software device needs milliseconds where others need microseconds.
  wire.sender.measures_base_rtt = true;
  wire.sender.probes_all = true;
  // Delays are those of the hosts as well, whose threads wait for a core now and then: less than a
  // packet a round trip would all but stop.
  PresetSwift(wire.sender.controller, "window_min", 1);
  wire.ack_every = kAckEvery;
  shared().open_paths = [this](DatagramOwner& owner, const LinkEnds& ends) {
    return port_->OpenLink(owner, ends);
  };

  const VerbsTerms terms = TermsOf(rails());
  StateTerms(is_reliable ? "rc" : "uc", terms.Encode(),
             [terms](absl::string_view bytes) -> absl::Status {
               WEFT_ASSIGN_OR_RETURN(const VerbsTerms other, VerbsTerms::Decode(bytes));
               return terms.Check(other);
             });
  WEFT_LOG_DEBUG("multipath: ", options.paths, " queue pairs a link, chunks of ", options.chunk_max,
                 " bytes");
  return absl::OkStatus();
}

PairTransport::~PairTransport() {
  if (port_ == nullptr) return;
  Drain();
  watch_.reset();
  const PairStatistics& seen = port_->statistics();
  WEFT_LOG_DEBUG("multipath: ", seen.sent, " packets sent in ", seen.messages, " messages, ",
                 seen.received, " received; ", seen.unauthenticated, " unauthenticated, ",
                 seen.malformed, " damaged, ", seen.receive_errors, " receives failed, ",
                 seen.pairs_lost, " queue pairs lost, ", seen.pairs_replaced, " replaced, ",
                 seen.dropped, " packets dropped");
}

bool PairTransport::Progress(absl::Time now) {
  // As recent as what is measured with it; rounds take long enough to be seen in delays.
  const bool moved = port_->Poll(
      clock_ != nullptr ? clock_->Now() : absl::FromUnixNanos(SystemClock::Nanoseconds()));
  return MultipathTransport::Progress(now) || moved;
}

bool PairTransport::PrepareWait() { return MultipathTransport::PrepareWait() && rails().Arm(); }

}  // namespace weft::net::multipath
