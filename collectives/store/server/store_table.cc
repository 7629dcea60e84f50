#include "collectives/store/server/store_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::collectives {
namespace {

// What a key costs beside its bytes: nodes and headers of the containers, roughly.
constexpr Bytes kKeyOverhead{128};
// Names of missing keys or ranks in a message.
constexpr size_t kNamed = 8;
// A value of this much memory may stay where a shorter one is put.
constexpr size_t kReused = 256;

Bytes Size(const std::string& text) { return Bytes(static_cast<int64_t>(text.size())); }

StoreReply Number(int64_t number) {
  StoreReply reply;
  reply.number = number;
  return reply;
}

StoreReply OneValue(StoreBody body) {
  StoreReply reply;
  reply.values = 1;
  reply.body = std::move(body);
  return reply;
}

}  // namespace

void StoreTable::Answer(StoreTicket ticket, StoreOp op, StoreReply reply) {
  answers_.push_back({ticket, op, std::move(reply)});
}

void StoreTable::Fail(StoreTicket ticket, StoreOp op, absl::Status status) {
  StoreReply reply;
  reply.status = std::move(status);
  Answer(ticket, op, std::move(reply));
}

void StoreTable::FailFull(StoreTicket ticket, StoreOp op, absl::Status status) {
  Fail(ticket, op, std::move(status));
  answers_.back().reply.full = true;
}

absl::Status StoreTable::CheckLimits(const StoreRequest& request) const {
  for (const auto& key : request.keys) {
    if (key.size() > kStoreKeyBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a key of ", key.size(), " bytes; at most ",
                                                     kStoreKeyBytesMax, " are allowed"));
    }
  }
  for (const auto& value : request.values) {
    if (value.size() > kStoreValueBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a value of ", value.size(), " bytes; at most ", kStoreValueBytesMax, " are allowed"));
    }
  }
  return absl::OkStatus();
}

absl::Status StoreTable::Reserve(const StoreRequest& request) {
  Bytes wanted;
  for (const auto& key : request.keys) wanted += Size(key) + kKeyOverhead;
  for (const auto& value : request.values) wanted += Size(value);
  if (request.keys.empty()) return absl::OkStatus();
  return budget_->Check(wanted, absl::StrCat("'", request.keys[0], "'"));
}

void StoreTable::Execute(StoreTicket ticket, StoreRequest&& request, absl::Time now) {
  StoreOp op = request.op;
  absl::Status status = CheckLimits(request);
  if (!status.ok()) return Fail(ticket, op, std::move(status));
  if (ChangesState(op) && op != StoreOp::kDelete) status = Reserve(request);
  if (!status.ok()) return FailFull(ticket, op, std::move(status));
  switch (op) {
    case StoreOp::kSet:
    case StoreOp::kMultiSet:
      for (size_t i = 0; i < request.keys.size(); ++i) Put(request.keys[i], request.values[i]);
      return Answer(ticket, op, {});
    case StoreOp::kAppend: {
      auto found = values_.find(request.keys[0]);
      size_t held = found == values_.end() ? 0 : DecodeValue(found->second.body->text()).size();
      if (held + request.values[0].size() > kStoreValueBytesMax) {
        return Fail(
            ticket, op,
            absl::InvalidArgumentError(absl::StrCat("'", request.keys[0], "' would grow over ",
                                                    kStoreValueBytesMax, " bytes")));
      }
      Append(request.keys[0], request.values[0]);
      return Answer(ticket, op, {});
    }
    case StoreOp::kAdd:
      return Add(ticket, request);
    case StoreOp::kCompareSet:
      return CompareSet(ticket, request);
    case StoreOp::kDelete:
      return Answer(ticket, op, Number(Erase(request.keys[0]) ? 1 : 0));
    case StoreOp::kKeyCount:
      return Answer(ticket, op, Number(keys()));
    case StoreOp::kCheck: {
      bool all = std::all_of(request.keys.begin(), request.keys.end(),
                             [this](const std::string& key) { return Contains(key); });
      return Answer(ticket, op, Number(all ? 1 : 0));
    }
    case StoreOp::kGet:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
    case StoreOp::kWatch:
      return WaitFor(ticket, std::move(request), now);
    case StoreOp::kBarrier:
    case StoreOp::kAllGather:
    case StoreOp::kGather:
    case StoreOp::kExchange:
    case StoreOp::kGroup:
      return Enter(ticket, std::move(request), now);
    case StoreOp::kGoodbye:
    case StoreOp::kHello:
    case StoreOp::kAnnounce:
      return;  // StoreCore's business
  }
}

void StoreTable::Put(const std::string& key, absl::string_view value) {
  auto [entry, added] = values_.try_emplace(key);
  if (added) Charge(Size(key) + kKeyOverhead);
  Change(key, entry->second, value);
}

void StoreTable::Change(const std::string& key, Value& held, absl::string_view value) {
  bool in_place = held.body != nullptr && held.body.use_count() == 1 &&
                  held.body->text().capacity() <= 2 * (value.size() + sizeof(uint32_t)) + kReused;
  if (in_place) {
    held.body->Edit([&](std::string& text) {
      text.clear();
      AppendValue(text, value);
    });
  } else {
    held.body = std::make_shared<ChargedText>(budget_, EncodeValue(value));
  }
  held.version = ++version_;
  Wake(key);
}

void StoreTable::Append(const std::string& key, const std::string& value) {
  auto found = values_.find(key);
  if (found == values_.end()) return Put(key, value);
  std::shared_ptr<ChargedText>& held = found->second.body;
  if (held.use_count() > 1) held = std::make_shared<ChargedText>(budget_, held->text());
  held->Edit([&](std::string& text) {
    text.append(value);
    // The length stands in front; the bytes behind it stay where they are.
    auto size = static_cast<uint32_t>(text.size() - sizeof(uint32_t));
    for (size_t i = 0; i < sizeof(uint32_t); ++i) text[i] = static_cast<char>(size >> (8 * i));
  });
  found->second.version = ++version_;
  Wake(key);
}

void StoreTable::Add(StoreTicket ticket, const StoreRequest& request) {
  const std::string& key = request.keys[0];
  int64_t held = 0;
  auto found = values_.find(key);
  if (found != values_.end() && !absl::SimpleAtoi(DecodeValue(found->second.body->text()), &held)) {
    return Fail(ticket, request.op,
                absl::FailedPreconditionError(absl::StrCat(
                    "'", key, "' holds no decimal number, so nothing can be added to it")));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(held, request.number, &sum)) {
    return Fail(ticket, request.op,
                absl::OutOfRangeError(absl::StrCat("'", key, "': ", held, " + ", request.number,
                                                   " does not fit into 64 bits")));
  }
  std::array<char, 24> text;
  auto size = static_cast<size_t>(std::to_chars(text.data(), text.data() + text.size(), sum).ptr -
                                  text.data());
  if (found == values_.end()) {
    Put(key, {text.data(), size});
  } else {
    Change(key, found->second, {text.data(), size});
  }
  Answer(ticket, request.op, Number(sum));
}

void StoreTable::CompareSet(StoreTicket ticket, const StoreRequest& request) {
  const std::string& key = request.keys[0];
  const std::string& expected = request.values[0];
  auto found = values_.find(key);
  bool stores = found == values_.end() ? expected.empty()
                                       : DecodeValue(found->second.body->text()) == expected;
  if (stores) {
    Put(key, request.values[1]);
    if (found == values_.end()) found = values_.find(key);
  }
  if (found != values_.end()) {
    return Answer(ticket, request.op, OneValue(BodyOf(found->second.body)));
  }
  Answer(ticket, request.op, OneValue(ChargedBody(budget_, EncodeValue(expected))));
}

bool StoreTable::Erase(const std::string& key) {
  auto found = values_.find(key);
  if (found == values_.end()) return false;
  Charge(Bytes(0) - Size(key) - kKeyOverhead);
  values_.erase(found);
  Wake(key);
  return true;
}

// ---- Waiting for keys

void StoreTable::WaitFor(StoreTicket ticket, StoreRequest&& request, absl::Time now) {
  Waiter waiter;
  waiter.op = request.op;
  waiter.keys = std::move(request.keys);
  waiter.version = request.number;
  waiter.timeout = request.timeout;
  waiter.deadline = now + request.timeout;
  if (!List(ticket, waiter)) return Answer(ticket, waiter.op, Collect(waiter));
  if (waiter.timeout <= absl::ZeroDuration()) {
    Fail(ticket, waiter.op, absl::DeadlineExceededError(Missing(waiter)));
    return Unlist(ticket, waiter);
  }
  Await(ticket, std::move(waiter));
}

void StoreTable::Await(StoreTicket ticket, Waiter waiter) {
  if (waiter.deadline != absl::InfiniteFuture()) deadlines_.insert({waiter.deadline, ticket});
  waiters_.emplace(ticket, std::move(waiter));
}

bool StoreTable::List(StoreTicket ticket, Waiter& waiter) {
  if (waiter.op == StoreOp::kWatch) {
    auto found = values_.find(waiter.keys[0]);
    if (Changed(waiter, found == values_.end() ? nullptr : &found->second)) return false;
    waiter.missing = waiter.keys[0];
    by_key_[waiter.missing].insert(ticket);
    return true;
  }
  for (const auto& key : waiter.keys) {
    if (Contains(key)) continue;
    waiter.missing = key;
    by_key_[key].insert(ticket);
    return true;
  }
  return false;
}

void StoreTable::Wake(const std::string& key) {
  if (by_key_.empty()) return;
  auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  std::set<StoreTicket> tickets = std::move(found->second);
  by_key_.erase(found);
  for (StoreTicket ticket : tickets) {
    auto waiting = waiters_.find(ticket);
    Waiter& waiter = waiting->second;
    if (List(ticket, waiter)) continue;
    deadlines_.erase({waiter.deadline, ticket});
    Answer(ticket, waiter.op, Collect(waiter));
    waiters_.erase(waiting);
  }
}

// A watcher that knows version 0 believes that the key is not there.
bool StoreTable::Changed(const Waiter& waiter, const Value* value) {
  return waiter.version != (value == nullptr ? 0 : value->version);
}

StoreReply StoreTable::Watched(const Value* value) {
  if (value == nullptr) return {};
  StoreReply reply = OneValue(BodyOf(value->body));
  reply.number = value->version;
  return reply;
}

StoreReply StoreTable::Collect(const Waiter& waiter) const {
  if (waiter.op == StoreOp::kWait) return {};
  if (waiter.op == StoreOp::kWatch) {
    auto found = values_.find(waiter.keys[0]);
    return Watched(found == values_.end() ? nullptr : &found->second);
  }
  if (waiter.keys.size() == 1) return OneValue(BodyOf(values_.at(waiter.keys[0]).body));
  size_t size = 0;
  for (const auto& key : waiter.keys) size += values_.at(key).body->text().size();
  StoreReply reply;
  if (size > kStoreReplyBytesMax - kStoreHeaderBytes) {
    reply.status = absl::ResourceExhaustedError(
        absl::StrCat("the values of these ", waiter.keys.size(), " keys are ", size,
                     " bytes, more than one reply may hold; ask for fewer"));
    return reply;
  }
  if (waiter.keys.empty()) return reply;
  reply.status = budget_->Check(Bytes(static_cast<int64_t>(size)),
                                absl::StrCat("the reply with ", waiter.keys.size(), " values"));
  if (!reply.status.ok()) return reply;
  std::string body;
  body.reserve(size);
  for (const auto& key : waiter.keys) body.append(values_.at(key).body->text());
  reply.values = static_cast<uint32_t>(waiter.keys.size());
  reply.body = ChargedBody(budget_, std::move(body));
  return reply;
}

void StoreTable::Unlist(StoreTicket ticket, const Waiter& waiter) {
  auto listed = by_key_.find(waiter.missing);
  if (listed == by_key_.end()) return;
  listed->second.erase(ticket);
  if (listed->second.empty()) by_key_.erase(listed);
}

void StoreTable::Forget(StoreTicket ticket) {
  auto waiting = waiters_.find(ticket);
  if (waiting == waiters_.end()) return;
  deadlines_.erase({waiting->second.deadline, ticket});
  if (waiting->second.ranks.empty()) Unlist(ticket, waiting->second);
  waiters_.erase(waiting);
}

void StoreTable::Expel(StoreTicket ticket, absl::Status why) {
  auto waiting = waiters_.find(ticket);
  if (waiting == waiters_.end()) return;
  const Waiter& waiter = waiting->second;
  deadlines_.erase({waiter.deadline, ticket});
  Fail(ticket, waiter.op, std::move(why));
  if (waiter.ranks.empty()) {
    Unlist(ticket, waiter);
  } else {
    Leave(waiter.missing, waiter);
  }
  waiters_.erase(waiting);
}

// Ranks whose wait ends without the group may come again.
void StoreTable::Leave(const std::string& key, const Waiter& waiter) {
  auto found = groups_.find(key);
  if (found == groups_.end()) return;
  Group& group = found->second;
  for (int32_t rank : waiter.ranks) group.arrived[static_cast<size_t>(rank)] = {};
  group.count -= static_cast<int32_t>(waiter.ranks.size());
  if (group.count > 0) return;
  Charge(Bytes(0) - group.memory);
  groups_.erase(found);
}

std::string StoreTable::Missing(const Waiter& waiter) const {
  std::vector<std::string> missing;
  size_t count = 0;
  auto note = [&](auto&& name) {
    if (++count <= kNamed) missing.push_back(absl::StrCat(name));
  };
  std::string after = absl::StrCat(" after ", absl::FormatDuration(waiter.timeout));
  auto group = groups_.find(waiter.missing);
  if (!waiter.ranks.empty() && group != groups_.end()) {
    for (int32_t rank = 0; rank < group->second.size; ++rank) {
      if (group->second.arrived[static_cast<size_t>(rank)].request != 0) continue;
      note(describe_ && count < kNamed ? describe_(rank) : absl::StrCat(rank));
    }
    return absl::StrCat(ToString(group->second.op), " '", waiter.missing, "': ", count, " of ",
                        group->second.size, " ranks missing", after, ": ",
                        absl::StrJoin(missing, ", "), count > kNamed ? ", ..." : "");
  }
  for (const auto& key : waiter.keys) {
    if (!Contains(key)) note(absl::StrCat("'", key, "'"));
  }
  return absl::StrCat("not set", after, ": ", absl::StrJoin(missing, ", "),
                      count > kNamed ? absl::StrCat(" and ", count - kNamed, " more") : "");
}

absl::Time StoreTable::deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

void StoreTable::Advance(absl::Time now) {
  // Requests whose time is up at once are counted as still there for each other's messages.
  std::vector<StoreTicket> late;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    late.push_back(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    const Waiter& waiter = waiters_.at(late.back());
    Fail(late.back(), waiter.op, absl::DeadlineExceededError(Missing(waiter)));
  }
  for (StoreTicket ticket : late) {
    const Waiter& waiter = waiters_.at(ticket);
    if (waiter.ranks.empty()) {
      Unlist(ticket, waiter);
    } else {
      Leave(waiter.missing, waiter);
    }
    waiters_.erase(ticket);
  }
}

// ---- Snapshots

void StoreTable::ForEach(const std::function<void(const Entry&)>& visit) const {
  for (const auto& [key, value] : values_)
    visit({key, DecodeValue(value.body->text()), value.version});
}

void StoreTable::ForEachServed(const std::function<void(const std::string&)>& visit) const {
  for (const auto& key : groups_done_) visit(key);
}

void StoreTable::ForEachArrived(const std::function<void(StoreRequest)>& visit) const {
  for (const auto& [key, group] : groups_) {
    for (int32_t rank = 0; rank < group.size; ++rank) {
      const auto index = static_cast<size_t>(rank);
      const StoreTicket ticket = group.arrived[index];
      if (ticket.request == 0 || waiters_.count(ticket) != 0) continue;
      StoreRequest request;
      request.op = group.op;
      request.number = std::max(group.root, 0);
      request.rank = rank;
      request.size = group.size;
      request.keys = {key};
      if (group.op != StoreOp::kBarrier) request.values.push_back(group.values[index]);
      if (group.op == StoreOp::kExchange) request.values.push_back(RankSet().Encode());
      visit(std::move(request));
    }
  }
}

void StoreTable::Restore(const std::string& key, absl::string_view value, int64_t version) {
  Put(key, value);
  values_.at(key).version = version;
  version_ = std::max(version_, version);
}

void StoreTable::RestoreServed(const std::string& key) {
  if (groups_done_.insert(key).second) Charge(Size(key) + kKeyOverhead);
}

}  // namespace weft::collectives
