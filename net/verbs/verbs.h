// Verbs: RDMA over RoCE and InfiniBand, through libibverbs. Read this, then entry.h (what is said),
// wire.h (how it survives faults), nic.h (what is asked of a device).
//
// A link is a tcp connection, as in net/tcp, and several reliable connected queue pairs. The
// connection carries the handshake, the queue pairs' numbers, notices and the end; a peer's death
// shows on it at once. Clear-to-sends and data go by RDMA writes with immediate, straight to their
// place; large messages are cut into pieces that go where they will be through first, by each queue
// pair's measured speed. Queue pairs that fail are replaced, with what they carried sent again; the
// caller notices nothing until verbs.give_up_after has passed without anything getting across, not
// counting time for which this process was stopped (process_stall.h).
//
// A send completes when the device has been acknowledged all of it: until then its memory may be
// needed to send it again.
//
// UDP source ports, which choose paths where switches hash, are chosen here: by verbs.source_ports,
// else drawn; each end's label governs its own direction. A replaced queue pair takes another.
//
// All that links libibverbs is libweft-verbs.so, loaded when the first such transport is made.
//
// Settings: verbs.*, or NCCL's where they mean the same (options.h); tcp.interface, tcp.family and
// transport.* for the connection.
#ifndef WEFT_NET_VERBS_VERBS_H_
#define WEFT_NET_VERBS_VERBS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "net/transport.h"

namespace weft::net {

// kUnavailable where the library, or libibverbs, cannot be loaded; kNotFound where no device can be
// used, with each one's reason.
absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options);
// The multipath transport over queue pairs, as multipath.wire says; likewise.
absl::StatusOr<std::unique_ptr<Transport>> CreateQueuePairTransport(
    const TransportOptions& options);

// A port that can be used.
struct VerbsPort {
  std::string device;  // "mlx5_0"
  int port = 1;
  double gbps = 0;      // of the link
  int queue_pairs = 0;  // that the device can have
  // Memory of GPUs that it can register: by DMA-BUF; by address (PeerMemoryModule()).
  bool dma_bufs = false, peer_memory = false;
  std::string description;  // with its GID and why that one
};

// All that verbs.devices, or NCCL_IB_HCA, admits; without either all. Errors as above, and
// kInvalidArgument for settings that make no sense.
absl::StatusOr<std::vector<VerbsPort>> ListVerbsPorts(const Settings& settings);

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_VERBS_H_
