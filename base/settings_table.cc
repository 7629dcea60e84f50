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

    {"transport", kChoice, "auto", "auto|shm|tcp|ucx|multipath|verbs", "The transport between ranks. auto: shm between processes of one host, tcp between hosts; ucx: whatever UCX finds best; multipath: UDP over many paths; both also within a host; verbs: RDMA over RoCE or InfiniBand."},
    {"transport.connect_timeout", kDuration, "30s", "100ms..1h", "How long a connection to a peer may take until it fails with that peer's name."},
    {"transport.requests", kInteger, "4096", "1..1048576", "How many sends or receives may be posted on one link before the next is answered \"not yet\"."},
    {"plan", kText, "", "", "Plan directory that weft-plan paths --out has made: connections of tcp, verbs and multipath use the source ports by which switches put them onto the planned paths. A plan for other hosts is refused. Empty: no plan."},
    {"plan.watch", kDuration, "200ms", "0..1h", "How often a rank with a plan sends a few probes to see whether its first switch still spreads flows over the planned next hops, so that flows move when a next hop is gone; less often where many ranks are under one switch; 0: never."},

    {"progress.cpus", kText, "near", "", "Where the progress thread of a process runs. near: on those of the process's CPUs that belong to the NUMA node of its NIC, unless ranks fill the cores or compute threads are bound to one core each; free: on all CPUs of the process; or a list of CPUs, such as 0-3,8."},
    {"wait.spin", kDuration, "2us", "0..1s", "How long a waiting thread polls without giving up its core; 0 where ranks outnumber cores."},
    {"wait.yield", kDuration, "200us", "0..1s", "How long a waiting thread polls after wait.spin, with sched_yield between polls, before it sleeps in the kernel; 0 while its call waits for links to be made, where ranks outnumber cores."},

    {"shm.slot_bytes", kBytes, "128KiB", "4KiB..16MiB", "Payload of one slot of a shared-memory link: the unit in which messages are cut."},
    {"shm.slots", kInteger, "8", "2..256", "Slots of a shared-memory link: how far a sender may run ahead of the receiver."},
    {"shm.eager_max", kBytes, "4KiB", "0..64KiB", "Messages within a host of up to this size are sent before the sender knows of their receive; up to 64 messages of a link may wait for their receives; 0: never."},
    {"shm.multicast_max", kBytes, "16KiB", "0..64KiB", "Collectives of up to 8 ranks of a host in which a rank has up to this much for the others go through rings that all of them map, of which each rank has one a group, of 16 times this size; 0: never."},
    {"shm.single_copy", kChoice, "auto", "auto|on|off", "Whether large messages in memory that peers do not map are read straight from the sender's memory, one copy instead of two, where the kernel allows it (as ptrace). auto: where this machine reads so in less time than both ends copy, which is measured at the first such message (below 1 ms)."},
    {"shm.single_copy_min", kBytes, "32KiB", "0..1GiB", "Messages from this size on are read where they lie: in memory that peers map, or as shm.single_copy says; 0: never."},

    {"tcp.interface", kText, "", "", "Interfaces to use, as NCCL_SOCKET_IFNAME: comma list of prefixes, `^` excludes, `=` is exact; empty: the first that is up, loopback last."},
    {"tcp.family", kChoice, "any", "any|ipv4|ipv6", "Address family of the interface to use."},
    {"tcp.sockets", kInteger, "2", "1..64", "Sockets of one link; large messages are striped over them."},
    {"tcp.source_ports", kText, "", "", "File with the source ports of links, so that switches hash them onto planned paths: a line `RANK PEER PORT [PORT ...]` for each link, which then has as many sockets as ports; empty: the kernel chooses."},
    {"tcp.listen_port", kInteger, "0", "0..65535", "Where to listen: this port plus the process's rank, so that paths can be planned before the start; 0: any free port."},
    {"tcp.frame_bytes", kBytes, "256KiB", "4KiB..16MiB", "Payload of one frame, the unit of striping; frames are up to four times as large where more bytes wait than all sockets take."},
    {"tcp.buffer_bytes", kBytes, "0", "0..1GiB", "SO_SNDBUF and SO_RCVBUF; 0 leaves them to the kernel's tuning."},
    {"tcp.dead_after", kDuration, "20s", "1s..1h", "How long a host may leave our packets unacknowledged, or attempts to replace lost sockets may fail, until the host counts as dead. A host that acknowledges may be as slow as it likes."},

    {"ucx.piece_bytes", kBytes, "0", "0..16MiB", "The unit in which messages are cut that go by UCX, 4KiB at least. 0: 512KiB where UCX may use an RDMA device, else seven eighths of UCX_TCP_RX_SEG_SIZE, 56KiB, which tcp receives in one go."},
    {"ucx.rendezvous_min", kBytes, "0", "0..16MiB", "Pieces from this size on are fetched by the receiver straight to their place; smaller ones are copied on the way. 0: 16KiB where UCX may use an RDMA device, else none, as tcp copies anyway."},
    {"ucx.tls", kText, "", "", "The transports that UCX may use, as UCX_TLS, which it overrides: \"tcp,posix\"; empty: as UCX decides."},
    {"ucx.net_devices", kText, "", "", "The network devices that UCX may use, as UCX_NET_DEVICES, which it overrides: \"mlx5_0:1,eth0\"; empty: as UCX decides."},

    {"multipath.wire", kChoice, "udp", "udp|uc|rc", "What carries packets: UDP sockets, or connected queue pairs, unreliable (uc) or reliable ones (rc), of the devices that verbs.* choose; alike on every rank."},
    {"multipath.paths", kInteger, "16", "1..64", "UDP sockets of a process, or queue pairs of a link, each a path of its own to switches that hash ports; both ends use as many as the one with fewer has."},
    {"multipath.policy", kChoice, "two-choices", "single|round-robin|random|two-choices|reps|penalty|plb|planned", "Which path the next piece takes."},
    {"multipath.controller", kText, "swift", "", "Congestion controller, and parameters that differ from its own: \"swift:beta=0.6,hop=0.1\", or \"@FILE\" as weft-cc tune --out writes it; weft-cc list lists them all."},
    {"multipath.gbps", kReal, "0", "0..10000", "Bandwidth of the port in Gbit/s that congestion controllers assume; 0: what the kernel says, else 25, and 100 within a host."},
    {"multipath.base_rtt", kDuration, "200us", "1us..1s", "Round trip through empty queues, both hosts included, that congestion controllers assume: their targets and windows grow with it. Over queue pairs the round trip is measured, and this is the smallest value that controllers are given."},
    {"multipath.mtu", kBytes, "0", "0..65535", "Largest IP packet; 0: the interface's, and loopback's within a host."},
    {"multipath.chunk_bytes", kBytes, "0", "0..64KiB", "Bytes of a chunk on queue pairs (multipath.wire=uc or rc): the device cuts it into packets, and with uc loses it whole if it loses one; 0: with uc what one packet of the path MTU holds, with rc 64KiB."},
    {"multipath.piece_bytes", kBytes, "64KiB", "0..16MiB", "Bytes that are sent on one path, in one segmented send, before multipath.policy chooses a path again; at most a sixteenth of the product of bandwidth and round trip."},
    {"multipath.checksum", kChoice, "auto", "auto|true|false", "CRC-32C over every packet. true: always; false: only if the other end asks for it (where the link's own checksum is strong enough); auto: between hosts, but not within a host, and not over queue pairs."},
    {"multipath.authenticate_chunks", kBool, "false", "", "Covers every chunk by a keyed tag (Poly1305, a key for each packet) instead of the checksum: an attacker who can see and inject packets, but not change them, then cannot put another chunk under a header. Headers are always covered. The tag of a byte costs both ends about as much as copying the byte. All ranks need the same value."},
    {"multipath.segments", kBool, "true", "", "Lets the kernel cut and join packets (UDP_SEGMENT, UDP_GRO)."},
    {"multipath.buffer_bytes", kBytes, "4MiB", "64KiB..1GiB", "SO_RCVBUF and SO_SNDBUF of each socket; without CAP_NET_ADMIN the kernel cuts it to net.core.rmem_max. With queue pairs, what a device receives into, for all links."},
    {"multipath.port", kInteger, "0", "0..65535", "UDP port of the first path of rank 0; the others follow, rank by rank; 0: any free ports."},
    {"multipath.timeout_min", kDuration, "5ms", "100us..10s", "The shortest probe timeout: silence of a whole connection, not the loss of single packets or paths, which show sooner."},

    {"verbs.devices", kText, "", "", "The RDMA devices to use, as NCCL_IB_HCA, which counts if this is empty: comma list of prefixes, `:2` for a port, `^` excludes, `=` is exact; all that fit are used together; empty: the first that is active."},
    {"verbs.merge_ports", kBool, "false", "", "In the NCCL plugin: all ports that verbs.devices admits form one device, which stripes over them and works while any of them does; NCCL itself merges only ports of one card, from 2.24 on, and no software devices."},
    {"verbs.gid_index", kInteger, "-1", "-1..255", "Index of the GID, as NCCL_IB_GID_INDEX; -1: a RoCE v2 one of the preferred family, read anew for each queue pair."},
    {"verbs.roce_version", kInteger, "2", "1..2", "The version of RoCE whose GIDs are preferred, as NCCL_IB_ROCE_VERSION_NUM."},
    {"verbs.family", kChoice, "ipv4", "ipv4|ipv6", "The family of GIDs that is preferred, as NCCL_IB_ADDR_FAMILY."},
    {"verbs.address_range", kText, "", "", "The range whose GIDs alone are used, such as 10.1.0.0/16 or fd00::/8, as NCCL_IB_ADDR_RANGE; empty: all."},
    {"verbs.queue_pairs", kInteger, "2", "1..16", "Queue pairs of one link, as NCCL_IB_QPS_PER_CONNECTION; the larger of both sides' counts."},
    {"verbs.traffic_class", kInteger, "0", "0..255", "Traffic class (IP's DSCP and ECN byte), as NCCL_IB_TC."},
    {"verbs.clear_to_send_traffic_class", kInteger, "-1", "-1..255", "Traffic class of what receivers send (clear-to-sends and acknowledgements), as NCCL_IB_FIFO_TC; -1: that of verbs.traffic_class."},
    {"verbs.service_level", kInteger, "0", "0..15", "Service level, as NCCL_IB_SL."},
    {"verbs.timeout", kInteger, "16", "1..31", "How long the device waits for an acknowledgement: 4.096 us times 2 to this, as NCCL_IB_TIMEOUT."},
    {"verbs.retry_count", kInteger, "7", "0..7", "How often the device sends again before it gives a queue pair up, as NCCL_IB_RETRY_CNT."},
    {"verbs.adaptive_retransmission", kChoice, "leave", "leave|on|off", "Adaptive retransmission in the firmware of ConnectX devices, for all who use the device, until it is reset: set by mlxreg or mstreg, which need root; a warning says where that does not work."},
    {"verbs.pkey_index", kInteger, "0", "0..65535", "Index of the partition key, as NCCL_IB_PKEY."},
    {"verbs.relaxed_ordering", kBool, "true", "", "Lets PCIe reorder writes of data, where device and kernel can, as NCCL_IB_PCI_RELAXED_ORDERING."},
    {"verbs.flush", kBool, "true", "", "When data has arrived for a GPU's memory, and before the GPU is told, the NIC reads a few bytes of that memory: PCIe then has written all of the data. NCCL_GDR_FLUSH_DISABLE=1 turns this off."},
    {"verbs.source_ports", kText, "", "", "File with the UDP source ports (49152..65535) of queue pairs, in the format of tcp.source_ports; a lane whose queue pair is lost takes the next port of its line; empty: ports are drawn at random."},
    {"verbs.source_port_by", kChoice, "flow-label", "flow-label|mlx5dv", "What gives a queue pair its UDP source port. flow-label: its flow label, by the rule of RoCE v2's annex; mlx5dv: mlx5dv_modify_qp_udp_sport as well, on ConnectX devices; where that call does not work, the flow label counts, and a warning says so."},
    {"verbs.path_search", kBool, "true", "", "Where source ports are drawn at random: a link that has more to send than its queue pairs carry tries another port, and keeps it if that port carries more."},
    {"verbs.piece_min", kBytes, "64KiB", "4KiB..16MiB", "The smallest pieces that a message is cut into when it is spread over queue pairs."},
    {"verbs.piece_max", kBytes, "1MiB", "4KiB..1GiB", "The largest piece of a message."},
    {"verbs.eager_max", kBytes, "4KiB", "0..64KiB", "Messages in host memory of up to this size are sent before the sender knows of their receive; the smaller value of both sides counts; 0: never. Each link has 256 slots of this size at either end."},
    {"verbs.stall_after", kDuration, "1s", "1ms..1h", "How long something that was sent may go unanswered until the other side is asked what has arrived; with multipath, whether anything arrives over the queue pair."},
    {"verbs.give_up_after", kDuration, "30s", "10ms..24h", "How long queue pairs are replaced and data is sent again without any getting across, until the link fails."},

    {"collective.timeout", kDuration, "5m", "100ms..24h", "How long a collective may wait for a rank before it fails on every rank, naming the one that is missing."},
    {"collective.algorithm", kText, "auto", "", "Forces one algorithm, as ring, for every collective that has it; docs/collectives.md lists them; auto takes the cheapest by the machine's costs."},
    {"collective.algorithm_by_kind", kText, "", "", "Forces algorithms for some collectives, by kind and, where wanted, size and group, as all_reduce=tree,broadcast:1MiB..@dp*=chain; auto is a value too; the last that fits counts, and goes before collective.algorithm."},
    {"collective.costs", kText, "", "", "File with the costs that algorithms are chosen by, of rank 0 for all; empty: what weft-bw --calibrate wrote on its machine, else defaults."},
    {"collective.fabric", kText, "", "", "The fabric that the job runs on, a fabric file or a generator: collectives are then planned by its switches, NICs and their rates."},
    {"collective.fabric_host", kText, "", "", "What this host is called in collective.fabric; empty: its name."},
    {"collective.axes_at_once", kText, "none", "", "Axes of the job's mesh whose groups run collectives at the same time as those along the others, as all, or tp,dp: each group is then planned with its share of its host's NICs; none: only groups along the same axes share them. All ranks need the same."},
    {"collective.deterministic", kBool, "false", "", "Algorithms are chosen by kind, size and group alone: by the costs that Weft comes with, and never by what was measured on a machine or by its cores; so the order of a reduction, and its bits, are the same in every run of the same layout. Rank 0's value counts for all."},
    {"collective.chunk_bytes", kBytes, "256KiB", "4KiB..64MiB", "Largest pieces in which an algorithm pipelines a large buffer; rank 0's value counts for all."},

    {"records.enabled", kBool, "true", "", "Writes what this process does (collectives, flows, phases, steps) into a ring in shared memory, for weft-top, weft-trace, weft-diagnose and weft-agent."},
    {"records.folder", kText, "", "", "Where the rings lie, one file a process; empty: /dev/shm/weft-UID, else $XDG_RUNTIME_DIR/weft, else /tmp/weft-UID."},
    {"records.bytes", kBytes, "256KiB", "4KiB..64MiB", "Size of a process's ring, 64 bytes a record; the oldest are overwritten."},
    {"records.keep", kBool, "false", "", "Keeps the ring of a process that ends in good order; that of a process that dies or fails is kept in any case. A process that starts an hour later or more removes it."},
    {"records.dead_bytes", kBytes, "64MiB", "0..64GiB", "Rings of processes that have died are kept up to so many bytes in all, and up to an eighth of the file system that they lie in; a process that starts removes the oldest ones beyond that."},
    {"records.dcgm_exporter", kText, "", "", "HOST:PORT of this host's dcgm-exporter, from whose page weft-agent, weft-run, weft-top and weft-diagnose take the GPUs' clocks, temperatures and errors; empty: there is none."},

    {"store.timeout", kDuration, "5m", "100ms..24h", "How long a wait for a key of the rendezvous store may take."},
    {"nccl.tuner", kChoice, "auto", "auto|off|devices", "What the NCCL plugin's tuner goes by: the network of nccl.fabric, where that is set; nothing, so that NCCL's own choices stay; or the devices of this host, which must be alike on all hosts."},
    {"nccl.fabric", kText, "", "", "The fabric that the tuner chooses NCCL's algorithms for: a fabric file, the same on all hosts, or a generator, as megascale:hosts=64."},
    {"nccl.profiler", kChoice, "auto", "auto|kernels|network|off", "What the NCCL plugin's profiler records, where records are enabled: with kernels, calls from the start of their kernels (NCCL 2.27 and later), and flows; with network, the same from the time at which calls are enqueued, which asks nothing of kernels; auto: kernels where NCCL_PROFILER_PLUGIN is set, else network."},
    {"recovery.snapshot", kChoice, "memory", "off|memory", "Under weft-run --recover: memory keeps weft-train's state after the last two steps, and a neighbour's, so that a rank that is started anew costs at most the step that it died in; off goes back to the last checkpoint."},
    {"recovery.join", kChoice, "changed", "changed|all", "Under weft-run --recover, how the ranks of weft-train join again when one was started anew: changed keeps the others' endpoints and connections to each other, and only what leads to the new process is made; all has every rank join as at the start."},
    {"recovery.mtbf", kDuration, "0s", "0..87600h", "Expected time between two failures of a whole weft-train job. With it, the time between checkpoints is that which costs least, by what a save takes and by the failures that the run has had (Daly 2006); checkpoint.every counts until the first. 0: checkpoint.every counts always."},
    {"verify.buffers", kBool, "false", "", "Finds buffers of calls that their owner frees or changes too early: calls work on copies, and a buffer that is not as it was fails the communicator on all ranks, with rank, call, buffer and byte. Takes the buffers' memory up to three times, and time; to find faults of programs."},
    {"verify.schedules", kBool, "false", "", "Proves each schedule correct before it first runs; for tests and for new algorithms."},
});
// clang-format on

}  // namespace

absl::Span<const SettingRow> LibrarySettings() { return kTable; }

}  // namespace weft
