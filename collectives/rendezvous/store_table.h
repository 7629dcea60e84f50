// The store's contents and everybody who waits for them: requests in, answers out, without
// connections, clocks or threads.
//
// A wait costs nothing until the key that it lacks is set: waiters are listed under their first
// missing key. Barriers and all-gathers count ranks, and answer all of them at once; their keys are
// a name space of their own and serve once.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_STORE_TABLE_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_STORE_TABLE_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "collectives/rendezvous/store_protocol.h"

namespace weft::collectives {

// Who asked: the owner's number for a client, and the client's for its request.
struct StoreTicket {
  uint64_t session = 0;
  uint64_t request = 0;
  auto operator<=>(const StoreTicket&) const = default;
};

struct StoreAnswer {
  StoreTicket ticket;
  StoreOp op = StoreOp::kKeyCount;
  StoreReply reply;
};

class StoreTable {
 public:
  // Requests that would take more memory than `memory_limit` are refused with kResourceExhausted.
  explicit StoreTable(Bytes memory_limit) : memory_limit_(memory_limit) {}

  // `request` has passed DecodeRequest. Its answer, and others that it brings about, are in the
  // next TakeAnswers(), or in a later one if it waits.
  void Execute(StoreTicket ticket, StoreRequest request, absl::Time now);
  // Nobody wants this answer any more. A rank's arrival at a barrier still counts.
  void Forget(StoreTicket ticket);
  // Answers what has waited until its deadline.
  void Advance(absl::Time now);
  absl::Time deadline() const;  // when Advance() has something to do; InfiniteFuture: never

  std::vector<StoreAnswer> TakeAnswers() { return std::exchange(answers_, {}); }

  Bytes memory() const { return memory_; }
  Bytes memory_limit() const { return memory_limit_; }
  int64_t keys() const { return static_cast<int64_t>(values_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiters_.size()); }
  // Memory that the owner holds on behalf of clients, within the same limit.
  void Charge(Bytes bytes) { memory_ += bytes; }

 private:
  // An encoded value (store_protocol.h). Shared with replies that are on their way: changed in
  // place only while nobody shares it.
  using Value = std::shared_ptr<std::string>;

  struct Waiter {
    StoreOp op;
    std::vector<std::string> keys;
    std::string missing;  // the key that it is listed under; for a group, the group's key
    int32_t rank = -1;    // in a group
    absl::Duration timeout;
    absl::Time deadline;
  };

  struct Group {
    StoreOp op;
    int32_t size = 0;
    std::map<int32_t, StoreTicket> arrived;  // by rank
    std::vector<std::string> values;         // by rank
    Bytes memory;
  };

  void Answer(StoreTicket ticket, StoreOp op, StoreReply reply);
  void Fail(StoreTicket ticket, StoreOp op, absl::Status status);
  absl::Status CheckLimits(const StoreRequest& request) const;
  absl::Status Reserve(const StoreRequest& request);

  void Put(const std::string& key, const std::string& value);
  void Append(const std::string& key, const std::string& value);
  void Add(StoreTicket ticket, const StoreRequest& request);
  void CompareSet(StoreTicket ticket, const StoreRequest& request);
  bool Erase(const std::string& key);
  bool Contains(const std::string& key) const { return values_.count(key) != 0; }

  void WaitFor(StoreTicket ticket, StoreRequest request, absl::Time now);
  bool List(StoreTicket ticket, Waiter& waiter);  // under a missing key; false: none is missing
  void Wake(const std::string& key);
  StoreReply Collect(const Waiter& waiter) const;
  void Unlist(StoreTicket ticket, const Waiter& waiter);

  void Enter(StoreTicket ticket, StoreRequest request, absl::Time now);
  void Complete(const std::string& key, Group& group);
  std::string Missing(const Waiter& waiter) const;  // for a message

  Bytes memory_limit_;
  Bytes memory_;
  std::unordered_map<std::string, Value> values_;
  std::map<StoreTicket, Waiter> waiters_;
  std::unordered_map<std::string, std::set<StoreTicket>> by_key_;  // missing key -> who waits
  std::set<std::pair<absl::Time, StoreTicket>> deadlines_;
  std::unordered_map<std::string, Group> groups_;
  std::unordered_set<std::string> groups_done_;
  std::vector<StoreAnswer> answers_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_STORE_TABLE_H_
