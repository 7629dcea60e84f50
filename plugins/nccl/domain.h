// One net::Transport and the connections that NCCL makes of it: those of one device and one NCCL
// communicator (a "domain"). It lives as long as any of its listeners and connections, so that
// nothing of it is left when NCCL unloads the library.
//
// Threading: everything with the domain's mutex held, but for Create() and the destructors of its
// listeners and connections, which take it. So within one NCCL communicator its service thread and
// its progress thread wait for each other, and communicators never do. The idle progress thread
// comes in when neither of the two has driven the domain for some time.
#ifndef WEFT_PLUGINS_NCCL_DOMAIN_H_
#define WEFT_PLUGINS_NCCL_DOMAIN_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"
#include "net/transport.h"
#include "plugins/nccl/backend.h"
#include "plugins/nccl/idle_progress_thread.h"

namespace weft::nccl {

class DomainListener;

class Domain final : public net::TransportEvents,
                     public std::enable_shared_from_this<Domain>,
                     private IdleProgressThread::Client {
 public:
  // `idle_thread` outlives it, and drives it while NCCL does not call.
  static absl::StatusOr<std::shared_ptr<Domain>> Create(HandleTransport kind,
                                                        const Settings& settings,
                                                        IdleProgressThread& idle_thread);
  ~Domain() override;

  std::mutex& mutex() { return mutex_; }
  const SocketAddress& address() const { return address_; }
  const net::JobSecret& secret() const { return secret_; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen();
  absl::StatusOr<std::unique_ptr<SendConnection>> Connect(const Handle& handle,
                                                          absl::string_view interface,
                                                          absl::Time now);

  // With the mutex free; the region keeps the domain.
  absl::StatusOr<net::Region> Register(void* data, size_t size);
  absl::StatusOr<net::Region> RegisterDevice(const net::DeviceMemory& memory);
  bool Progress(absl::Time now);
  // Until they are forgotten.
  void Remember(net::Link* link, std::deque<std::string>* notices) { notices_[link] = notices; }
  void Forget(net::Link* link) { notices_.erase(link); }
  void Forget(uint32_t listener) { listeners_.erase(listener); }

 private:
  Domain(HandleTransport kind, IdleProgressThread& idle_thread)
      : kind_(kind), idle_thread_(idle_thread) {}
  int wait_fd() const override { return transport_->wait_fd(); }
  absl::Time ProgressIdle(absl::Time now) override;
  bool Turn(absl::Time now);
  net::Region Kept(void* data, size_t size, net::Region region);
  void OnAccepted(std::unique_ptr<net::ReceiveLink> link) override;
  void OnNotice(net::Link& link, absl::string_view bytes) override;
  void OnBroken(net::Link& /*link*/, const absl::Status& /*status*/) override {}
  void OnTurnedAway(Rank peer, const absl::Status& why) override;

  const HandleTransport kind_;
  IdleProgressThread& idle_thread_;
  std::mutex mutex_;
  net::JobSecret secret_{};
  SocketAddress address_;
  std::map<uint32_t, DomainListener*> listeners_;
  uint32_t next_listener_ = 0;
  std::unordered_map<net::Link*, std::deque<std::string>*> notices_;
  absl::Time now_ = absl::InfinitePast();
  std::unique_ptr<net::Transport> transport_;
  bool is_prepared_ = false;  // to wait
  // Nobody waits for these; they cannot go while the transport calls us.
  std::vector<std::unique_ptr<net::ReceiveLink>> unwanted_;
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_DOMAIN_H_
