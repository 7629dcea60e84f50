// The store's server without sockets: connections, their handshakes and frames, and the clients'
// sessions, around a StoreTable. Bytes and `now` in, bytes and the next deadline out.
//
// A client is known by a number that it draws, not by its connection: after a lost connection it
// sends what had no reply again, and the session knows what was executed already. A session whose
// client has been away for `session_linger` is forgotten.
//
// Not thread-safe. Connections are named by their owner.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_STORE_CORE_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_STORE_CORE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "collectives/rendezvous/store_protocol.h"
#include "collectives/rendezvous/store_table.h"
#include "net/handshake.h"

namespace weft::collectives {

// The numbers of both sides in the handshake's parameters: 16 bytes, and then a text for people.
inline constexpr size_t kStoreIdBytes = 16;
std::string NewStoreId();

struct StoreCoreOptions {
  net::JobSecret secret{};            // all zero: any client that has none either
  std::string description = "store";  // told to clients: "weft-run pid 123"
  Bytes memory_limit = GiB(4);        // keys, values, barriers, requests that are half here
  // A connection with this much unread output is not read from until it has drained to half ...
  Bytes output_pause = MiB(64);
  // ... and with this much (answers to what it waited for) it is closed.
  Bytes output_limit = MiB(512);
  absl::Duration session_linger = absl::Seconds(30);
};

class StoreCore {
 public:
  using ConnectionId = uint64_t;  // above 0

  explicit StoreCore(StoreCoreOptions options);

  // `peer` is for messages: "127.0.0.1:41234".
  void Open(ConnectionId connection, absl::string_view peer, absl::Time now);
  void Receive(ConnectionId connection, absl::string_view bytes, absl::Time now);
  void Sent(ConnectionId connection, size_t bytes, absl::Time now);
  // The connection is gone, for whatever reason.
  void Close(ConnectionId connection, absl::Time now);

  void Advance(absl::Time now);
  absl::Time deadline() const;

  // Whether to read from it. False while it has too much unread output.
  bool WantsInput(ConnectionId connection) const;

  // What is to be written, in order.
  struct Output {
    ConnectionId connection;
    StoreFrameOut frame;
  };
  std::vector<Output> TakeOutput() { return std::exchange(output_, {}); }
  // What is to be closed, once as much of its output as goes at once is written; the owner then
  // calls Close().
  struct Closing {
    ConnectionId connection;
    std::string peer;
    std::string reason;  // empty: the client took its leave
  };
  std::vector<Closing> TakeClosings() { return std::exchange(closings_, {}); }

  const StoreTable& table() const { return table_; }
  int64_t connections() const { return static_cast<int64_t>(connections_.size()); }
  int64_t sessions() const { return static_cast<int64_t>(sessions_.size()); }

 private:
  struct Session {
    std::string id;
    std::string name;
    ConnectionId connection = 0;  // 0: away
    absl::Time away_since;
    std::map<uint64_t, StoreFrameOut> retained;  // replies that may have been lost on the way
    std::map<uint64_t, StoreOp> waiting;         // being executed
  };
  struct Connection {
    std::string peer;
    net::ListenerHandshake handshake;
    absl::Time opened;
    uint64_t session = 0;  // 0: not proven yet
    StoreFrameReader reader{kStoreRequestBytesMax};
    std::string unread;  // arrived while paused
    size_t backlog = 0;  // bytes of output not yet sent
    bool paused = false;
    bool closing = false;
  };

  void Refuse(ConnectionId id, Connection& connection, std::string reason);
  size_t FeedHandshake(ConnectionId id, Connection& connection, absl::string_view bytes);
  void Attach(ConnectionId id, Connection& connection);
  void Consume(ConnectionId id, Connection& connection, absl::string_view bytes, absl::Time now);
  absl::Status Handle(ConnectionId id, Connection& connection, const StoreFrame& frame,
                      absl::Time now);
  void DeliverAnswers();
  void Send(ConnectionId id, StoreFrameOut frame);
  void Detach(uint64_t session, absl::Time now);
  void Expire(uint64_t session);
  void Acknowledge(Session& session, uint64_t below);

  StoreCoreOptions options_;
  std::string id_ = NewStoreId();
  StoreTable table_;
  std::map<ConnectionId, Connection> connections_;
  std::map<uint64_t, Session> sessions_;
  std::unordered_map<std::string, uint64_t> session_by_id_;
  uint64_t next_session_ = 1;
  std::set<std::pair<absl::Time, ConnectionId>> unproven_;  // by the end of their patience
  std::set<std::pair<absl::Time, uint64_t>> away_;          // sessions, by their end
  std::vector<Output> output_;
  std::vector<Closing> closings_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_STORE_CORE_H_
