// What a transport must offer to be used under NCCL: devices, and connections made of one link of
// net/transport.h each. tcp_backend.cc makes them one by one; domain_backend.cc takes them from
// whole transports (verbs, ucx, multipath).
//
// NCCL's model differs from net::Transport's in how links come to be: each receive side listens
// separately and hands out 128 bytes, there are no ranks and no job secret, many connections join
// the same two processes, and each is driven by the thread that tests its requests
// (docs/decisions/0005). So this page makes links and drives them; requests are posted to
// net::SendLink and net::ReceiveLink.
//
// Threading: a Backend is thread-safe. A Listener is used by one thread at a time. A thread
// that uses a Connection, its link or the requests on it holds its mutex(). Time is an argument.
#ifndef WEFT_PLUGINS_NCCL_BACKEND_H_
#define WEFT_PLUGINS_NCCL_BACKEND_H_

#include <compare>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/transport.h"
#include "plugins/nccl/device.h"
#include "plugins/nccl/peer.h"

namespace weft::nccl {

// The handshake needs ranks. A listener has rank 0. A connector's rank holds the listener's number,
// which says which listener it means, and a random number, which tells the sockets of two
// connectors to one listener apart.
inline constexpr int kRanks = (1 << 30) + 1;
inline constexpr uint32_t kListenersMax = 1 << 18;
Rank DrawRank(uint32_t listener);
uint32_t ListenerOfRank(Rank rank);

// One end of one connection. The destructor cancels posted requests and closes in good order,
// without losing sent bytes; the mutex must be free.
class Connection {
 public:
  virtual ~Connection() = default;
  // Connections that are driven together share one mutex.
  virtual std::mutex& mutex() = 0;
  virtual net::Link& link() = 0;
  virtual bool Progress(absl::Time now) = 0;
  // The connection stands: until now NCCL drove it, and from now on for requests of its own only.
  // Once, with the mutex held.
  virtual absl::Status Established() { return absl::OkStatus(); }
  // The oldest notice that has come and was not taken; false: none.
  virtual bool TakeNotice(std::string* text) = 0;
  // Called with the mutex free, as is the region's destructor: both take it where they need it.
  virtual absl::StatusOr<net::Region> Register(void* data, size_t size) = 0;
  virtual absl::StatusOr<net::Region> RegisterDevice(const net::DeviceMemory& /*memory*/) {
    return absl::InvalidArgumentError(
        "GPU memory, but this transport reaches host memory only; NCCL copies there by itself");
  }
};

class SendConnection : public Connection {
 public:
  net::SendLink& link() override = 0;
};

class ReceiveConnection : public Connection {
 public:
  net::ReceiveLink& link() override = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual const SocketAddress& address() const = 0;
  virtual const net::JobSecret& secret() const = 0;
  virtual uint32_t number() const = 0;
  // The next peer that has proved that it has the handle; null: none yet. An error: a peer that has
  // it does not fit, and was told so; or this process is out of descriptors for its connection.
  virtual absl::StatusOr<std::unique_ptr<ReceiveConnection>> Accept(absl::Time now) = 0;
};

// The connections that belong together: those of one NCCL communicator, or all connections of a
// table without contexts. Connections of different scopes never wait for each other.
struct Scope {
  uint64_t id = 0;         // 0: of a table without contexts
  int traffic_class = -1;  // that NCCL gave its communicator; -1: none
  friend auto operator<=>(const Scope&, const Scope&) = default;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual HandleTransport transport() const = 0;
  virtual const DeviceList& devices() const = 0;
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(const Scope& scope, int device) = 0;
  // Begins; a failure breaks the link.
  virtual absl::StatusOr<std::unique_ptr<SendConnection>> Connect(const Scope& scope, int device,
                                                                  const Handle& handle,
                                                                  absl::Time now) = 0;
  // A new device that uses all of these; its number. Leaves devices() as they were when it fails;
  // Unimplemented: such are not merged. But one alone is merged always, if into itself: NCCL 2.24
  // to 2.26 ask for it of each that they have merged with no other, and 2.26 for ever while it
  // fails.
  virtual absl::StatusOr<int> Merge(const std::vector<int>& parts) = 0;
  // NCCL knows nothing of the devices that were merged any more: their numbers are free again.
  virtual void ForgetMerged() {}
  // The process ends by exit(): what is left of connections is NCCL's threads' alone.
  virtual void EndIdleProgress() = 0;
  virtual absl::Duration connect_timeout() const = 0;
  // For the one line of INFO: "2 sockets a connection".
  virtual std::string Describe() const = 0;
};

inline const char* NameOf(const Backend& backend) { return ToString(backend.transport()); }

absl::StatusOr<std::unique_ptr<Backend>> CreateTcpBackend(const Settings& settings,
                                                          std::vector<Device> devices);
// `kind`: kVerbs, kUcx or kMultipath.
absl::StatusOr<std::unique_ptr<Backend>> CreateDomainBackend(HandleTransport kind,
                                                             const Settings& settings,
                                                             std::vector<Device> devices);

// By the setting `transport`; `why` gets the reasons for it and for its devices.
absl::StatusOr<std::unique_ptr<Backend>> ChooseBackend(const Settings& settings, std::string* why);

// To a listener of another kind of transport: it turns this away, so that both sides learn at once
// what does not fit. Never connects.
absl::StatusOr<std::unique_ptr<SendConnection>> ConnectToBeRefused(HandleTransport own,
                                                                   const Settings& settings,
                                                                   const Device& device,
                                                                   const Handle& handle,
                                                                   absl::Time now);

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_BACKEND_H_
