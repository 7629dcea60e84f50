// The store's server without sockets: connections, their handshakes and frames, and the clients'
// sessions, around the backend that answers them (store_backend.h): a table for each job, or a
// relay's client of the root. Bytes and `now` in, bytes and the next deadline out.
//
// A client is identified by a random number, not by its connection: after a lost connection it
// sends requests without a reply again, and its session knows which were executed already. A
// session whose client has been away for `session_linger` is forgotten.
//
// A client may speak for ranks of its job. Once one of a higher generation has come for a rank,
// those of lower generations are fenced: all their requests, waiting and future, fail.
//
// With `journal`, every change of state is also written to it (store_journal.h), and a later core
// that reads it goes on where this one ended.
//
// Not thread-safe. Connections are named by their owner.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_CORE_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_CORE_H_

#include <cstdint>
#include <functional>
#include <map>
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
#include "collectives/store/protocol/ascending_map.h"
#include "collectives/store/protocol/store_budget.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/server/store_backend.h"
#include "collectives/store/server/store_journal.h"
#include "collectives/store/server/store_members.h"
#include "collectives/store/server/store_table.h"
#include "net/handshake.h"

namespace weft::collectives {

struct StoreCoreOptions {
  net::JobSecret secret{};            // all zero: any client that has none either
  std::string description = "store";  // told to clients: "weft-run pid 123"
  // Everything that is here on behalf of clients: keys, values, barriers, sessions, the ranks that
  // they speak for, connections, requests that wait or are half here, replies that are not taken.
  Bytes memory_limit = GiB(4);
  // A connection with this much unread output is not read from until it has drained to half ...
  Bytes output_pause = MiB(64);
  // ... and with this much (answers to what it waited for) it is closed.
  Bytes output_limit = MiB(512);
  // What one client may have here: requests that wait, and replies that it has not acknowledged.
  // Further requests are answered with kResourceExhausted, so that it cannot fill the store.
  Bytes session_limit = MiB(256);
  absl::Duration session_linger = absl::Seconds(30);
  int jobs_max = 4096;
  bool journal = false;
};

class StoreCore {
 public:
  using ConnectionId = uint64_t;  // above 0; none is used again
  // What a connection that has not finished its handshake is charged with; others less.
  static constexpr Bytes kUnprovenBytes = KiB(5);

  explicit StoreCore(StoreCoreOptions options);
  // One backend for all clients, whatever their job: a relay's. It outlives the core.
  StoreCore(StoreCoreOptions options, StoreBackend* backend);
  StoreCore(const StoreCore&) = delete;
  StoreCore& operator=(const StoreCore&) = delete;

  // `peer` is for messages: "127.0.0.1:41234". `local`: a Unix socket, whose peer its owner has
  // checked; it begins with a hello frame in place of the handshake, and takes descriptors.
  void Open(ConnectionId connection, absl::string_view peer, absl::Time now, bool local = false);
  void Receive(ConnectionId connection, absl::string_view bytes, absl::Time now);
  void Sent(ConnectionId connection, size_t bytes, absl::Time now);
  // The connection is gone, for whatever reason.
  void Close(ConnectionId connection, absl::Time now);

  void Advance(absl::Time now);
  absl::Time deadline() const;

  // Connections that have not finished their handshake, and the one that came first of them; 0:
  // there is none.
  int64_t unproven() const { return static_cast<int64_t>(unproven_.size()); }
  ConnectionId oldest_unproven() const { return unproven_.empty() ? 0 : unproven_.begin()->second; }
  std::string PeerOf(ConnectionId connection) const { return connections_.at(connection).peer; }

  // Whether to read from it. False while it has too much unread output.
  bool WantsInput(ConnectionId connection) const;

  // What is to be written, in order.
  struct Output {
    ConnectionId connection;
    StoreFrameOut frame;
  };
  std::vector<Output> TakeOutput() { return std::exchange(output_, {}); }
  // Into an empty vector, whose memory is used for the next ones.
  void TakeOutput(std::vector<Output>& into) { into.swap(output_); }
  // What is to be closed, once as much of its output as goes at once is written; the owner then
  // calls Close().
  struct Closing {
    ConnectionId connection;
    std::string peer;
    std::string reason;  // empty: the client took its leave
  };
  std::vector<Closing> TakeClosings() { return std::exchange(closings_, {}); }

  // ---- The journal: to be in the file before the output of the same turn is on the wire

  std::string TakeJournal() { return std::exchange(journal_, {}); }
  // On a fresh core. Sessions are as if their connections had just been lost.
  absl::Status Replay(const StoreRecord& record, absl::Time now);
  // Records that lead a fresh core to this state.
  std::string Snapshot() const;
  size_t SnapshotBytes() const;  // about

  // Called for each client that speaks for ranks, when it first comes: a relay tells the root.
  void set_on_hello(std::function<void(const StoreHello&)> on_hello) {
    on_hello_ = std::move(on_hello);
  }
  // "3 (pid 4711 on node7)"
  std::string DescribeRank(const std::string& job, int32_t rank) const;

  const std::string& id() const { return id_; }
  Bytes memory() const { return budget_->used; }
  Bytes memory_limit() const { return budget_->limit; }
  int64_t keys() const;
  int64_t waiting() const;
  int64_t connections() const { return static_cast<int64_t>(connections_.size()); }
  int64_t sessions() const { return static_cast<int64_t>(sessions_.size()); }
  int64_t requests() const { return requests_; }  // since the start

 private:
  struct Waiting {
    StoreOp op;
    std::shared_ptr<const std::string> frame;  // with a journal: for its snapshots
    Bytes charge;
  };
  struct Retained {
    StoreFrameOut frame;
    Bytes held;    // of the session's limit
    Bytes charge;  // of the budget, which is charged with bodies by itself
  };
  struct Job;
  struct Session {
    uint64_t number = 0;
    std::shared_ptr<const StoreHello> hello;
    Job* job = nullptr;  // its
    StoreBackend* backend = nullptr;
    ConnectionId connection = 0;  // 0: away
    absl::Time away_since;
    bool fenced = false;              // all of its ranks
    AscendingMap<Retained> retained;  // replies that may have been lost on the way
    AscendingMap<Waiting> waiting;    // being executed, beyond the turn in which they came
    Bytes held;                       // by these two, of the client's limit
    Bytes charge;                     // for the session itself
    Bytes slots;                      // for the slots of these two
  };
  struct Connection {
    std::string peer;
    std::unique_ptr<net::ListenerHandshake> handshake;  // null: local, or over
    absl::Time opened;
    bool local = false;
    uint64_t session = 0;      // 0: not proven yet
    Session* known = nullptr;  // that one
    StoreFrameReader reader{kStoreRequestBytesMax};
    std::string unread;  // arrived while paused
    size_t backlog = 0;  // bytes of output not yet sent
    Bytes charge;        // for the connection itself
    Bytes output;        // for the frames of that output
    bool paused = false;
    bool closing = false;
  };
  using Member = StoreMembers::Member;
  struct Job {
    std::unique_ptr<StoreTable> table;
    StoreMembers members;
    int32_t generation = 0;  // the highest of the members
  };

  void Refuse(ConnectionId id, Connection& connection, std::string reason);
  size_t FeedHandshake(ConnectionId id, Connection& connection, absl::string_view bytes);
  absl::Status GreetLocal(ConnectionId id, Connection& connection, const StoreFrame& frame);
  void Attach(ConnectionId id, Connection& connection, StoreHello hello);
  // Whether there is room for this client.
  absl::Status CheckRoom(const StoreHello& hello) const;
  Job& JobOf(const std::string& name);
  uint64_t MakeSession(StoreHello hello, uint64_t number);
  void Enroll(const std::shared_ptr<const StoreHello>& hello, uint64_t number);
  void FenceOld(const StoreHello& hello);
  // Whether the member is of a later generation's session than this one.
  static bool Succeeds(const Member& member, const Session& session);
  // The member that has taken the place of this session's rank, or null.
  const Member* Successor(const Session& session, int32_t rank) const;
  absl::Status CheckFence(const Session& session, const StoreRequest& request) const;
  void Consume(ConnectionId id, Connection& connection, absl::string_view bytes, absl::Time now);
  absl::Status Handle(ConnectionId id, Connection& connection, StoreFrame& frame, absl::Time now);
  void Run(uint64_t number, Session& session, StoreRequest&& request, absl::Time now);
  absl::Status Register(uint64_t number, const StoreRequest& request);
  Bytes ChargeOf(const StoreRequest& request) const;
  void DeliverAnswers(StoreBackend& backend);
  void Deliver(const StoreAnswer& answer);
  // `own`: bytes of its body that nothing else is charged with.
  void Send(ConnectionId id, StoreFrameOut frame, Bytes own);
  void SendText(ConnectionId id, std::string text);
  void Detach(uint64_t session, absl::Time now);
  void Expire(uint64_t session);
  void Acknowledge(Session& session, uint64_t below);
  void Charge(Bytes bytes) { budget_->used += bytes; }
  void Hold(Session& session, Bytes bytes) {
    session.held += bytes;
    Charge(bytes);
  }
  // Once requests or replies came or went.
  void ChargeSlots(Session& session);
  // `shared`: by so many, so that each holds a part of its body.
  void Retain(Session& session, uint64_t request, StoreFrameOut frame, uint32_t shared, Bytes own);
  Bytes OwnBytes(const StoreReply& reply, const StoreFrameOut& frame) const;
  absl::Status Apply(const StoreRecord& record, absl::Time now);
  void Write(const StoreRecord& record);

  StoreCoreOptions options_;
  std::string id_ = NewStoreId();
  StoreBackend* const single_ = nullptr;  // a relay's
  std::shared_ptr<StoreBudget> budget_;
  std::map<std::string, Job> jobs_;
  std::unordered_map<ConnectionId, Connection> connections_;
  std::unordered_map<uint64_t, Session> sessions_;
  std::unordered_map<std::string, uint64_t> session_by_id_;
  uint64_t next_session_ = 1;
  std::set<std::pair<absl::Time, ConnectionId>> unproven_;  // by the end of their patience
  std::set<std::pair<absl::Time, uint64_t>> away_;          // sessions, by their end
  StoreRequest request_;                                    // memory to use again
  StoreTicket executing_;                                   // by Run()
  Session* executes_for_ = nullptr;
  bool answered_ = false;  // that
  bool full_ = false;      // refused for want of memory
  std::vector<StoreAnswer> taken_;
  std::vector<Output> output_;
  std::vector<Closing> closings_;
  std::string journal_;
  bool replaying_ = false;
  int64_t requests_ = 0;
  std::function<void(const StoreHello&)> on_hello_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_CORE_H_
