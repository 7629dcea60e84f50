// A client's session at the store's server: who it is, and the requests that it has under way, with
// what they are charged to the store's memory. A session outlives its connections.
// Not thread-safe.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_SESSION_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/units.h"
#include "collectives/store/protocol/ascending_map.h"
#include "collectives/store/protocol/store_budget.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/server/store_backend.h"

namespace weft::collectives {

// The requests of one client that wait, and the replies that may have been lost on the way.
class StoreSessionRequests {
 public:
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

  explicit StoreSessionRequests(std::shared_ptr<StoreBudget> budget) : budget_(std::move(budget)) {}
  ~StoreSessionRequests();  // gives back all that is charged
  StoreSessionRequests(const StoreSessionRequests&) = delete;
  StoreSessionRequests& operator=(const StoreSessionRequests&) = delete;

  // What all that is here takes of the client's limit.
  Bytes held() const { return held_; }
  // Charges a request that is being executed; below 0: gives it back.
  void Hold(Bytes bytes);

  // A request that is not answered yet; its charge is held already.
  void Await(uint64_t request, Waiting waiting);
  bool Waits(uint64_t request) { return waiting_.Find(request) != nullptr; }
  // It waits no more; what it was charged with is given back.
  std::optional<Waiting> TakeWaiting(uint64_t request);
  size_t waiting() const { return waiting_.size(); }

  // Keeps a reply until it is acknowledged. `shared`: by so many, so that each holds a part of its
  // body; `own`: bytes of its body that nothing else is charged with.
  void Retain(uint64_t request, StoreFrameOut frame, uint32_t shared, Bytes own);
  const Retained* FindReply(uint64_t request) { return retained_.Find(request); }
  // Replies to requests below this one have come.
  void Acknowledge(uint64_t below);
  size_t retained() const { return retained_.size(); }

  // visit(request, waiting or retained), in ascending order. It must not change them.
  template <typename Visit>
  void ForEachWaiting(Visit visit) const {
    waiting_.ForEach(visit);
  }
  template <typename Visit>
  void ForEachReply(Visit visit) const {
    retained_.ForEach(visit);
  }

 private:
  // Once requests or replies came or went.
  void ChargeSlots();

  const std::shared_ptr<StoreBudget> budget_;
  AscendingMap<Retained> retained_;
  AscendingMap<Waiting> waiting_;
  Bytes held_;
  Bytes slots_;  // of the two maps
};

struct StoreJob;

struct StoreSession {
  StoreSession(uint64_t its_number, StoreHello its_hello, std::shared_ptr<StoreBudget> its_budget);
  ~StoreSession();

  const uint64_t number;
  const std::shared_ptr<const StoreHello> hello;
  const std::shared_ptr<StoreBudget> budget;
  StoreJob* job = nullptr;
  StoreBackend* backend = nullptr;
  uint64_t connection = 0;  // 0: away
  absl::Time away_since;
  bool fenced = false;  // all of its ranks
  StoreSessionRequests requests;

  // That the session of this client is charged with.
  static Bytes BytesOf(const StoreHello& hello);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_SESSION_H_
