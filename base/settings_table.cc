// The one table of the library's settings. docs/settings.md is generated from it (tools/dev docs).
#include <array>

#include "base/settings.h"

namespace weft {
namespace {

constexpr SettingType kBool = SettingType::kBool;
constexpr SettingType kInteger = SettingType::kInteger;
constexpr SettingType kReal = SettingType::kReal;
constexpr SettingType kBytes = SettingType::kBytes;
constexpr SettingType kDuration = SettingType::kDuration;
constexpr SettingType kText = SettingType::kText;
constexpr SettingType kChoice = SettingType::kChoice;

// clang-format off
constexpr auto kTable = std::to_array<SettingRow>({
    {"log.level", kChoice, "info", "trace|debug|info|warn|error|off", "How much is written to stderr."},

    {"transport", kChoice, "auto", "auto|shm|tcp|ucx|multipath", "The transport between ranks; auto takes shm between processes of one host and tcp between hosts; ucx takes whatever UCX finds best, multipath UDP over many paths, both on one host too."},
    {"transport.connect_timeout", kDuration, "30s", "100ms..1h", "How long a connection to a peer may take until it fails with that peer's name."},
    {"transport.requests", kInteger, "4096", "1..1048576", "How many sends or receives may be posted on one link before the next is answered \"not yet\"."},

    {"wait.spin", kDuration, "20us", "0..1s", "How long a waiting thread polls without giving up its core; 0 where ranks outnumber cores."},
    {"wait.yield", kDuration, "200us", "0..1s", "How long it then polls with sched_yield between, before it sleeps in the kernel."},

    {"shm.slot_bytes", kBytes, "128KiB", "4KiB..16MiB", "Payload of one slot of a shared-memory link: the unit in which messages are cut."},
    {"shm.slots", kInteger, "8", "2..256", "Slots of a shared-memory link: how far a sender may run ahead of the receiver."},
    {"shm.single_copy_min", kBytes, "32KiB", "0..1GiB", "Messages from this size on are read straight from the sender's memory, one copy instead of two, where the kernel allows it (as ptrace); 0: never."},

    {"tcp.interface", kText, "", "", "Interfaces to use, as NCCL_SOCKET_IFNAME: comma list of prefixes, `^` excludes, `=` is exact; empty: the first that is up, loopback last."},
    {"tcp.family", kChoice, "any", "any|ipv4|ipv6", "Address family of the interface to use."},
    {"tcp.sockets", kInteger, "2", "1..64", "Sockets of one link; large messages are striped over them."},
    {"tcp.source_ports", kText, "", "", "File with the source ports of links, so that switches hash them onto planned paths: a line `RANK PEER PORT [PORT ...]` for each link, which then has as many sockets as ports; empty: the kernel chooses."},
    {"tcp.listen_port", kInteger, "0", "0..65535", "Where to listen: this port plus the process's rank, so that paths can be planned before the start; 0: any free port."},
    {"tcp.frame_bytes", kBytes, "256KiB", "4KiB..16MiB", "Payload of one frame: the unit of striping."},
    {"tcp.buffer_bytes", kBytes, "0", "0..1GiB", "SO_SNDBUF and SO_RCVBUF; 0 leaves them to the kernel's tuning."},
    {"tcp.dead_after", kDuration, "20s", "1s..1h", "How long a host may leave our packets unacknowledged until it counts as dead; one that acknowledges may be as slow as it likes."},

    {"ucx.piece_bytes", kBytes, "512KiB", "4KiB..16MiB", "The unit in which messages are cut that go by UCX."},
    {"ucx.rendezvous_min", kBytes, "16KiB", "1KiB..16MiB", "Pieces from this size on are fetched by the receiver straight to their place; smaller ones are copied on the way."},
    {"ucx.tls", kText, "", "", "The transports that UCX may use, as UCX_TLS, which it overrides: \"tcp,posix\"; empty: as UCX decides."},
    {"ucx.net_devices", kText, "", "", "The network devices that UCX may use, as UCX_NET_DEVICES, which it overrides: \"mlx5_0:1,eth0\"; empty: as UCX decides."},

    {"multipath.paths", kInteger, "8", "1..64", "UDP sockets of a process, each a path of its own to switches that hash ports; both ends use as many as the one with fewer has."},
    {"multipath.policy", kChoice, "two-choices", "single|round-robin|random|two-choices|reps|penalty|plb|planned", "Which path the next piece takes."},
    {"multipath.controller", kText, "swift", "", "Congestion controller, and parameters that differ from its own: \"swift:beta=0.6,hop=0.1\"; weft-cc tune finds them, weft-cc compare lists them all."},
    {"multipath.gbps", kReal, "0", "0..10000", "Bandwidth of the port in Gbit/s, in which controllers reckon; 0: what the kernel says, else 25."},
    {"multipath.base_rtt", kDuration, "200us", "1us..1s", "Round trip without any queue, hosts included, in which controllers reckon: their targets and windows grow with it."},
    {"multipath.mtu", kBytes, "0", "0..65535", "Largest IP packet; 0: the interface's, 9000 at most."},
    {"multipath.piece_bytes", kBytes, "64KiB", "0..16MiB", "What goes one way before the policy is asked again, and leaves in one segmented send."},
    {"multipath.checksum", kBool, "true", "", "CRC-32C over every packet; false where the link's own is strong enough; one end that wants it suffices."},
    {"multipath.segments", kBool, "true", "", "Lets the kernel cut and join packets (UDP_SEGMENT, UDP_GRO)."},
    {"multipath.buffer_bytes", kBytes, "4MiB", "64KiB..1GiB", "SO_RCVBUF and SO_SNDBUF of each socket; without CAP_NET_ADMIN the kernel cuts it to net.core.rmem_max."},
    {"multipath.port", kInteger, "0", "0..65535", "UDP port of the first path of rank 0; the others follow, rank by rank; 0: any free ports."},
    {"multipath.timeout_min", kDuration, "5ms", "100us..10s", "The shortest probe timeout: silence of a whole connection, not the loss of single packets or paths, which show sooner."},

    {"collective.timeout", kDuration, "5m", "100ms..24h", "How long a collective may wait for a rank before it fails on every rank, naming the one that is missing."},
    {"collective.algorithm", kChoice, "auto", "auto|ring|direct", "Forces one algorithm for every collective that has it; auto picks by size and number of ranks."},
    {"collective.chunk_bytes", kBytes, "256KiB", "4KiB..64MiB", "Pieces in which an algorithm pipelines a large buffer."},

    {"store.timeout", kDuration, "5m", "100ms..24h", "How long a wait for a key of the rendezvous store may take."},
    {"verify.schedules", kBool, "false", "", "Proves each schedule correct before it first runs; for tests and for new algorithms."},
});
// clang-format on

}  // namespace

absl::Span<const SettingRow> LibrarySettings() { return kTable; }

}  // namespace weft
