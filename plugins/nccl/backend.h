// What a transport must offer to be used under NCCL: devices, and connections made of one link of
// net/transport.h each. The tcp backend is the only one yet; verbs and UCX implement the same page.
//
// NCCL's model differs from net::Transport's in how links come to be: each receive side listens
// separately and hands out 128 bytes, there are no ranks and no job secret, many connections join
// the same two processes, and each is driven by whoever tests its requests (docs/decisions/0005).
// So this page makes links and drives them; what moves on them is net::SendLink and
// net::ReceiveLink.
//
// Threading: a Backend is thread-safe. A Listener and a Wire are used by one thread at a time. Time
// is an argument.
#ifndef WEFT_PLUGINS_NCCL_BACKEND_H_
#define WEFT_PLUGINS_NCCL_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/transport.h"
#include "plugins/nccl/device.h"
#include "plugins/nccl/peer.h"

namespace weft::nccl {

// One end of one connection. The destructor cancels what is posted and closes in good order,
// without losing what was sent.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual net::Link& link() = 0;
  virtual bool Progress(absl::Time now) = 0;
  // The oldest notice that has come and was not taken; false: none.
  virtual bool TakeNotice(std::string* text) = 0;
  // For messages, instead of "rank N".
  virtual void SetPeerName(const std::string& name) = 0;
};

class SendWire : public Wire {
 public:
  net::SendLink& link() override = 0;
};

class ReceiveWire : public Wire {
 public:
  net::ReceiveLink& link() override = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual const net::SocketAddress& address() const = 0;
  // The next peer that has proved that it has the handle; null: none yet.
  virtual std::unique_ptr<ReceiveWire> Accept(absl::Time now) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;                    // "tcp"
  virtual const std::vector<Device>& devices() const = 0;  // does not change
  virtual int pointer_support() const = 0;                 // abi::kPointerHost | ...
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(int device,
                                                           const net::JobSecret& secret) = 0;
  // Begins; a failure breaks the link.
  virtual absl::StatusOr<std::unique_ptr<SendWire>> Connect(int device, const Handle& handle,
                                                            absl::Time now) = 0;
  virtual absl::StatusOr<net::Region> Register(void* data, size_t size) = 0;
  virtual absl::Duration connect_timeout() const = 0;
  // For the one line of INFO: "2 sockets a connection".
  virtual std::string Describe() const = 0;
};

absl::StatusOr<std::unique_ptr<Backend>> CreateTcpBackend(const Settings& settings,
                                                          std::vector<Device> devices);

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_BACKEND_H_
