// The store's server without sockets: the clients' sessions, around the backend that answers them
// (store_backend.h): a table for each job, or a relay's client of the root. Their connections are
// StoreConnections', whose bytes come in and go out there.
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
// Not thread-safe.
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
#include "absl/time/time.h"
#include "base/units.h"
#include "collectives/store/protocol/store_budget.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/server/store_backend.h"
#include "collectives/store/server/store_connections.h"
#include "collectives/store/server/store_journal.h"
#include "collectives/store/server/store_members.h"
#include "collectives/store/server/store_session.h"
#include "collectives/store/server/store_table.h"

namespace weft::collectives {

struct StoreCoreOptions : StoreConnectionsOptions {
  // Everything that is here on behalf of clients: keys, values, barriers, sessions, the ranks that
  // they speak for, connections, requests that wait or are half here, replies that are not taken.
  Bytes memory_limit = GiB(4);
  // What one client may have here: requests that wait, and replies that it has not acknowledged.
  // Further requests are answered with kResourceExhausted, so that it cannot fill the store.
  Bytes session_limit = MiB(256);
  absl::Duration session_linger = absl::Seconds(30);
  int jobs_max = 4096;
  bool journal = false;
};

// The clients of one job, and what they have in the store.
struct StoreJob {
  std::unique_ptr<StoreTable> table;  // null: at a relay
  StoreMembers members;
  int32_t generation = 0;  // the highest of the members
};

class StoreCore final : private StoreConnections::Owner {
 public:
  explicit StoreCore(StoreCoreOptions options);
  // One backend for all clients, whatever their job: a relay's. It outlives the core.
  StoreCore(StoreCoreOptions options, StoreBackend* backend);
  StoreCore(const StoreCore&) = delete;
  StoreCore& operator=(const StoreCore&) = delete;

  StoreConnections& connections() { return connections_; }
  const StoreConnections& connections() const { return connections_; }

  void Advance(absl::Time now);
  absl::Time deadline() const;

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

  const std::string& id() const override { return id_; }
  Bytes memory() const { return budget_->used; }
  Bytes memory_limit() const { return budget_->limit; }
  int64_t keys() const;
  int64_t waiting() const;
  int64_t sessions() const { return static_cast<int64_t>(sessions_.size()); }
  int64_t requests() const { return requests_; }  // since the start

 private:
  using Waiting = StoreSessionRequests::Waiting;
  using Retained = StoreSessionRequests::Retained;
  using Member = StoreMembers::Member;

  absl::Status Admit(const StoreHello& hello) const override;
  StoreSession* Attach(StoreConnections::Id connection, const StoreHello& hello) override;
  absl::Status Handle(StoreConnections::Id connection, StoreSession& session, StoreFrame& frame,
                      absl::Time now) override;
  void Detach(StoreSession& session, absl::Time now) override;

  // ---- Sessions, the ranks that they speak for, and their fences

  StoreJob& JobOf(const std::string& name);
  StoreSession& MakeSession(const StoreHello& hello, uint64_t number);
  void Enroll(const std::shared_ptr<const StoreHello>& hello, uint64_t number);
  void FenceOld(const StoreHello& hello);
  // The member that has taken the place of this session's rank, or null.
  const Member* Successor(const StoreSession& session, int32_t rank) const;
  absl::Status CheckFence(const StoreSession& session, const StoreRequest& request) const;
  void Expire(uint64_t session);

  // ---- Execution

  void Run(StoreSession& session, StoreRequest&& request, absl::Time now);
  absl::Status Register(const StoreSession& relay, const StoreRequest& request);
  Bytes ChargeOf(const StoreRequest& request) const;
  void DeliverAnswers(StoreBackend& backend);
  void Deliver(const StoreAnswer& answer);
  Bytes OwnBytes(const StoreReply& reply, const StoreFrameOut& frame) const;

  absl::Status Apply(const StoreRecord& record, absl::Time now);
  void Write(const StoreRecord& record);

  StoreCoreOptions options_;
  std::string id_ = NewStoreId();
  StoreBackend* const single_ = nullptr;  // a relay's
  std::shared_ptr<StoreBudget> budget_;
  StoreConnections connections_;
  std::map<std::string, StoreJob> jobs_;
  std::unordered_map<uint64_t, StoreSession> sessions_;
  std::unordered_map<std::string, uint64_t> session_by_id_;
  uint64_t next_session_ = 1;
  std::set<std::pair<absl::Time, uint64_t>> away_;  // sessions, by their end
  StoreRequest request_;                            // memory to use again
  StoreTicket executing_;                           // by Run()
  StoreSession* executes_for_ = nullptr;
  bool answered_ = false;  // that
  bool full_ = false;      // refused for want of memory
  std::vector<StoreAnswer> taken_;
  std::string journal_;
  bool replaying_ = false;
  int64_t requests_ = 0;
  std::function<void(const StoreHello&)> on_hello_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_CORE_H_
