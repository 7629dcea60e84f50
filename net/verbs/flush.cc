#include "net/verbs/flush.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/explain.h"
#include "net/verbs/lane.h"
#include "net/verbs/process_stall.h"
#include "topology/ecmp/roce.h"

namespace weft::net {
namespace {

constexpr absl::Duration kRetryAfter = absl::Milliseconds(10);

uint32_t Bit(int rail) { return 1u << rail; }

// The read itself is at fault, not the way: another queue pair would say the same.
bool IsRefusal(NicStatus status) {
  switch (status) {
    case NicStatus::kLocalLength:
    case NicStatus::kLocalProtection:
    case NicStatus::kLocalAccess:
    case NicStatus::kRemoteInvalidRequest:
    case NicStatus::kRemoteAccess:
      return true;
    default:
      return false;
  }
}

}  // namespace

VerbsFlush::VerbsFlush(Poller& poller, std::shared_ptr<Rails> rails)
    : PollHandler(poller), rails_(std::move(rails)), loops_(static_cast<size_t>(rails_->size())) {}

VerbsFlush::~VerbsFlush() {
  for (Loop& loop : loops_) {
    loop.pair.reset();
    for (const Read& read : loop.reads) rails_->memory().Unpin(read.entry);
  }
  if (sink_keys_ != nullptr) rails_->memory().Release(sink_keys_, sink_.get(), kReadBytes);
}

void VerbsFlush::Start(const void* owner, const MemoryCache::Entry* entry, const std::byte* where,
                       Request* request, absl::Time now) {
  now_ = std::max(now_, now);
  request->Begin();
  Flight flight{owner, entry, where, request, now_};
  for (int rail = 0; rail < rails_->size(); ++rail) {
    const auto i = static_cast<size_t>(rail);
    flight.arrivals[i] = (*rails_)[rail].arrivals;
    if (flight.arrivals[i] != entry->flushed[i]) flight.open |= Bit(rail);
  }
  rails_->memory().Pin(entry);
  flights_.push_back(flight);
  OnTurn(now_);
}

void VerbsFlush::Cancel(const void* owner, const absl::Status& why) {
  for (auto next = flights_.begin(); next != flights_.end();) {
    Flight& flight = *next++;
    if (flight.owner == owner) Finish(&flight, why);
  }
}

// Completions from the time of the stall are polled after this.
void VerbsFlush::Discount(absl::Duration stall) {
  if (stall == absl::ZeroDuration()) return;
  for (Flight& flight : flights_) flight.began += stall;
  for (Loop& loop : loops_) {
    for (Read& read : loop.reads) read.since += stall;
  }
}

bool VerbsFlush::OnTurn(absl::Time now) {
  Discount(StallTime(due_, now));
  now_ = std::max(now_, now);
  for (int rail = 0; rail < rails_->size(); ++rail) {
    if (!(*rails_)[rail].lost) {
      Post(rail);
    } else {
      for (Flight& flight : flights_) flight.open &= ~Bit(rail);
    }
  }
  LookAtTime();
  due_ = flights_.empty() ? absl::InfiniteFuture() : now_ + kRetryAfter;
  SetDeadline(due_);
  return false;
}

void VerbsFlush::Post(int rail) {
  Loop& loop = loops_[static_cast<size_t>(rail)];
  for (Flight& flight : flights_) {
    if ((flight.open & ~flight.posted & Bit(rail)) == 0) continue;
    if (loop.reads.size() == kReadsMax || now_ < loop.retry_at) return;
    absl::Status status = loop.pair == nullptr ? MakePair(rail) : absl::OkStatus();
    if (status.ok()) status = PostRead(rail, &flight);
    if (!status.ok()) return Lose(rail, std::string(status.message()));
  }
}

absl::Status VerbsFlush::MakePair(int rail) {
  if (sink_keys_ == nullptr) {
    WEFT_ASSIGN_OR_RETURN(sink_, MapOwnPages(kReadBytes));
    WEFT_ASSIGN_OR_RETURN(sink_keys_, rails_->memory().Acquire(sink_.get(), kReadBytes, false));
  }
  Loop& loop = loops_[static_cast<size_t>(rail)];
  WEFT_ASSIGN_OR_RETURN(loop.pair, rails_->MakeQueuePair(rail, this, rail));
  loop.next = 0;
  NicPath path = rails_->PathFrom(rail, topology::kRocePortFirst);
  path.remote_queue_pair = loop.pair->pair().number();
  path.remote_gid = (*rails_)[rail].gid.gid.gid;
  path.remote_lid = (*rails_)[rail].port.lid;
  WEFT_RETURN_IF_ERROR(loop.pair->pair().ToReadyToReceive(path));
  return loop.pair->pair().ToReadyToSend(path);
}

absl::Status VerbsFlush::PostRead(int rail, Flight* flight) {
  Loop& loop = loops_[static_cast<size_t>(rail)];
  const auto i = static_cast<size_t>(rail);
  const auto end = reinterpret_cast<std::byte*>(flight->entry->end);  // NOLINT: an address
  NicRead read;
  read.id = loop.pair->SendId(loop.next);
  read.local = sink_.get();
  read.length = static_cast<uint32_t>(std::min<ptrdiff_t>(kReadBytes, end - flight->where));
  read.local_key = sink_keys_->keys[i].local_key;
  read.remote = reinterpret_cast<uintptr_t>(flight->where);
  read.remote_key = flight->entry->keys[i].remote_key;
  rails_->memory().Pin(flight->entry);
  loop.reads.push_back({loop.next++ & RailQueuePair::kNumberMask, flight, flight->entry, now_});
  flight->posted |= Bit(rail);
  return loop.pair->pair().PostRead(read);
}

void VerbsFlush::OnCompletion(int rail, bool receive, uint32_t number, const NicCompletion& what) {
  Loop& loop = loops_[static_cast<size_t>(rail)];
  if (receive || loop.reads.empty()) return;
  if (what.status != NicStatus::kOk) return Refuse(rail, what);
  // They complete in order, so that one stands for all before it.
  while (!loop.reads.empty() && Distance31(loop.reads.front().number, number) <= 0) {
    const Read read = loop.reads.front();
    loop.reads.pop_front();
    OnRead(rail, read);
    rails_->memory().Unpin(read.entry);
  }
  WantTurn();
}

void VerbsFlush::OnRead(int rail, const Read& read) {
  Flight* flight = read.flight;
  if (flight == nullptr) return;
  uint64_t& flushed = flight->entry->flushed[static_cast<size_t>(rail)];
  flushed = std::max(flushed, flight->arrivals[static_cast<size_t>(rail)]);
  flight->open &= ~Bit(rail);
  if (flight->open == 0) Finish(flight, absl::OkStatus());
}

void VerbsFlush::Refuse(int rail, const NicCompletion& what) {
  Flight* flight = loops_[static_cast<size_t>(rail)].reads.front().flight;
  if (IsRefusal(what.status) && flight != nullptr) {
    Finish(flight, absl::InternalError(absl::StrCat(
                       NameOf(rail), " refuses to read GPU memory, and so to flush it: ",
                       StatusText(what.status), ", vendor's ", what.vendor_error)));
  }
  Lose(rail, StatusText(what.status));
}

void VerbsFlush::Lose(int rail, const std::string& why) {
  Loop& loop = loops_[static_cast<size_t>(rail)];
  WEFT_LOG_DEBUG("verbs: the queue pair of flushes on ", NameOf(rail), " is lost: ", why);
  loop.pair.reset();
  for (const Read& read : std::exchange(loop.reads, {})) {
    if (read.flight != nullptr) read.flight->posted &= ~Bit(rail);
    rails_->memory().Unpin(read.entry);
  }
  loop.trouble = why;
  loop.retry_at = now_ + kRetryAfter;
  WantTurn();
}

void VerbsFlush::LookAtTime() {
  const VerbsOptions& options = rails_->options();
  for (int rail = 0; rail < rails_->size(); ++rail) {
    const Loop& loop = loops_[static_cast<size_t>(rail)];
    if (loop.reads.empty() || now_ - loop.reads.front().since <= options.DetectionBound()) continue;
    Lose(rail, absl::StrCat("a read has not completed within ",
                            absl::FormatDuration(options.DetectionBound())));
  }
  for (auto next = flights_.begin(); next != flights_.end();) {
    Flight& flight = *next++;
    if (flight.open == 0) {
      Finish(&flight, absl::OkStatus());
    } else if (now_ - flight.began > options.give_up_after) {
      std::string text;
      for (int rail = 0; rail < rails_->size(); ++rail) {
        if ((flight.open & Bit(rail)) == 0) continue;
        absl::StrAppend(&text, text.empty() ? "" : "; ", NameOf(rail), ": ",
                        loops_[static_cast<size_t>(rail)].trouble);
      }
      Finish(&flight,
             absl::DeadlineExceededError(absl::StrCat("GPU memory could not be flushed within ",
                                                      absl::FormatDuration(options.give_up_after),
                                                      " (verbs.give_up_after): ", text)));
    }
  }
}

void VerbsFlush::Finish(Flight* flight, const absl::Status& status) {
  for (Loop& loop : loops_) {
    for (Read& read : loop.reads) {
      if (read.flight == flight) read.flight = nullptr;
    }
  }
  flight->request->Finish(status, 0);
  rails_->memory().Unpin(flight->entry);
  flights_.remove_if([&](const Flight& one) { return &one == flight; });
}

std::string VerbsFlush::NameOf(int rail) const {
  const Rail& one = (*rails_)[rail];
  return absl::StrCat(one.device->name(), " port ", one.port.number, ", GID ",
                      GidText(one.gid.gid.gid));
}

}  // namespace weft::net
