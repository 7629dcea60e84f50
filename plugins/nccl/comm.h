// The plugin's side of NCCL's listenComm, sendComm and recvComm, and their requests.
//
// A connection comes to be in three steps, none of which blocks: net/tcp's handshake proves that
// the connector has the handle; its greeting says who it is; the listener's answer accepts or
// refuses. NCCL calls connect and accept again until then.
//
// Threading: a ListenComm is used by one thread at a time (NCCL's service thread). The
// others lock themselves: the service thread registers memory and connects, while the progress
// thread posts and tests. A request belongs to its comm and is driven by its own tests.
#ifndef WEFT_PLUGINS_NCCL_COMM_H_
#define WEFT_PLUGINS_NCCL_COMM_H_

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "plugins/nccl/backend.h"
#include "plugins/nccl/peer.h"
#include "plugins/nccl/profiled_link.h"

namespace weft::nccl {

class Comm;

// What regMr returns. It does not own the bytes.
struct MemoryHandle {
  net::Region region;
  bool is_device = false;  // a GPU's
};

// One isend, one group of irecv, or one iflush. Reused; NCCL's void* request.
struct CommRequest {
  Comm* owner = nullptr;
  int count = 0;  // of `parts` in use
  std::array<net::Request, abi::kGroupedReceivesMax> parts;
  std::array<int, abi::kGroupedReceivesMax> tags{};
  std::array<size_t, abi::kGroupedReceivesMax> sizes{};  // as posted
  // Memory of each part, while it is under way; null: it has no bytes.
  std::array<const MemoryHandle*, abi::kGroupedReceivesMax> memory{};
  bool is_flush = false;
};

// When an end of a connection was begun, when its handshake was over.
struct SetUpTimes {
  absl::Time begun, connected = absl::InfiniteFuture();
};

// What send and receive sides have in common.
class Comm {
 public:
  // `mutex`: of the connection.
  Comm(Backend& backend, PeerInfo self, std::mutex& mutex)
      : backend_(backend), self_(std::move(self)), mutex_(mutex) {}
  virtual ~Comm() = default;

  Backend& backend() const { return backend_; }
  const SetUpTimes& set_up() const { return set_up_; }
  // Completes when all parts have: then *done, and the sizes, `request` is free again. An error
  // names both sides.
  absl::Status Test(CommRequest& request, bool* done, int* sizes, absl::Time now);
  absl::StatusOr<std::unique_ptr<MemoryHandle>> Register(void* data, size_t size);
  absl::StatusOr<std::unique_ptr<MemoryHandle>> RegisterDevice(const net::DeviceMemory& memory);
  // NCCL does so with requests under way when it aborts, and frees the memory before it closes the
  // connection: that is given up, so that nothing is written there any more.
  void Deregister(std::unique_ptr<MemoryHandle> memory);
  // How the link is; false: that was said lately, 1 ms ago at first, 100 ms in the end. By the
  // thread that posts.
  bool TakeLinkState(absl::Time now, ProfiledLink* state);

 protected:
  virtual Connection& connection() = 0;
  virtual const char* verb() const = 0;   // "isend"
  virtual const char* arrow() const = 0;  // "->", "<-"

  // Null: as many are in flight as may be.
  CommRequest* Acquire(size_t limit);
  void Release(CommRequest* request);
  // The part of the registered memory, or InvalidArgument with both ranges.
  absl::StatusOr<net::RegionView> View(const MemoryHandle* memory, void* data, size_t size) const;
  absl::Status Failure(const absl::Status& why, absl::string_view what) const;
  void SetPeer(const PeerInfo& peer);

  Backend& backend_;
  const PeerInfo self_;
  PeerInfo peer_;
  SetUpTimes set_up_;
  std::mutex& mutex_;  // of all below, and of the connection

 private:
  std::vector<std::unique_ptr<CommRequest>> requests_;
  std::vector<CommRequest*> free_;
  // Used by TakeLinkState's thread alone.
  absl::Time link_state_due_ = absl::InfinitePast();
  absl::Duration link_state_wait_ = absl::Milliseconds(1);
  uint64_t repeats_said_ = 0;
  int link_state_asked_ = 0;  // in vain: the link had no round trip yet
};

class SendComm final : public Comm {
 public:
  // Begins to connect; `listener` is the process that made the handle. With a `mismatch` the
  // listener will refuse the connection (ConnectToBeRefused), and Connect() fails with `mismatch`
  // once it has.
  SendComm(Backend& backend, PeerInfo self, const PeerInfo& listener,
           std::unique_ptr<SendConnection> connection, absl::Time now,
           absl::Status mismatch = absl::OkStatus());

  // True once the other side has accepted.
  absl::StatusOr<bool> Connect(absl::Time now);
  // Its time was over so long ago that nobody calls Connect() any more.
  bool Forgotten(absl::Time now) const { return now > give_up_ + backend_.connect_timeout(); }
  // Null: not now, try again.
  absl::StatusOr<CommRequest*> Send(void* data, size_t size, int tag, const MemoryHandle* memory,
                                    absl::Time now);

 private:
  Connection& connection() override { return *connection_; }
  const char* verb() const override { return "isend"; }
  const char* arrow() const override { return " -> "; }

  std::unique_ptr<SendConnection> connection_;
  const absl::Time give_up_;
  const absl::Status mismatch_;
};

struct ReceivePart {
  void* data = nullptr;
  size_t size = 0;  // at most
  int tag = 0;
  const MemoryHandle* memory = nullptr;
};

class ReceiveComm final : public Comm {
 public:
  ReceiveComm(Backend& backend, PeerInfo self, std::unique_ptr<ReceiveConnection> connection,
              const SetUpTimes& times);

  // The peer's greeting has come and was answered: true. An error ends the attempt, on both sides.
  absl::StatusOr<bool> Greet(absl::Time now);
  absl::StatusOr<CommRequest*> Receive(const std::vector<ReceivePart>& parts, absl::Time now);
  // Flushes completed receives, before a GPU reads them. Null: there is nothing to wait for.
  absl::StatusOr<CommRequest*> Flush(const std::vector<ReceivePart>& parts, absl::Time now);

 private:
  Connection& connection() override { return *connection_; }
  const char* verb() const override { return "irecv"; }
  const char* arrow() const override { return " <- "; }

  std::unique_ptr<ReceiveConnection> connection_;
};

class ListenComm {
 public:
  ListenComm(Backend& backend, PeerInfo self, std::unique_ptr<Listener> listener)
      : backend_(backend), self_(std::move(self)), listener_(std::move(listener)) {}
  const Listener& listener() const { return *listener_; }

  // Null: no peer yet. Fails when a peer does not match, dies on the way, or when none has come for
  // kAcceptPatience times the connect timeout since the first call.
  absl::StatusOr<std::unique_ptr<ReceiveComm>> Accept(absl::Time now);
  // The other side may be a slow job, not a slow network.
  static constexpr int kAcceptPatience = 10;

 private:
  Backend& backend_;
  const PeerInfo self_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::unique_ptr<ReceiveComm>> arriving_;
  absl::Time give_up_ = absl::InfinitePast();  // not called yet
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_COMM_H_
