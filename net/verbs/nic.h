// What the verbs transport needs of an RDMA device, and no more: devices, ports, GIDs, memory,
// completion queues, connected queue pairs, reliable (RC) or not (UC), asynchronous events. Two
// implementations: ibverbs_nic.h, over libibverbs, and the scripted one of tests/net/verbs, whose
// every call can be made to fail.
//
// Errors: kUnavailable, "ibv_create_qp on mlx5_0: Cannot allocate memory ...". Nothing waits, but
// for ToReadyToReceive, in which the kernel resolves the remote address. Ownership: whatever was
// made of a device is destroyed before it, queue pairs before their completion and receive queues.
// Resetting or destroying a queue pair ends all its traffic: nothing of it reads or writes memory
// afterwards. Threading: that of the transport, one thread at a time; but a queue pair that was
// reset may be destroyed by another, which can wait for the kernel for seconds.
#ifndef WEFT_NET_VERBS_NIC_H_
#define WEFT_NET_VERBS_NIC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::net {

using Gid = std::array<uint8_t, 16>;
std::string GidText(const Gid& gid);  // "::ffff:10.1.0.1"

enum class GidKind : uint8_t { kInfiniband, kRoceV1, kRoceV2 };
const char* ToString(GidKind kind);  // "RoCE v2"

struct NicGid {
  int index = 0;
  Gid gid{};
  GidKind kind = GidKind::kInfiniband;
};

struct NicPort {
  int number = 1;
  bool active = false;
  std::string state;          // "ACTIVE", "DOWN", ...
  bool ethernet = false;      // RoCE; else InfiniBand
  bool needs_global = false;  // an InfiniBand port whose packets are to have a global route header
  int mtu = 0;                // the active one, bytes
  double gbps = 0;            // of the link
  uint16_t lid = 0;
};

struct NicLimits {
  int ports = 1;
  int queue_pairs = 0;
  int work_requests = 0;  // of one queue
  int completions = 0;    // of one completion queue
};

// What may be done to registered memory, beside local writes and remote ones.
struct NicAccess {
  bool relaxed = false;   // PCI may reorder what is written
  bool readable = false;  // remote reads
};

// Registered memory: what to name it by, here and at the other side.
struct NicMemory {
  uint64_t handle = 0;
  uint32_t local_key = 0, remote_key = 0;
};

// The numbers are those of ibv_wc_status, which people know ("error 12").
enum class NicStatus : uint8_t {
  kOk = 0,
  kLocalLength = 1,
  kLocalOperation = 2,
  kLocalProtection = 4,
  kFlushed = 5,
  kBadResponse = 7,
  kLocalAccess = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccess = 10,
  kRemoteOperation = 11,
  kRetryExceeded = 12,
  kReceiverNotReady = 13,
  kRemoteAborted = 16,
  kFatal = 19,
  kResponseTimeout = 20,
  kGeneral = 21,
};

struct NicCompletion {
  uint64_t id = 0;  // of the work request; good with every status
  NicStatus status = NicStatus::kOk;
  bool receive = false;  // good when status is kOk
  uint32_t immediate = 0;
  uint32_t bytes = 0;  // of a receive into memory
  uint32_t vendor_error = 0;
};

enum class NicEventKind : uint8_t {
  kPortUp,
  kPortDown,
  kAddressChanged,  // GIDs or LID
  kQueuePairFatal,  // queue_pair
  kCompletionQueueLost,
  kReceiveQueueLost,
  kDeviceLost,
};
struct NicEvent {
  NicEventKind kind{};
  int port = 0;
  uint32_t queue_pair = 0;
};

// A write to the other side's memory. With an immediate it takes one receive there and completes
// there too. Executed in the order of posting; one that fails fails all behind it.
struct NicWrite {
  uint64_t id = 0;
  const std::byte* local = nullptr;
  uint32_t length = 0;
  uint32_t local_key = 0;
  uint64_t remote = 0;
  uint32_t remote_key = 0;
  bool has_immediate = false;
  uint32_t immediate = 0;
  bool signaled = false;
  bool in_line = false;  // the bytes are copied while posting
};

// A read of the other side's memory, which must be readable. Always signaled.
struct NicRead {
  uint64_t id = 0;
  std::byte* local = nullptr;
  uint32_t length = 0;
  uint32_t local_key = 0;
  uint64_t remote = 0;
  uint32_t remote_key = 0;
};

// A message that the other side takes with one of its receives: whole, or, unreliably, not at all.
// A reliable one waits for a receive.
struct NicSend {
  uint64_t id = 0;
  const std::byte* local = nullptr;
  uint32_t length = 0;
  uint32_t local_key = 0;
  bool signaled = false;
};

// Memory for one such message.
struct NicReceive {
  uint64_t id = 0;
  std::byte* local = nullptr;
  uint32_t length = 0;
  uint32_t local_key = 0;
};

// Receives that several queue pairs share; each message takes one.
class NicReceiveQueue {
 public:
  virtual ~NicReceiveQueue() = default;
  // All or an error; after an error some of the first may be posted.
  virtual absl::Status Post(absl::Span<const NicReceive> receives) = 0;
};

class NicCompletionQueue {
 public:
  virtual ~NicCompletionQueue() = default;
  virtual absl::StatusOr<size_t> Poll(absl::Span<NicCompletion> out) = 0;
  // Makes the device's completion_fd() readable at the next completion; what came before is found
  // by another Poll().
  virtual absl::Status Arm() = 0;
};

enum class NicService : uint8_t {
  kReliable,    // RC: acknowledged, in order, sent again by the device, or the queue pair fails
  kUnreliable,  // UC: a message that is lost, or finds no receive, is gone, without a report
};

struct NicQueuePairOptions {
  NicService service = NicService::kReliable;
  NicCompletionQueue* completions = nullptr;
  uint32_t send_depth = 0, receive_depth = 0;
  uint32_t inline_bytes = 0;
  NicReceiveQueue* receives = nullptr;  // shared, instead of receive_depth of its own
};

// Where a queue pair goes to and how. Both ends give their own.
struct NicPath {
  int port = 1;
  bool ethernet = false;
  bool global = false;  // by a global route header: remote_gid and what follows gid_index
  int mtu = 1024;       // bytes
  uint32_t remote_queue_pair = 0;
  uint32_t remote_psn = 0, local_psn = 0;  // 24 bits
  Gid remote_gid{};
  uint16_t remote_lid = 0;
  int gid_index = 0;
  uint32_t flow_label = 0;       // 20 bits; it gives the UDP source port
  uint16_t udp_source_port = 0;  // set by the device's own call as well, where it has one; 0: not
  int traffic_class = 0, service_level = 0;
  int timeout = 14;  // 4.096 us * 2^timeout; this and what follows: reliable ones
  int retry_count = 7;
};

class NicQueuePair {
 public:
  virtual ~NicQueuePair() = default;
  virtual uint32_t number() const = 0;
  virtual absl::Status ToInit(int port, int pkey_index) = 0;
  virtual absl::Status ToReadyToReceive(const NicPath& path) = 0;
  virtual absl::Status ToReadyToSend(const NicPath& path) = 0;
  virtual absl::Status ToError() = 0;  // from any state but RESET; what it has to do is flushed
  // From any state. What had completed and was not polled may be gone, and with it receives of a
  // shared queue.
  virtual absl::Status ToReset() = 0;
  virtual absl::StatusOr<std::string> State() = 0;  // "RTS": for people
  // All or an error; after an error some of the first may be on their way.
  virtual absl::Status PostWrites(absl::Span<const NicWrite> writes) = 0;
  virtual absl::Status PostSends(absl::Span<const NicSend> sends) = 0;  // likewise
  virtual absl::Status PostRead(const NicRead& read) = 0;               // reliable ones
  // `count` receives without memory, with ids from `first_id` on.
  virtual absl::Status PostReceives(uint64_t first_id, int count) = 0;
};

class NicDevice {
 public:
  virtual ~NicDevice() = default;
  virtual const std::string& name() const = 0;
  virtual std::string pci_address() const = 0;  // "0000:3b:00.0"; empty: none
  // True: ToReadyToReceive() of a RoCE queue pair may wait for the address of the other side, for a
  // second where no host answers.
  virtual bool ResolvesAddresses() const = 0;
  virtual absl::StatusOr<NicLimits> Limits() = 0;
  virtual absl::StatusOr<NicPort> QueryPort(int port) = 0;
  virtual absl::StatusOr<std::vector<NicGid>> QueryGids(int port) = 0;
  virtual absl::StatusOr<NicMemory> Register(void* data, size_t size, const NicAccess& access) = 0;
  // Memory of another device, by its descriptor; it appears at address `data` for its users.
  virtual absl::StatusOr<NicMemory> RegisterDmaBuf(int fd, uint64_t offset, size_t size, void* data,
                                                   const NicAccess& access) = 0;
  // OK where the device and its driver can do that; kUnimplemented where they cannot.
  virtual absl::Status ProbeDmaBuf() = 0;
  virtual void Deregister(const NicMemory& memory) = 0;
  virtual absl::StatusOr<std::unique_ptr<NicCompletionQueue>> CreateCompletionQueue(int depth) = 0;
  virtual absl::StatusOr<std::unique_ptr<NicReceiveQueue>> CreateReceiveQueue(uint32_t depth) = 0;
  // Granted at least what was asked for, but for inline_bytes, which may come out smaller.
  virtual absl::StatusOr<std::unique_ptr<NicQueuePair>> CreateQueuePair(
      NicQueuePairOptions* options) = 0;

  virtual int completion_fd() const = 0;
  virtual void DrainCompletionEvents() = 0;  // until completion_fd() is not readable any more
  virtual int event_fd() const = 0;
  virtual bool NextEvent(NicEvent* event) = 0;  // false: none is there
};

class Nic {
 public:
  virtual ~Nic() = default;
  virtual absl::StatusOr<std::vector<std::string>> DeviceNames() = 0;
  virtual absl::StatusOr<std::unique_ptr<NicDevice>> Open(absl::string_view name) = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_NIC_H_
