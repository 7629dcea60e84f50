#include "collectives/endpoint_impl.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/keep_registered.h"
#include "net/shm/shared_memory.h"

namespace weft::collectives {
namespace {

// At least one turn of so many moves the links.
constexpr uint64_t kTurnsOfLinks = 8;
// How often operations under way are looked at for stalls and failures.
constexpr int64_t kExaminePeriodNs = 20'000'000;

}  // namespace

EndpointImpl::~EndpointImpl() {
  driver_.Stop();
  for (int64_t now_ns; (now_ns = SystemClock::Nanoseconds()) < linger_ns_;) {
    if (!Turn(now_ns)) poll(nullptr, 0, 1);
  }
  directory_.StopLookingUp();
  active_.clear();
  links_.Close();
}

std::string EndpointImpl::Describe() const {
  std::string text;
  driver_.Run([&] { text = absl::StrCat(links_.Describe(), priorities_.Describe()); });
  return text;
}

std::vector<Endpoint::LinkCounters> EndpointImpl::Counters() const {
  std::vector<LinkCounters> out;
  driver_.Run([&] { out = links_.Counters(); });
  return out;
}

Rejoinable::LinkTotals EndpointImpl::links_made() const {
  LinkTotals totals;
  driver_.Run([&] { totals = links_.made(); });
  return totals;
}

void EndpointImpl::Start(std::shared_ptr<Operation> operation) {
  operation->deadline_ns =
      operation->start_ns() + absl::ToInt64Nanoseconds(operation->group().timeout);
  recorder_.OnCall(*operation);
  driver_.Start(std::move(operation));
}

// ---- Turns

bool EndpointImpl::PrepareWait() {
  if (!links_.PrepareWait()) return false;
  return std::none_of(active_.begin(), active_.end(), [](const auto& operation) {
    return operation->verdict.ok() && operation->outlook() == Outlook::kReady;
  });
}

void EndpointImpl::FinishWait() { links_.FinishWait(); }

int64_t EndpointImpl::NextDeadline() const {
  return std::min(active_.empty() ? INT64_MAX : examine_ns_, links_.NextDeadline());
}

bool EndpointImpl::TakeInbox(int64_t now_ns) {
  now_ns_ = std::max(now_ns, now_ns_);
  std::vector<ProgressDriver::Task> tasks;
  const size_t first = active_.size();
  if (!driver_.Take(active_, tasks)) return false;
  for (size_t i = first; i < active_.size(); ++i) {
    Operation& operation = *active_[i];
    {
      std::lock_guard<std::mutex> lock(operation.group().mutex);
      operation.verdict = operation.group().status;  // failed since the call
    }
    operation.has_begun = operation.verdict.ok();
    if (operation.has_begun) operation.Begin(*this);
    if (i == 0) examine_ns_ = now_ns_ + kExaminePeriodNs;
  }
  Priorities::Order(active_);
  for (auto& task : tasks) task();
  return true;
}

bool EndpointImpl::Turn(int64_t now_ns) {
  now_ns_ = std::max(now_ns, now_ns_);
  ++turn_;
  bool moved = false;
  if (TakeInbox(now_ns_)) {
    moved |= AdvanceAll(now_ns_);  // posted before bytes are moved
    // Calls that were done by shared memory alone leave the links to one turn of several.
    if (active_.empty() && fillers_.empty() && turn_ % kTurnsOfLinks != 0) {
      links_.WakePeers();
      return true;
    }
  }
  moved |= links_.Progress(now_ns_);
  registrations_.DropGone();
  // Before operations see which links broke: a rank that leaves because of a failure tells why
  // first.
  for (const auto& [rank, bytes] : links_.TakeHeard()) {
    moved = true;
    HandleNotice(links_.of(rank), bytes);
  }
  for (const Peer* peer : links_.TakeDeparted(now_ns_)) groups_.Depart(peer->rank, peer->gone);
  if (AdvanceAll(now_ns_)) {
    moved = true;
    links_.WakePeers();
  }
  if (!fillers_.empty()) moved |= fillers_.Post();
  if (links_.notices_waiting()) moved |= links_.FlushNotices(now_ns_);
  if (!active_.empty() && now_ns_ >= examine_ns_) {
    examine_ns_ = now_ns_ + kExaminePeriodNs;
    Examine(now_ns_);
  }
  recorder_.Sample(links_.peers(), links_.transports(), now_ns_);
  return moved;
}

bool EndpointImpl::AdvanceAll(int64_t now_ns) {
  bool moved = false;
  size_t kept = 0;
  bool finished = false;
  priorities_.BeginTurn(active_, now_ns);
  for (size_t i = 0; i < active_.size(); ++i) {
    Operation& operation = *active_[i];
    if (operation.verdict.ok() && operation.suspicion.ok()) {
      operation.window = priorities_.WindowOf(operation);
      if (operation.Advance(*this, turn_)) {
        moved = true;
        operation.moved_ns = now_ns;
      }
      if (int peer; !operation.complete() && !operation.failure(&peer).ok()) {
        OnRequestFailed(operation, now_ns);
      }
    }
    // Where links are kept, nobody takes the end of this for the end of the process.
    const bool may_end = options_.rejoins || now_ns >= operation.cut_ns;
    const bool over = operation.verdict.ok() ? operation.complete() : may_end && operation.AtRest();
    if (over) {
      Conclude(operation, now_ns);
      active_[i].reset();  // a failure of a later one looks through the list
      finished = true;
      continue;
    }
    if (kept != i) active_[kept] = std::move(active_[i]);
    ++kept;
  }
  active_.resize(kept);
  if (finished) driver_.TellWaiters();
  return moved;
}

void EndpointImpl::Conclude(Operation& operation, int64_t now_ns) {
  if (options_.rejoins) KeepAccount(operation);
  if (operation.verdict.ok()) {
    if (absl::Status found = operation.Deliver(); !found.ok()) {
      OnBufferFault(operation, found, now_ns);
    }
  }
  const int64_t end_ns = SystemClock::Nanoseconds();
  recorder_.OnDone(operation, end_ns, operation.verdict.code());
  if (operation.verdict.ok()) priorities_.Count(operation, end_ns);
  operation.Release();
  driver_.OnDone();
  operation.Finish(operation.verdict, std::max(end_ns, now_ns));
}

// ---- Memory

std::shared_ptr<std::byte> EndpointImpl::Allocate(size_t bytes) {
  return net::shm::AllocateMemory(bytes);
}

std::shared_ptr<void> KeepRegistered(const std::shared_ptr<Endpoint>& endpoint, void* data,
                                     size_t bytes) {
  return static_cast<EndpointImpl&>(*endpoint).Keep(endpoint, data, bytes);
}

std::shared_ptr<void> EndpointImpl::Keep(const std::shared_ptr<Endpoint>& self, void* data,
                                         size_t bytes) {
  auto* begin = static_cast<std::byte*>(data);
  bool added = false;
  driver_.Run([&] { added = registrations_.Add(begin, bytes); });
  return {data, [this, added, begin, endpoint = std::weak_ptr(self)](void*) {
            const std::shared_ptr<Endpoint> living = added ? endpoint.lock() : nullptr;
            if (living != nullptr) driver_.Run([&] { registrations_.Drop(begin); });
          }};
}

absl::StatusOr<net::Region> EndpointImpl::Register(int transport, void* data, size_t size) {
  return registrations_.Register(links_.transport(transport), transport, data, size);
}

}  // namespace weft::collectives
