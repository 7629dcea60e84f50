// The connections of a store's clients, without sockets: handshakes, frames from bytes and bytes
// from frames, and bounds on what waits to be read and written. What a frame means is its owner's
// business (StoreCore). Bytes and `now` in, bytes out. Not thread-safe. Connections are named by
// those who have the sockets.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_CONNECTIONS_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_CONNECTIONS_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "collectives/store/protocol/store_budget.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/server/store_session.h"
#include "net/handshake.h"

namespace weft::collectives {

struct StoreConnectionsOptions {
  net::JobSecret secret{};            // all zero: any client that has none either
  std::string description = "store";  // told to clients: "weft-run pid 123"
  // A connection with this much unread output is not read from until it has drained to half ...
  Bytes output_pause = MiB(64);
  // ... and with this much (answers to what it waited for) it is closed.
  Bytes output_limit = MiB(512);
};

class StoreConnections {
 public:
  using Id = uint64_t;  // above 0; none is used again
  // What a connection that has not finished its handshake is charged with; others less.
  static constexpr Bytes kUnprovenBytes = KiB(5);

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual const std::string& id() const = 0;  // of the store: told to clients
    // Whether there is room for this client; an error is told to it.
    virtual absl::Status Admit(const StoreHello& hello) const = 0;
    // A client has proven itself on this connection; what is returned outlives it.
    virtual StoreSession* Attach(Id connection, const StoreHello& hello) = 0;
    // An error closes the connection. What is kept of the frame is taken from it.
    virtual absl::Status Handle(Id connection, StoreSession& session, StoreFrame& frame,
                                absl::Time now) = 0;
    // The connection of this session is gone.
    virtual void Detach(StoreSession& session, absl::Time now) = 0;
  };

  // `owner` outlives this object.
  StoreConnections(StoreConnectionsOptions options, std::shared_ptr<StoreBudget> budget,
                   Owner* owner);

  // `peer` is for messages: "127.0.0.1:41234". `local`: a Unix socket, whose peer its owner has
  // checked; it begins with a hello frame in place of the handshake, and takes descriptors.
  void Open(Id connection, absl::string_view peer, absl::Time now, bool local = false);
  void Receive(Id connection, absl::string_view bytes, absl::Time now);
  void Sent(Id connection, size_t bytes, absl::Time now);
  // The connection is gone, for whatever reason.
  void Close(Id connection, absl::Time now);

  // Closes those that took too long with their handshakes.
  void Advance(absl::Time now);
  absl::Time deadline() const;

  // Queues a frame to be written. `own`: bytes of its body that nothing else is charged with.
  void Send(Id connection, StoreFrameOut frame, Bytes own);
  // The session has no part in the connection any more, which is to be closed; `reason` is empty
  // where the client took its leave.
  void Release(Id connection, std::string reason);

  // Connections that have not finished their handshake, and the one that came first of them; 0:
  // there is none.
  int64_t unproven() const { return static_cast<int64_t>(unproven_.size()); }
  Id oldest_unproven() const { return unproven_.empty() ? 0 : unproven_.begin()->second; }
  std::string PeerOf(Id connection) const { return connections_.at(connection).peer; }
  int64_t size() const { return static_cast<int64_t>(connections_.size()); }

  // Whether to read from it. False while it has too much unread output.
  bool WantsInput(Id connection) const;

  // What is to be written, in order.
  struct Output {
    Id connection;
    StoreFrameOut frame;
  };
  std::vector<Output> TakeOutput() { return std::exchange(output_, {}); }
  // Into an empty vector, whose memory is used for the next ones.
  void TakeOutput(std::vector<Output>& into) { into.swap(output_); }
  // What is to be closed, once as much of its output as goes at once is written; whoever has the
  // socket then calls Close().
  struct Closing {
    Id connection;
    std::string peer;
    std::string reason;  // empty: the client took its leave
  };
  std::vector<Closing> TakeClosings() { return std::exchange(closings_, {}); }

 private:
  struct Connection {
    std::string peer;
    std::unique_ptr<net::ListenerHandshake> handshake;  // null: local, or over
    absl::Time opened;
    bool local = false;
    StoreSession* session = nullptr;  // null: not proven yet, or released
    StoreFrameReader reader{kStoreRequestBytesMax};
    std::string unread;  // arrived while paused
    size_t backlog = 0;  // bytes of output not yet sent
    Bytes charge;        // for the connection itself
    Bytes output;        // for the frames of that output
    bool paused = false;
    bool closing = false;
  };

  void Refuse(Id id, Connection& connection, std::string reason);
  size_t FeedHandshake(Id id, Connection& connection, absl::string_view bytes);
  absl::Status GreetLocal(Id id, Connection& connection, const StoreFrame& frame);
  void Prove(Id id, Connection& connection, const StoreHello& hello);
  void Consume(Id id, Connection& connection, absl::string_view bytes, absl::Time now);
  void SendText(Id id, std::string text);
  void Charge(Bytes bytes) { budget_->used += bytes; }

  StoreConnectionsOptions options_;
  const std::shared_ptr<StoreBudget> budget_;
  Owner& owner_;
  std::unordered_map<Id, Connection> connections_;
  std::set<std::pair<absl::Time, Id>> unproven_;  // by the end of their patience
  std::vector<Output> output_;
  std::vector<Closing> closings_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_CONNECTIONS_H_
