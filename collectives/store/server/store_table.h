// The store's contents and the requests that wait for them: requests in, answers out, without
// connections, clocks or threads.
//
// A wait costs nothing until the key that it lacks is set: waiters are listed under their first
// missing key. Barriers, all-gathers, gathers and exchanges count ranks, and answer all of them at
// once; their keys are a name space of their own and serve once. An exchange leaves each rank's
// value under a key of its own (ExchangedKey). Every change of a value gives its key a new version,
// of one sequence for the whole table.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_TABLE_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "collectives/store/protocol/store_budget.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/server/store_backend.h"

namespace weft::collectives {

class StoreTable final : public StoreBackend {
 public:
  // What to call a rank in a message: "3 (pid 4711 on node7)".
  using Describe = std::function<std::string(int32_t rank)>;

  // Requests that would take more memory than the budget has are refused with kResourceExhausted.
  explicit StoreTable(std::shared_ptr<StoreBudget> budget, Describe describe = nullptr)
      : budget_(std::move(budget)), describe_(std::move(describe)) {}
  ~StoreTable() override { budget_->used -= memory_; }

  void Execute(StoreTicket ticket, StoreRequest&& request, absl::Time now) override;
  void Forget(StoreTicket ticket) override;
  void Expel(StoreTicket ticket, absl::Status why) override;
  void Advance(absl::Time now) override;
  absl::Time deadline() const override;
  void TakeAnswers(std::vector<StoreAnswer>& into) override { into.swap(answers_); }
  int64_t keys() const override { return static_cast<int64_t>(values_.size()); }
  int64_t waiting() const override { return static_cast<int64_t>(waiters_.size()); }

  // For a journal's snapshot: everything but who waits.
  struct Entry {
    std::string key;
    absl::string_view value;
    int64_t version;
  };
  void ForEach(const std::function<void(const Entry&)>& visit) const;
  void ForEachServed(const std::function<void(const std::string& key)>& visit) const;
  // Ranks that have arrived at a group and wait for nothing: those of a gather but its root, and
  // any whose client is gone. A request that brings one rank there.
  void ForEachArrived(const std::function<void(StoreRequest request)>& visit) const;
  void Restore(const std::string& key, absl::string_view value, int64_t version);
  void RestoreServed(const std::string& key);

 private:
  // An encoded value (store_protocol.h). Shared with replies that are on their way: changed in
  // place only while it is not shared.
  struct Value {
    std::shared_ptr<ChargedText> body;
    int64_t version = 0;
  };

  struct Waiter {
    StoreOp op;
    StoreTexts keys;
    std::string missing;         // the key that it is listed under; for a group, the group's key
    std::vector<int32_t> ranks;  // that arrived with it, in a group
    int64_t version = 0;         // kWatch: the one that is known
    absl::Duration timeout;
    absl::Time deadline;
  };

  struct Group {
    StoreOp op;
    int32_t size = 0;
    int32_t root = -1;                 // kGather
    int32_t count = 0;                 // of arrived
    std::vector<StoreTicket> arrived;  // by rank; request 0: not yet
    std::vector<std::string> values;   // by rank
    std::vector<RankSet> wanted;       // kExchange: by rank, of the first of a request's ranks
    Bytes memory;
  };

  void Answer(StoreTicket ticket, StoreOp op, StoreReply reply);
  void Fail(StoreTicket ticket, StoreOp op, absl::Status status);
  void FailFull(StoreTicket ticket, StoreOp op, absl::Status status);
  absl::Status CheckLimits(const StoreRequest& request) const;
  absl::Status Reserve(const StoreRequest& request);

  void Put(const std::string& key, absl::string_view value);
  void Change(const std::string& key, Value& held, absl::string_view value);
  void Append(const std::string& key, const std::string& value);
  void Add(StoreTicket ticket, const StoreRequest& request);
  void CompareSet(StoreTicket ticket, const StoreRequest& request);
  bool Erase(const std::string& key);
  bool Contains(const std::string& key) const { return values_.count(key) != 0; }

  void WaitFor(StoreTicket ticket, StoreRequest&& request, absl::Time now);
  bool List(StoreTicket ticket, Waiter& waiter);  // under a missing key; false: none is missing
  void Wake(const std::string& key);
  StoreReply Collect(const Waiter& waiter) const;
  void Unlist(StoreTicket ticket, const Waiter& waiter);

  void Await(StoreTicket ticket, Waiter waiter);
  static bool Changed(const Waiter& waiter, const Value* value);
  static StoreReply Watched(const Value* value);

  void Enter(StoreTicket ticket, StoreRequest&& request, absl::Time now);
  absl::Status Admit(const std::string& key, int32_t size, const StoreArrivals& arrivals);
  absl::Status MakeGroup(const std::string& key, int32_t size, const StoreArrivals& arrivals);
  void Leave(const std::string& key, const Waiter& waiter);
  void Complete(const std::string& key, Group& group);
  StoreReply Everything(const std::string& key, const Group& group) const;
  std::string Missing(const Waiter& waiter) const;  // for a message
  void Charge(Bytes bytes) {
    memory_ += bytes;
    budget_->used += bytes;
  }

  const std::shared_ptr<StoreBudget> budget_;
  const Describe describe_;
  Bytes memory_;  // charged beside the values
  int64_t version_ = 0;
  std::unordered_map<std::string, Value> values_;
  std::map<StoreTicket, Waiter> waiters_;
  std::unordered_map<std::string, std::set<StoreTicket>> by_key_;  // missing key -> who waits
  std::set<std::pair<absl::Time, StoreTicket>> deadlines_;
  std::unordered_map<std::string, Group> groups_;
  std::unordered_set<std::string> groups_done_;
  std::vector<StoreAnswer> answers_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_TABLE_H_
