#include "net/multipath/udp/options.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/plan/connection_plan.h"

namespace weft::net::multipath {
namespace {

constexpr size_t kUdpBytes = 8, kIpv4Bytes = 20, kIpv6Bytes = 40;
// Ethernet's header, checksum, preamble and gap: what a link carries besides.
constexpr size_t kEthernetBytes = 38;
// Where the kernel knows of no speed: loopback, and most virtual interfaces.
constexpr Bandwidth kUnknownBandwidth = Bandwidth::GigabitsPerSecond(25);
constexpr Bandwidth kHostBandwidth = Bandwidth::GigabitsPerSecond(100);
// Swift's own target of what a peer holds is of a NIC's; threads of this one are off their cores
// for longer than that every now and then.
constexpr double kEndpointMicroseconds = 2000;
// Queues of paths that are alike differ by less, or even out again.
constexpr int kSlowFactor = 4;
constexpr uint32_t kMessages = 256;  // outstanding on a link; more wait for room

// As the setting says; where that has its default, what weft-cc tune has written into the plan
// directory.
std::string ControllerText(const Settings& settings) {
  const std::string& plan = settings.Text("plan");
  if (!plan.empty() && settings.IsDefault("multipath.controller")) {
    const std::filesystem::path tuned =
        std::filesystem::path(plan) / std::string(topology::kPlanControllerFile);
    std::error_code error;
    if (std::filesystem::exists(tuned, error)) return absl::StrCat("@", tuned.string());
  }
  return settings.Text("multipath.controller");
}

}  // namespace

InterfaceFacts FactsOf(absl::string_view interface) {
  InterfaceFacts facts;
  ifreq request{};
  interface.substr(0, IFNAMSIZ - 1).copy(request.ifr_name, IFNAMSIZ - 1);
  FileDescriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd && ioctl(fd.get(), SIOCGIFMTU, &request) == 0) facts.mtu = request.ifr_mtu;
  std::ifstream file(absl::StrCat("/sys/class/net/", interface, "/speed"));
  int64_t megabits = 0;
  if (file >> megabits && megabits > 0) {
    facts.bandwidth = Bandwidth::BytesPerSecond(static_cast<double>(megabits) * 1e6 / 8);
  }
  return facts;
}

uint32_t ChunkFor(int mtu, bool is_v6) {
  size_t before = (is_v6 ? kIpv6Bytes : kIpv4Bytes) + kUdpBytes + kBeforeChunk;
  auto whole = std::min(static_cast<size_t>(std::max(mtu, 0)), kDatagramBytesMax + kUdpBytes);
  if (whole < before + kChunkMin) return 0;
  return static_cast<uint32_t>(std::min<size_t>(whole - before, kChunkMax) / 64 * 64);
}

void PresetSwift(ControllerSpec& controller, absl::string_view parameter, double value) {
  if (controller.kind != ControllerKind::kSwift && controller.kind != ControllerKind::kMswift &&
      controller.kind != ControllerKind::kHybrid) {
    return;
  }
  auto& parameters = controller.parameters;
  parameters.insert(parameters.begin(), {std::string(parameter), value});
}

absl::StatusOr<SocketOptions> MakeSocketOptions(const TransportOptions& options,
                                                const Interface& interface) {
  const Settings& settings = options.settings;
  SocketOptions out;
  out.address = interface.address;
  out.paths = static_cast<int>(settings.Integer("multipath.paths"));
  out.buffer_bytes = settings.ByteCount("multipath.buffer_bytes");
  out.segments = settings.Bool("multipath.segments");
  int64_t port = settings.Integer("multipath.port");
  if (port != 0) port += int64_t{options.self.value()} * out.paths;
  if (port + out.paths > 65536) {
    return absl::InvalidArgumentError(absl::StrCat(
        "multipath.port ", settings.ValueText("multipath.port"), " leaves rank ",
        options.self.value(), " no room for ", out.paths, " ports: the last is 65535"));
  }
  out.address.set_port(static_cast<int>(port));
  return out;
}

absl::StatusOr<WireOptions> MakeWireOptions(const TransportOptions& options,
                                            const Interface& interface,
                                            const InterfaceFacts& facts) {
  const Settings& settings = options.settings;
  WireOptions out;
  // What never leaves this host's memory crosses no link that could damage it.
  absl::string_view checksum = settings.Text("multipath.checksum");
  out.has_checksum = checksum != "false";
  out.trusts_host = checksum == "auto";
  out.authenticates = settings.Bool("multipath.authenticate_chunks");
  out.connect_timeout = settings.Duration("transport.connect_timeout");
  out.secret = options.secret;
  bool is_v6 = interface.address.family() == AF_INET6;
  auto mtu = static_cast<int>(settings.ByteCount("multipath.mtu").count());
  out.chunk_is_set = mtu > 0;
  if (mtu == 0) mtu = facts.mtu > 0 ? facts.mtu : 1500;
  out.chunk_max = ChunkFor(mtu, is_v6);
  if (out.chunk_max == 0) {
    return absl::InvalidArgumentError(absl::StrCat("interface ", interface.name, " has an MTU of ",
                                                   mtu, " bytes, too small for multipath"));
  }
  SenderOptions& send = out.sender;
  const std::string controller = ControllerText(settings);
  WEFT_ASSIGN_OR_RETURN(send.controller, ReadController(controller));
  PresetSwift(send.controller, "endpoint_us", kEndpointMicroseconds);
  WEFT_ASSIGN_OR_RETURN(send.policy.kind, ParsePolicy(settings.Text("multipath.policy")));
  if (send.controller.kind == ControllerKind::kCredit ||
      send.controller.kind == ControllerKind::kHpcc) {
    return absl::InvalidArgumentError(
        absl::StrCat("multipath.controller ", controller,
                     ": sockets have neither credits nor telemetry of switches"));
  }
  send.overhead = static_cast<uint32_t>(kBeforeChunk + kUdpBytes + kEthernetBytes +
                                        (is_v6 ? kIpv6Bytes : kIpv4Bytes));
  send.numbers = kNumbersMax;
  send.messages = kMessages;
  double gigabits = settings.Real("multipath.gbps");
  send.facts.bandwidth = gigabits > 0                    ? Bandwidth::GigabitsPerSecond(gigabits)
                         : facts.bandwidth > Bandwidth() ? facts.bandwidth
                                                         : kUnknownBandwidth;
  send.facts.base_rtt = settings.Duration("multipath.base_rtt");
  send.facts.hops = 3;
  if (gigabits == 0) out.host_bandwidth = kHostBandwidth;
  out.piece = settings.ByteCount("multipath.piece_bytes");
  // A thread that was held up catches up by so much.
  send.burst = absl::Milliseconds(1);
  // Threads of both ends may be off their cores for so long; only then does silence mean anything.
  send.held_max = absl::Milliseconds(5);
  send.timeout_min = settings.Duration("multipath.timeout_min");
  send.paths.probe_interval = absl::Milliseconds(2);
  send.paths.slow_factor = kSlowFactor;
  send.paths.slow_slack = kSlowFactor * send.facts.base_rtt;
  // Whether the peer lives, the link finds out in its own way; see data_path.h.
  send.weighs_paths = true;
  send.keepalive = settings.Duration("tcp.dead_after") / 4;
  send.give_up = absl::InfiniteDuration();
  return out;
}

}  // namespace weft::net::multipath
