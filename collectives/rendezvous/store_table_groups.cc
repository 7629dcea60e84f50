// StoreTable's barriers, all-gathers and gathers.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/rendezvous/store_table.h"

namespace weft::collectives {
namespace {

// What a key costs beside its bytes, as in store_table.cc.
constexpr Bytes kKeyOverhead{128};
constexpr int32_t kGroupSizeMax = 1 << 20;

Bytes Size(const std::string& text) { return Bytes(static_cast<int64_t>(text.size())); }

}  // namespace

void StoreTable::Enter(StoreTicket ticket, StoreRequest&& request, absl::Time now) {
  const std::string key = request.keys[0];
  StoreOp asked = request.op;
  StoreArrivals arrivals;
  if (asked == StoreOp::kGroup) {
    auto decoded = DecodeArrivals(request);
    if (!decoded.ok()) return Fail(ticket, asked, decoded.status());
    arrivals = *std::move(decoded);
  } else {
    arrivals.op = asked;
    arrivals.root = static_cast<int32_t>(
        std::clamp<int64_t>(request.number, -1, std::numeric_limits<int32_t>::max()));
    arrivals.ranks = {request.rank};
    for (std::string& value : request.values) arrivals.values.push_back(std::move(value));
  }
  absl::Status admitted = Admit(key, request.size, arrivals);
  if (!admitted.ok()) return Fail(ticket, asked, std::move(admitted));
  Group& group = groups_.at(key);
  for (size_t i = 0; i < arrivals.ranks.size(); ++i) {
    auto rank = static_cast<size_t>(arrivals.ranks[i]);
    group.arrived[rank] = ticket;
    if (arrivals.op == StoreOp::kBarrier) continue;
    Bytes change = Size(arrivals.values[i]) - Size(group.values[rank]);
    group.values[rank] = std::move(arrivals.values[i]);
    group.memory += change;
    Charge(change);
  }
  group.count += static_cast<int32_t>(arrivals.ranks.size());
  // Of a gather only the root waits.
  bool waits = group.op != StoreOp::kGather ||
               std::count(arrivals.ranks.begin(), arrivals.ranks.end(), group.root) != 0;
  if (waits) {
    Waiter waiter;
    waiter.op = asked;
    waiter.missing = key;
    waiter.ranks = std::move(arrivals.ranks);
    waiter.timeout = request.timeout;
    waiter.deadline = now + request.timeout;
    Await(ticket, std::move(waiter));
  } else {
    Answer(ticket, asked, {});
  }
  if (group.count == group.size) Complete(key, group);
}

// Whether these ranks may enter; makes the group where there is none.
absl::Status StoreTable::Admit(const std::string& key, int32_t size,
                               const StoreArrivals& arrivals) {
  std::string what = absl::StrCat(ToString(arrivals.op), " '", key, "'");
  for (int32_t rank : arrivals.ranks) {
    if (size >= 1 && size <= kGroupSizeMax && rank >= 0 && rank < size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": rank ", rank, " of ", size, " does not exist"));
  }
  bool gathers = arrivals.op == StoreOp::kGather;
  if (gathers && (arrivals.root < 0 || arrivals.root >= size)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": root ", arrivals.root, " of ", size, " does not exist"));
  }
  if (groups_done_.count(key) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": this key has served; each serves once"));
  }
  auto found = groups_.find(key);
  if (found != groups_.end()) {
    const Group& group = found->second;
    if (group.op != arrivals.op || group.size != size || (gathers && group.root != arrivals.root)) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": rank ", arrivals.ranks[0],
                                                     " comes with ", size, " ranks, others to ",
                                                     ToString(group.op), " with ", group.size));
    }
    for (int32_t rank : arrivals.ranks) {
      if (group.arrived[static_cast<size_t>(rank)].request == 0) continue;
      return absl::AlreadyExistsError(absl::StrCat(what, ": rank ", rank, " has come already"));
    }
  }
  std::vector<int32_t> sorted = arrivals.ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": a rank arrives twice in one request"));
  }
  if (found != groups_.end()) return absl::OkStatus();
  Group group;
  group.op = arrivals.op;
  group.size = size;
  group.root = gathers ? arrivals.root : -1;
  bool values = arrivals.op != StoreOp::kBarrier;
  size_t each = sizeof(StoreTicket) + (values ? sizeof(std::string) : 0);
  group.memory = Size(key) + kKeyOverhead + Bytes(static_cast<int64_t>(each)) * size;
  if (budget_->used + group.memory > budget_->limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the store is full: it holds ", budget_->used.count(), " of ", budget_->limit.count(),
        " bytes, and ", what, " of ", size, " ranks needs ", group.memory.count(), " more"));
  }
  group.arrived.resize(static_cast<size_t>(size));
  if (values) group.values.resize(static_cast<size_t>(size));
  Charge(group.memory);
  groups_.emplace(key, std::move(group));
  return absl::OkStatus();
}

void StoreTable::Complete(const std::string& key, Group& group) {
  StoreReply reply;
  size_t size = 0;
  for (const auto& value : group.values) size += value.size() + sizeof(uint32_t);
  if (size > kStoreReplyBytesMax - kStoreHeaderBytes) {
    reply.status = absl::ResourceExhaustedError(absl::StrCat(
        ToString(group.op), " '", key, "': ", size, " bytes are more than one reply may hold"));
  } else if (group.op != StoreOp::kBarrier) {
    auto body = std::make_shared<std::string>();
    body->reserve(size);
    for (const auto& value : group.values) AppendValue(*body, value);
    reply.values = static_cast<uint32_t>(group.size);
    reply.body = std::move(body);
  }
  for (StoreTicket ticket : group.arrived) {
    auto waiting = waiters_.find(ticket);
    if (waiting == waiters_.end()) continue;  // forgotten, or answered for another of its ranks
    deadlines_.erase({waiting->second.deadline, ticket});
    Answer(ticket, waiting->second.op, reply);
    waiters_.erase(waiting);
  }
  Charge(Bytes(0) - group.memory);
  groups_.erase(key);
  RestoreServed(key);
}

}  // namespace weft::collectives
