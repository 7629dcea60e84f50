// StoreTable's barriers, all-gathers, gathers and exchanges.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/protocol/store_exchange.h"
#include "collectives/store/server/store_table.h"
#include "collectives/store/store.h"

namespace weft::collectives {
namespace {

// What a key costs beside its bytes, as in store_table.cc.
constexpr Bytes kKeyOverhead{128};
constexpr Bytes kGroupOverhead{192};

Bytes Size(const std::string& text) { return Bytes(static_cast<int64_t>(text.size())); }
Bytes Size(const RankSet& set) {
  return Bytes(static_cast<int64_t>(set.runs().size() * sizeof(RankSet::Run)));
}

// The answers of an exchange to those who want some of its values.
class Selection {
 public:
  // These answers, and that to all who get everything, fit the budget.
  Selection(const std::vector<std::string>& values, const std::shared_ptr<StoreBudget>& budget)
      : values_(values), budget_(budget) {
    before_.reserve(values.size() + 1);
    before_.emplace_back();
    for (const std::string& value : values) {
      before_.push_back(before_.back() + Size(value) + Bytes(sizeof(uint32_t)));
    }
    room_ = budget_->room() - before_.back();
  }

  // No reply: this is most of everything, which its receivers share, or there is no room for it.
  std::optional<StoreReply> Of(const RankSet& wanted) {
    Bytes bytes = Size(wanted);
    for (const RankSet::Run& run : wanted.runs()) {
      bytes += before_[static_cast<size_t>(run.end())] - before_[static_cast<size_t>(run.first)];
    }
    if (bytes * 2 > before_.back() || bytes > room_) return std::nullopt;
    room_ -= bytes;
    std::vector<absl::string_view> own;
    own.reserve(wanted.size());
    for (int rank : wanted.ranks()) own.emplace_back(values_[static_cast<size_t>(rank)]);
    return EncodeExchanged(wanted, own, budget_);
  }

 private:
  const std::vector<std::string>& values_;
  const std::shared_ptr<StoreBudget>& budget_;
  std::vector<Bytes> before_;  // by rank: of the values, encoded, of the ranks before it
  Bytes room_;
};

}  // namespace

void StoreTable::Enter(StoreTicket ticket, StoreRequest&& request, absl::Time now) {
  const std::string key = request.keys[0];
  StoreOp asked = request.op;
  auto taken = TakeArrivals(request);
  if (!taken.ok()) return Fail(ticket, asked, taken.status());
  StoreArrivals arrivals = *std::move(taken);
  absl::Status admitted = Admit(key, request.size, arrivals);
  if (!admitted.ok()) return Fail(ticket, asked, std::move(admitted));
  if (groups_.count(key) == 0) admitted = MakeGroup(key, request.size, arrivals);
  if (!admitted.ok()) return FailFull(ticket, asked, std::move(admitted));
  Group& group = groups_.at(key);
  for (size_t i = 0; i < arrivals.ranks.size(); ++i) {
    auto rank = static_cast<size_t>(arrivals.ranks[i]);
    group.arrived[rank] = ticket;
    if (arrivals.op == StoreOp::kBarrier) continue;
    Bytes change = Size(arrivals.values[i]) - Size(group.values[rank]);
    group.values[rank] = std::move(arrivals.values[i]);
    if (arrivals.op == StoreOp::kExchange && i == 0) {
      change += Size(arrivals.wanted) - Size(group.wanted[rank]);
      group.wanted[rank] = std::move(arrivals.wanted);
    }
    group.memory += change;
    Charge(change);
  }
  group.count += static_cast<int32_t>(arrivals.ranks.size());
  // In a gather only the root waits.
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

// Whether these ranks may enter the group, if there is one.
absl::Status StoreTable::Admit(const std::string& key, int32_t size,
                               const StoreArrivals& arrivals) {
  std::string what = absl::StrCat(ToString(arrivals.op), " '", key, "'");
  for (int32_t rank : arrivals.ranks) {
    if (size >= 1 && size <= kStoreRanksMax && rank >= 0 && rank < size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": rank ", rank, " of ", size, " does not exist"));
  }
  bool gathers = arrivals.op == StoreOp::kGather;
  if (gathers && (arrivals.root < 0 || arrivals.root >= size)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": root ", arrivals.root, " of ", size, " does not exist"));
  }
  bool exchanges = arrivals.op == StoreOp::kExchange;
  size_t longest = exchanges ? ExchangedKey(key, size).size() : key.size();
  if (longest > kStoreKeyBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": its values' keys would have ", longest,
                                                   " bytes; at most ", kStoreKeyBytesMax,
                                                   " are allowed"));
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
  return absl::OkStatus();
}

absl::Status StoreTable::MakeGroup(const std::string& key, int32_t size,
                                   const StoreArrivals& arrivals) {
  const bool gathers = arrivals.op == StoreOp::kGather;
  const bool exchanges = arrivals.op == StoreOp::kExchange;
  Group group;
  group.op = arrivals.op;
  group.size = size;
  group.root = gathers ? arrivals.root : -1;
  bool values = arrivals.op != StoreOp::kBarrier;
  size_t each = sizeof(StoreTicket) + (values ? sizeof(std::string) : 0);
  // The values will stay, under keys of their own.
  if (exchanges) {
    each += sizeof(RankSet) + ExchangedKey(key, size).size() +
            static_cast<size_t>(kKeyOverhead.count());
  }
  group.memory =
      Size(key) + kKeyOverhead + kGroupOverhead + Bytes(static_cast<int64_t>(each)) * size;
  WEFT_RETURN_IF_ERROR(budget_->Check(
      group.memory, absl::StrCat(ToString(arrivals.op), " '", key, "' of ", size, " ranks")));
  group.arrived.resize(static_cast<size_t>(size));
  if (values) group.values.resize(static_cast<size_t>(size));
  if (exchanges) group.wanted.resize(static_cast<size_t>(size));
  Charge(group.memory);
  groups_.emplace(key, std::move(group));
  return absl::OkStatus();
}

// What all get of an all-gather or gather, and of an exchange who wants most of it.
StoreReply StoreTable::Everything(const std::string& key, const Group& group) const {
  StoreReply reply;
  if (group.op == StoreOp::kBarrier) return reply;
  size_t size = 0;
  for (const auto& value : group.values) size += value.size() + sizeof(uint32_t);
  if (size > kStoreReplyBytesMax - kStoreHeaderBytes) {
    reply.status = absl::ResourceExhaustedError(absl::StrCat(
        ToString(group.op), " '", key, "': ", size, " bytes are more than one reply may hold"));
    return reply;
  }
  if (group.op == StoreOp::kExchange) {
    return EncodeExchanged(RankSet::Below(group.size), {group.values.begin(), group.values.end()},
                           budget_);
  }
  std::string body;
  body.reserve(size);
  for (const auto& value : group.values) AppendValue(body, value);
  reply.values = static_cast<uint32_t>(group.size);
  reply.body = ChargedBody(budget_, std::move(body));
  return reply;
}

void StoreTable::Complete(const std::string& key, Group& group) {
  std::vector<std::pair<StoreTicket, StoreOp>> alike;  // who get everything
  std::optional<Selection> selection;
  if (group.op == StoreOp::kExchange) selection.emplace(group.values, budget_);
  for (StoreTicket ticket : group.arrived) {
    auto waiting = waiters_.find(ticket);
    if (waiting == waiters_.end()) continue;  // forgotten, or answered for another of its ranks
    const Waiter& waiter = waiting->second;
    deadlines_.erase({waiter.deadline, ticket});
    std::optional<StoreReply> own;
    if (selection) own = selection->Of(group.wanted[static_cast<size_t>(waiter.ranks[0])]);
    if (own.has_value()) {
      Answer(ticket, waiter.op, *std::move(own));
    } else {
      alike.emplace_back(ticket, waiter.op);
    }
    waiters_.erase(waiting);
  }
  if (!alike.empty()) {
    StoreReply reply = Everything(key, group);
    reply.shared = static_cast<uint32_t>(alike.size());
    for (const auto& [ticket, op] : alike) Answer(ticket, op, reply);
  }
  Group done = std::move(group);
  groups_.erase(key);
  Charge(Bytes(0) - done.memory);
  RestoreServed(key);
  if (done.op != StoreOp::kExchange) return;
  for (int32_t rank = 0; rank < done.size; ++rank) {
    Put(ExchangedKey(key, rank), done.values[static_cast<size_t>(rank)]);
  }
}

}  // namespace weft::collectives
