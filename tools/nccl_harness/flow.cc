#include "tools/nccl_harness/flow.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::harness {
namespace {

constexpr std::byte kGuard{0xC3};
constexpr int kSizesOfTest = 64;  // of the caller's array, as in NCCL
constexpr int kSentinel = -77777;
constexpr size_t kRegisteredMost = std::numeric_limits<int>::max();  // that regMr of v7 can be told
constexpr size_t kScribbleMax = 1 << 20;
// A receive whose data comes late is told from one whose data is wrong by waiting this long.
constexpr absl::Duration kLatePatience = absl::Milliseconds(200);

// NCCL's value. NOLINTNEXTLINE(performance-no-int-to-ptr)
void* const kHint = reinterpret_cast<void*>(nccl::abi::kOptionalReceiveCompletion);

}  // namespace

size_t SlotCount(size_t slot_bytes, size_t wanted, size_t memory_max) {
  return std::clamp<size_t>(std::min(memory_max, kRegisteredMost) / (slot_bytes + 256), 1, wanted);
}

Slots::Slots(Rank& rank, void* comm, size_t slot_bytes, size_t count)
    : rank_(rank),
      comm_(comm),
      slot_bytes_(slot_bytes),
      stride_((slot_bytes + 2 * kGuardBytes + 63) / 64 * 64),
      count_(count),
      memory_(std::make_unique_for_overwrite<std::byte[]>(stride_ * count)) {
  for (size_t i = 0; i < count; ++i) free_.push_back(count - 1 - i);
}

Slots::~Slots() {
  if (handle_ != nullptr) rank_.api().Deregister(comm_, handle_);
}

absl::Status Slots::Register() {
  return rank_.Need(rank_.api().Register(comm_, memory_.get(), stride_ * count_, &handle_),
                    Contract::kRegisterAgain,
                    absl::StrCat("regMr of ", stride_ * count_, " bytes"));
}

size_t Slots::Take() {
  if (free_.empty()) return kNone;
  size_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Slots::Prepare(size_t slot, size_t posted) {
  std::memset(data(slot) - kGuardBytes, static_cast<int>(kGuard), kGuardBytes);
  std::memset(data(slot) + posted, static_cast<int>(kGuard),
              kGuardBytes + std::min<size_t>(slot_bytes_ - posted, 4096));
}

size_t Slots::CountTouched(size_t slot, size_t posted) const {
  const std::byte* begin = memory_.get() + slot * stride_;
  const std::byte* behind = begin + kGuardBytes + posted;
  size_t length = kGuardBytes + std::min<size_t>(slot_bytes_ - posted, 4096);
  auto touched = [](std::byte byte) { return byte != kGuard; };
  return static_cast<size_t>(std::count_if(begin, begin + kGuardBytes, touched) +
                             std::count_if(behind, behind + length, touched));
}

Sender::Sender(Rank& rank, End& end, const Plan& plan, uint64_t seed)
    : rank_(rank),
      end_(end),
      plan_(plan),
      random_(seed, 1),
      slots_(rank, end.send, plan.posted_max,
             SlotCount(plan.posted_max, 4 * kWindow, rank.options().memory_max)),
      filled_(4 * kWindow) {}

absl::Status Sender::TurnUpTo(size_t posted) {
  WEFT_RETURN_IF_ERROR(Post(posted));
  // Any order: NCCL tests what its own lists say.
  for (size_t tries = std::min<size_t>(flights_.size(), 4); tries > 0 && !flights_.empty();
       --tries) {
    size_t pick = random_.Below(flights_.size());
    bool done = false;
    WEFT_RETURN_IF_ERROR(Test(flights_[pick], &done));
    if (!done) continue;
    flights_[pick] = flights_.back();
    flights_.pop_back();
  }
  return absl::OkStatus();
}

absl::Status Sender::Post(size_t limit) {
  while (next_ < limit && flights_.size() < window_) {
    size_t index = plan_.send_order[next_];
    const Message& message = plan_.messages[index];
    if (pending_slot_ == Slots::kNone) {
      pending_slot_ = slots_.Take();
      if (pending_slot_ == Slots::kNone) return absl::OkStatus();
      if (refill_ || !filled_[pending_slot_]) {
        FillPattern(plan_.key, index, slots_.data(pending_slot_), message.size);
        filled_[pending_slot_] = true;
      }
    }
    void* request = nullptr;
    auto result = rank_.api().Send(end_.send, slots_.data(pending_slot_), message.size, message.tag,
                                   slots_.memory_handle(), &request);
    WEFT_RETURN_IF_ERROR(
        rank_.Need(result, blame_, absl::StrCat("isend of ", message.size, " bytes")));
    if (request == nullptr) return absl::OkStatus();  // later
    flights_.push_back({index, pending_slot_, request});
    pending_slot_ = Slots::kNone;
    ++next_;
  }
  return absl::OkStatus();
}

absl::Status Sender::Test(Flight& flight, bool* done) {
  std::array<int, 4> sizes{0, kSentinel, kSentinel, kSentinel};
  int finished = 0;
  auto result = rank_.api().Test(flight.request, &finished, sizes.data());
  size_t size = plan_.messages[flight.message].size;
  WEFT_RETURN_IF_ERROR(
      rank_.Need(result, blame_, absl::StrCat("test of a send of ", size, " bytes")));
  *done = finished != 0;
  if (!*done) return absl::OkStatus();
  ++done_;
  rank_.watch().Moved();
  if (std::any_of(sizes.begin() + 1, sizes.end(), [](int one) { return one != kSentinel; })) {
    rank_.watch().Broken(Contract::kSizesOfSend,
                         "test of a send wrote a second size; NCCL has room for one");
  }
  if (refill_) {
    // The buffer is ours again, so what becomes of it must not matter.
    std::byte* data = slots_.data(flight.slot);
    size_t part = std::min(size, kScribbleMax);
    std::memset(data, static_cast<int>(kScribble), part);
    std::memset(data + size - part, static_cast<int>(kScribble), part);
  }
  slots_.Give(flight.slot);
  return absl::OkStatus();
}

std::string Sender::Describe() const {
  return absl::StrCat("connection ", end_.number, ": ", done_, " of ", plan_.messages.size(),
                      " sends done, ", flights_.size(), " in flight");
}

Receiver::Receiver(Rank& rank, End& end, const Plan& plan, uint64_t seed)
    : rank_(rank),
      end_(end),
      plan_(plan),
      random_(seed, 2),
      slots_(
          rank, end.receive, plan.posted_max,
          SlotCount(plan.posted_max, static_cast<size_t>(kWindow) * nccl::abi::kGroupedReceivesMax,
                    rank.options().memory_max)) {}

absl::Status Receiver::Turn() {
  WEFT_RETURN_IF_ERROR(Post());
  for (size_t tries = std::min<size_t>(flights_.size(), 4); tries > 0 && !flights_.empty();
       --tries) {
    size_t pick = random_.Below(flights_.size());
    bool done = false;
    WEFT_RETURN_IF_ERROR(Test(flights_[pick], &done));
    if (!done) continue;
    flights_[pick] = std::move(flights_.back());
    flights_.pop_back();
  }
  return absl::OkStatus();
}

absl::Status Receiver::Post() {
  while (next_ < plan_.groups.size() && flights_.size() < kWindow) {
    const Group& group = plan_.groups[next_];
    if (slots_.free() < group.count) return absl::OkStatus();
    Flight flight{next_, {}, nullptr, false};
    Received what;
    for (size_t i = 0; i < group.count; ++i) {
      const Message& message = plan_.messages[group.first + i];
      size_t slot = slots_.Take();
      if (check_) slots_.Prepare(slot, message.posted);
      flight.slots.push_back(slot);
      what.data.push_back(slots_.data(slot));
      what.memory.push_back(slots_.memory_handle());
      what.sizes.push_back(message.posted);
      what.tags.push_back(message.tag);
    }
    // NCCL leaves this hint for LL and LL128 only, and only in single receives.
    flight.hinted =
        check_ && rank_.api().version() >= 9 && group.count == 1 && random_.Below(4) == 0;
    void* request = flight.hinted ? kHint : nullptr;
    auto result = rank_.api().Receive(end_.receive, what, &request);
    WEFT_RETURN_IF_ERROR(
        rank_.Need(result, blame_, absl::StrCat("irecv of ", group.count, " buffers")));
    if (request == kHint) {
      rank_.watch().Broken(Contract::kRequestOverwritten,
                           "irecv returned success and left NCCL's hint 0x1 in *request");
      return absl::AbortedError("no request");
    }
    if (request == nullptr) {
      for (size_t slot : flight.slots) slots_.Give(slot);
      return absl::OkStatus();
    }
    flight.request = request;
    flights_.push_back(std::move(flight));
    ++next_;
  }
  return absl::OkStatus();
}

absl::Status Receiver::Test(Flight& flight, bool* done) {
  std::array<int, kSizesOfTest> sizes{};
  int finished = 0;
  auto result = rank_.api().Test(flight.request, &finished, sizes.data());
  size_t count = plan_.groups[flight.group].count;
  WEFT_RETURN_IF_ERROR(
      rank_.Need(result, blame_, absl::StrCat("test of a receive of ", count, " buffers")));
  *done = finished != 0;
  if (!*done) return absl::OkStatus();
  ++done_;
  rank_.watch().Moved();
  if (check_ && std::any_of(sizes.begin() + static_cast<std::ptrdiff_t>(count), sizes.end(),
                            [](int size) { return size != 0; })) {
    rank_.watch().Broken(Contract::kSizesInGroup,
                         absl::StrCat("test wrote more than ", count, " sizes; NCCL adds them up"));
  }
  return Finish(flight, sizes.data());
}

absl::Status Receiver::Finish(Flight& flight, const int* sizes) {
  const Group& group = plan_.groups[flight.group];
  for (size_t i = 0; i < group.count; ++i) {
    const Message& message = plan_.messages[group.first + i];
    bytes_ += message.size;
    if (check_) {
      if (!flight.hinted && static_cast<size_t>(sizes[i]) != message.size) {
        rank_.watch().Broken(Contract::kSizesReceived,
                             absl::StrCat("test reported ", sizes[i], " bytes for a message of ",
                                          message.size, " in a buffer of ", message.posted));
      }
      CheckMessage(flight, i, message.size);
      if (size_t touched = slots_.CountTouched(flight.slots[i], message.posted); touched > 0) {
        rank_.watch().Broken(
            Contract::kWritesInBounds,
            absl::StrCat(touched, " bytes around a buffer of ", message.posted, " were changed"));
      }
    }
    slots_.Give(flight.slots[i]);
  }
  return absl::OkStatus();
}

void Receiver::CheckMessage(const Flight& flight, size_t place, size_t size) {
  size_t index = plan_.groups[flight.group].first + place;
  const std::byte* data = slots_.data(flight.slots[place]);
  size_t wrong = CountWrong(plan_.key, index, data, size);
  if (wrong == 0) return;
  absl::Duration patience = late_waits_left_-- > 0 ? kLatePatience : absl::ZeroDuration();
  absl::Time give_up = SystemClock().Now() + patience;
  while (wrong > 0 && SystemClock().Now() < give_up) {
    sched_yield();
    wrong = CountWrong(plan_.key, index, data, size);
  }
  if (wrong > 0) return Blame(flight, place, size, wrong);
  if (!flight.hinted) {
    rank_.watch().Broken(
        Contract::kReceiveDoneMeansData,
        absl::StrCat("a receive of ", size, " bytes was done before its data was there"));
  }
}

// Which contract do wrong bytes break?
void Receiver::Blame(const Flight& flight, size_t place, size_t size, size_t wrong) {
  wrong_bytes_ += wrong;
  const Group& group = plan_.groups[flight.group];
  size_t index = group.first + place;
  const std::byte* data = slots_.data(flight.slots[place]);
  std::string what = absl::StrCat("message ", index, " of connection ", end_.number, ": ", wrong,
                                  " of ", size, " bytes are wrong");
  size_t scribbled =
      static_cast<size_t>(std::count(data, data + std::min(size, kScribbleMax), kScribble));
  if (wrong >= 8 && scribbled >= 8 && scribbled >= wrong / 2) {
    return rank_.watch().Broken(
        Contract::kSendDoneFreesBuffer,
        absl::StrCat(what,
                     "; they are what the sender wrote over its buffer after its send was done"));
  }
  size_t probe = std::min<size_t>(size, 64);
  size_t first = index < 64 ? 0 : index - 64;
  size_t last = std::min(plan_.messages.size(), index + 64);
  for (size_t other = first; size >= 8 && other < last; ++other) {
    if (other == index || CountWrong(plan_.key, other, data, probe) > 0) continue;
    bool same_group = other >= group.first && other < group.first + group.count;
    return rank_.watch().Broken(
        same_group ? Contract::kTagsPickSlots : Contract::kReceivesInOrder,
        absl::StrCat(what, "; they are those of message ", other,
                     same_group ? " of the same group, with another tag" : ""));
  }
  rank_.watch().Broken(Contract::kDataIntact, what);
}

std::string Receiver::Describe() const {
  return absl::StrCat("connection ", end_.number, ": ", done_, " of ", plan_.groups.size(),
                      " receives done, ", flights_.size(), " in flight");
}

namespace {

// The progress thread.
absl::Status Progress(Rank& rank, std::vector<std::unique_ptr<Sender>>& senders,
                      std::vector<std::unique_ptr<Receiver>>& receivers, Contract stuck,
                      const std::atomic<bool>& stop) {
  SetRole(Role::kProgress);
  size_t before = 0;
  absl::Time give_up = SystemClock().Now() + rank.options().timeout;
  while (!stop) {
    size_t done = 0;
    bool finished = true;
    for (auto& receiver : receivers) {
      if (!receiver->finished()) WEFT_RETURN_IF_ERROR(receiver->Turn());
      done += receiver->done();
      finished &= receiver->finished();
    }
    for (auto& sender : senders) {
      if (!sender->finished()) WEFT_RETURN_IF_ERROR(sender->Turn());
      done += sender->done();
      finished &= sender->finished();
    }
    if (finished) return absl::OkStatus();
    if (done != before) {
      before = done;
      give_up = SystemClock().Now() + rank.options().timeout;
      continue;
    }
    sched_yield();
    if (SystemClock().Now() < give_up) continue;
    std::string waiting;
    for (auto& receiver : receivers) {
      if (!receiver->finished()) waiting = receiver->Describe();
    }
    for (auto& sender : senders) {
      if (!sender->finished()) waiting = sender->Describe();
    }
    rank.watch().Broken(
        stuck, absl::StrCat("nothing completed for ", absl::FormatDuration(rank.options().timeout),
                            " (--timeout); ", waiting));
    return absl::AbortedError("stuck");
  }
  return absl::CancelledError("stopped");
}

}  // namespace

absl::Status RegisterMeanwhile(Rank& rank, std::vector<End>& ends) {
  static std::vector<std::byte> memory(1 << 16);
  for (End& end : ends) {
    for (void* comm : {end.send, end.receive}) {
      void *first = nullptr, *second = nullptr;
      const Contract contract = Contract::kRegisterAnyTime;
      WEFT_RETURN_IF_ERROR(rank.Need(
          rank.api().Register(comm, memory.data(), memory.size(), &first), contract, "regMr"));
      WEFT_RETURN_IF_ERROR(rank.Need(
          rank.api().Register(comm, memory.data(), memory.size() / 2, &second), contract, "regMr"));
      WEFT_RETURN_IF_ERROR(rank.Need(rank.api().Deregister(comm, first), contract, "deregMr"));
      WEFT_RETURN_IF_ERROR(rank.Need(rank.api().Deregister(comm, second), contract, "deregMr"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunFlows(Rank& rank, std::vector<End>& ends,
                      std::vector<std::unique_ptr<Sender>>& senders,
                      std::vector<std::unique_ptr<Receiver>>& receivers, Contract stuck) {
  std::atomic<bool> stop{false}, finished{false};
  absl::Status moved;
  std::thread progress([&] {
    moved = Progress(rank, senders, receivers, stuck, stop);
    finished = true;
  });
  absl::Status registered;
  while (!finished) {
    if (registered.ok()) registered = RegisterMeanwhile(rank, ends);
    if (!registered.ok() || rank.channel().Ended()) stop = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  progress.join();
  return registered.ok() ? moved : registered;
}

}  // namespace weft::harness
