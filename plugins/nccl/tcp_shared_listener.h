// The listening tcp socket of a device. All of NCCL's listeners on the device share it, and so do
// the connections accepted from it: their lost sockets are replaced through it, also after NCCL has
// closed its listener. It lives as long as any listener or connection that uses it, so that nothing
// of it is left when NCCL unloads the library, and costs three descriptors, however many
// connections there are.
//
// Threading: locks itself. A thread that waits for a peer drives it (Next); otherwise the idle
// progress thread does.
#ifndef WEFT_PLUGINS_NCCL_TCP_SHARED_LISTENER_H_
#define WEFT_PLUGINS_NCCL_TCP_SHARED_LISTENER_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"
#include "net/tcp/acceptor.h"
#include "net/tcp/connector.h"
#include "net/tcp/link_session.h"
#include "plugins/nccl/backend.h"
#include "plugins/nccl/idle_progress_thread.h"

namespace weft::nccl {

// What every end of a connection on `device` has of the settings.
absl::Status Prepare(net::TcpContext& context, const Settings& settings, const Device& device,
                     Rank self, const net::JobSecret& secret, net::TransportEvents* events);

class TcpSharedListener final : private net::AcceptorOwner,
                                private net::TransportEvents,
                                private IdleProgressThread::Client {
 public:
  // A peer that has proved that it has the handle of a listener, and its sockets.
  struct Peer {
    Rank rank;
    net::LinkParameters parameters;
    std::vector<FileDescriptor> sockets;
  };

  // `idle_thread` outlives it.
  static absl::StatusOr<std::shared_ptr<TcpSharedListener>> Open(const Settings& settings,
                                                                 const Device& device,
                                                                 IdleProgressThread& idle_thread);
  ~TcpSharedListener() override;
  const SocketAddress& address() const { return address_; }
  const net::JobSecret& secret() const { return secret_; }
  const std::shared_ptr<net::ResumeBook>& book() const { return context_.book; }

  absl::StatusOr<uint32_t> AddListener();  // its number
  void RemoveListener(uint32_t number);
  // The next accepted peer of that listener; without sockets: none has come. An error: a peer was
  // refused, and told so.
  absl::StatusOr<Peer> Next(uint32_t listener, absl::Time now);

 private:
  struct Listener {
    std::deque<Peer> arrived;
    absl::Status turned_away;
  };

  explicit TcpSharedListener(IdleProgressThread& idle_thread)
      : idle_thread_(idle_thread), secret_(net::NewNonce()) {}
  int wait_fd() const override { return context_.poller->fd(); }
  absl::Time ProgressIdle(absl::Time now) override;
  bool TurnLocked(absl::Time now);
  absl::Status Admit(Rank peer) override;
  void OnPeer(Rank peer, const net::LinkParameters& parameters, std::vector<FileDescriptor> sockets,
              absl::Time now) override;
  void OnTurnedAway(Rank peer, const absl::Status& why) override;
  void OnAccepted(std::unique_ptr<net::ReceiveLink> /*link*/) override {}
  void OnNotice(net::Link& /*link*/, absl::string_view /*bytes*/) override {}
  void OnBroken(net::Link& /*link*/, const absl::Status& /*status*/) override {}

  IdleProgressThread& idle_thread_;
  const net::JobSecret secret_;
  net::TcpContext context_;
  SocketAddress address_;

  std::mutex mutex_;  // of all below, and of the context
  std::unique_ptr<net::Acceptor> acceptor_;
  absl::Time now_ = absl::InfinitePast();
  std::map<uint32_t, Listener> listeners_;
  uint32_t next_listener_ = 0;
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_TCP_SHARED_LISTENER_H_
