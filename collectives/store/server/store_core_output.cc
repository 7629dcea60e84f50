// StoreCore's replies: delivered, kept until they are acknowledged, queued to be written.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/server/store_core.h"

namespace weft::collectives {
namespace {

// Overhead of a kept reply beside its bytes: its place in a vector, which grows to twice its size.
constexpr Bytes kReplyOverhead{288};
// Frames that wait to be written lie in vectors, which grow to twice what is in them.
constexpr Bytes kFrameOverhead{2 * sizeof(StoreCore::Output)};
// Where the store is full, a connection with this much output is not read from.
constexpr Bytes kPauseWhenFull = KiB(64);

}  // namespace

void StoreCore::DeliverAnswers(StoreBackend& backend) {
  backend.TakeAnswers(taken_);
  for (const StoreAnswer& answer : taken_) Deliver(answer);
  taken_.clear();
}

void StoreCore::Deliver(const StoreAnswer& answer) {
  bool executing = executing_.session != 0 && answer.ticket == executing_;
  auto found = executing ? sessions_.end() : sessions_.find(answer.ticket.session);
  if (!executing && found == sessions_.end()) return;
  Session& session = executing ? *executes_for_ : found->second;
  if (executing) {
    answered_ = true;
  } else if (auto waited = session.waiting.Take(answer.ticket.request); waited.has_value()) {
    Hold(session, Bytes(0) - waited->charge);
    ChargeSlots(session);
  }
  StoreFrameOut frame = EncodeReply(answer.op, answer.ticket.request, answer.reply);
  const Bytes own = OwnBytes(answer.reply, frame);
  if (executing && answer.reply.full) {
    full_ = true;
  } else if (ChangesState(answer.op)) {
    Retain(session, answer.ticket.request, frame, answer.reply.shared, own);
  }
  if (session.connection != 0) Send(session.connection, std::move(frame), own);
}

void StoreCore::Send(ConnectionId id, StoreFrameOut frame, Bytes own) {
  if (frame.size() == 0) return;
  Connection& connection = connections_.at(id);
  if (connection.closing) return;
  connection.output += kFrameOverhead + own;
  Charge(kFrameOverhead + own);
  connection.backlog += frame.size();
  auto backlog = Bytes(static_cast<int64_t>(connection.backlog));
  // One reply alone may be larger than the bound: it was asked for, and it is shared.
  bool one = connection.backlog == frame.size();
  if (backlog > options_.output_limit && !one) {
    return Refuse(
        id, connection,
        absl::StrCat("it reads too slowly: ", backlog.count(), " bytes wait for it, at most ",
                     options_.output_limit.count(), " may"));
  }
  const bool full = budget_->room() < Bytes(0) && backlog > kPauseWhenFull;
  if (full || backlog > options_.output_pause) connection.paused = true;
  output_.push_back({id, std::move(frame)});
}

void StoreCore::SendText(ConnectionId id, std::string text) {
  if (text.empty()) return;
  StoreFrameOut frame;
  const auto own = Bytes(static_cast<int64_t>(text.size()));
  frame.body = std::make_shared<const std::string>(std::move(text));
  Send(id, std::move(frame), own);
}

void StoreCore::ChargeSlots(Session& session) {
  auto now = Bytes(static_cast<int64_t>(session.retained.bytes() + session.waiting.bytes()));
  Charge(now - std::exchange(session.slots, now));
}

void StoreCore::Acknowledge(Session& session, uint64_t below) {
  session.retained.EraseBelow(below, [&](const Retained& retained) {
    session.held -= retained.held;
    Charge(Bytes(0) - retained.charge);
  });
  ChargeSlots(session);
}

void StoreCore::Retain(Session& session, uint64_t request, StoreFrameOut frame, uint32_t shared,
                       Bytes own) {
  size_t body = frame.body ? frame.body->size() / shared : 0;
  auto held = Bytes(static_cast<int64_t>(frame.head.size() + body)) + kReplyOverhead;
  session.held += held;
  Charge(own);
  session.retained.Insert(request, Retained{std::move(frame), held, own});
  ChargeSlots(session);
}

// Of a reply's body: errors' texts, and at a relay its part of what it passes on. The table's
// bodies are charged by themselves.
Bytes StoreCore::OwnBytes(const StoreReply& reply, const StoreFrameOut& frame) const {
  if (!frame.body || (reply.status.ok() && single_ == nullptr)) return Bytes(0);
  return Bytes(static_cast<int64_t>(frame.body->size() / reply.shared));
}

void StoreCore::Sent(ConnectionId id, size_t bytes, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  WEFT_CHECK(bytes <= connection.backlog, "sent " << bytes << " of " << connection.backlog);
  // The owner knows of how many frames these bytes are a part.
  const Bytes taken =
      bytes == connection.backlog
          ? connection.output
          : Bytes(static_cast<int64_t>(static_cast<double>(connection.output.count()) *
                                       static_cast<double>(bytes) /
                                       static_cast<double>(connection.backlog)));
  connection.output -= taken;
  Charge(Bytes(0) - taken);
  connection.backlog -= bytes;
  if (!connection.paused ||
      Bytes(static_cast<int64_t>(connection.backlog)) > options_.output_pause / 2) {
    return;
  }
  connection.paused = false;
  std::string unread = std::exchange(connection.unread, {});
  Charge(Bytes(0) - HeapBytes(unread));
  Consume(id, connection, unread, now);
}

}  // namespace weft::collectives
