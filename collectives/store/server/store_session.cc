#include "collectives/store/server/store_session.h"

namespace weft::collectives {
namespace {

// What a session takes beside its texts.
constexpr Bytes kSessionOverhead = KiB(1);
// Overhead of a kept reply beside its bytes: its place in a vector, which grows to twice its size.
constexpr Bytes kReplyOverhead{288};

}  // namespace

StoreSessionRequests::~StoreSessionRequests() {
  waiting_.ForEach([&](uint64_t, const Waiting& waiting) { budget_->used -= waiting.charge; });
  retained_.ForEach([&](uint64_t, const Retained& retained) { budget_->used -= retained.charge; });
  budget_->used -= slots_;
}

void StoreSessionRequests::Hold(Bytes bytes) {
  held_ += bytes;
  budget_->used += bytes;
}

void StoreSessionRequests::Await(uint64_t request, Waiting waiting) {
  waiting_.Insert(request, std::move(waiting));
  ChargeSlots();
}

std::optional<StoreSessionRequests::Waiting> StoreSessionRequests::TakeWaiting(uint64_t request) {
  std::optional<Waiting> taken = waiting_.Take(request);
  if (!taken.has_value()) return taken;
  Hold(Bytes(0) - taken->charge);
  ChargeSlots();
  return taken;
}

void StoreSessionRequests::Retain(uint64_t request, StoreFrameOut frame, uint32_t shared,
                                  Bytes own) {
  const size_t body = frame.body ? frame.body->size() / shared : 0;
  const auto held = Bytes(static_cast<int64_t>(frame.head.size() + body)) + kReplyOverhead;
  held_ += held;
  budget_->used += own;
  retained_.Insert(request, Retained{std::move(frame), held, own});
  ChargeSlots();
}

void StoreSessionRequests::Acknowledge(uint64_t below) {
  retained_.EraseBelow(below, [&](const Retained& retained) {
    held_ -= retained.held;
    budget_->used -= retained.charge;
  });
  ChargeSlots();
}

void StoreSessionRequests::ChargeSlots() {
  const auto now = Bytes(static_cast<int64_t>(retained_.bytes() + waiting_.bytes()));
  budget_->used += now - std::exchange(slots_, now);
}

Bytes StoreSession::BytesOf(const StoreHello& hello) {
  // The number is also what it is found by.
  return kSessionOverhead + HeapBytes(hello.id) * 2 + HeapBytes(hello.name) + HeapBytes(hello.job) +
         HeapBytes(hello.host);
}

StoreSession::StoreSession(uint64_t its_number, StoreHello its_hello,
                           std::shared_ptr<StoreBudget> its_budget)
    : number(its_number),
      hello(std::make_shared<const StoreHello>(std::move(its_hello))),
      budget(std::move(its_budget)),
      requests(budget) {
  budget->used += BytesOf(*hello);
}

StoreSession::~StoreSession() { budget->used -= BytesOf(*hello); }

}  // namespace weft::collectives
