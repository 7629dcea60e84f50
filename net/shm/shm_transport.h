// The shm transport: links between processes of one host, through memory that the two ends of a
// link share and no other process can open. Reasons:
// docs/decisions/0002-memfd-over-unix-sockets.md; layout of the memory: docs/wire-format.md.
//
// Files, in reading order: ring.h (rings of cells, the arena), segment.h (the memory of a link),
// doorbell.h (sleeping), bringup.h (connecting), endpoint.h and links.h (the two ends), this.
//
// An address reads "shm:<32 hex digits>", the name of an abstract unix socket. Sleeping: one
// eventfd, rung by peers only while this process says that it sleeps. A peer's death is the hang-up
// of its unix socket: seen at once by a sleeper, within kSocketsEvery by one that spins.
#ifndef WEFT_NET_SHM_SHM_TRANSPORT_H_
#define WEFT_NET_SHM_SHM_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "base/epoll.h"
#include "base/log_throttle.h"
#include "net/shm/bringup.h"
#include "net/shm/endpoint.h"
#include "net/transport.h"

namespace weft::net {

class ShmTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options);
  ~ShmTransport() override;

  TransportKind kind() const override { return TransportKind::kShm; }
  const std::string& address() const override { return address_; }
  std::unique_ptr<SendLink> Connect(absl::string_view address, Rank peer, absl::Time now) override;
  absl::StatusOr<Region> Register(void* data, size_t size) override;
  bool Progress(absl::Time now) override;
  void WakePeers() override { RingPeers(); }
  int wait_fd() const override { return epoll_.fd(); }
  bool PrepareWait() override;
  void FinishWait() override;
  absl::Time NextDeadline() const override;

  // ---- For its links.
  void Add(shm::Endpoint* endpoint);
  void Remove(shm::Endpoint* endpoint);
  absl::Status Watch(int fd, shm::SocketWatcher* watcher);  // until Unwatch()
  void Unwatch(int fd);
  void NoteLocalWork() { local_work_ = true; }  // the next Progress() has something to do
  TransportEvents& events() { return *options_.events; }
  Rank self() const { return options_.self; }
  size_t requests_max() const { return requests_max_; }
  uint64_t single_copy_min() const { return single_copy_min_; }  // bytes; 0: never
  // Whether messages of that size are to be read from memory that this process does not map.
  bool ReadsPeers() const;
  uint64_t eager_max() const { return eager_max_; }  // bytes; 0: no eager messages
  const std::string& host() const { return host_; }

 private:
  explicit ShmTransport(const TransportOptions& options);
  absl::Status Open();
  absl::Status WatchListener(bool on);
  void RingPeers();
  bool PollSockets(absl::Time now);
  void AcceptAll(absl::Time now);
  void TurnAway(const absl::Status& why, absl::Time now);
  bool StepArrivals(absl::Time now);
  void Welcome(shm::Wire wire);

  TransportOptions options_;
  HandshakeIdentity identity_;
  shm::Geometry geometry_;
  size_t requests_max_;
  uint64_t single_copy_min_;
  std::string single_copy_;  // the setting
  uint64_t eager_max_;
  absl::Duration connect_timeout_;
  std::string host_;
  std::string address_;
  FileDescriptor listener_;
  Epoll epoll_;
  shm::Doorbell doorbell_;
  std::vector<shm::Endpoint*> endpoints_;
  std::vector<std::unique_ptr<shm::Arriving>> arriving_;
  size_t first_ = 0;  // whose turn is first
  bool local_work_ = false;
  bool in_progress_ = false;
  bool poll_now_ = true;
  bool comes_up_ = false;  // an endpoint, as of the last turn
  LogThrottle accept_fails_, turned_away_;
  uint32_t turns_ = 0;
  absl::Time next_poll_ = absl::InfinitePast();
  absl::Time listen_again_ = absl::InfiniteFuture();  // accept() ran out of descriptors
};

}  // namespace weft::net

#endif  // WEFT_NET_SHM_SHM_TRANSPORT_H_
