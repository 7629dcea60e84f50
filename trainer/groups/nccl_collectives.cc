#include "trainer/groups/nccl_collectives.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "topology/host/thread_binding.h"

namespace weft::train {
namespace {

using collectives::DataType;
using collectives::ReduceOp;

constexpr std::chrono::milliseconds kLookEvery{100};
// A call of NCCL's that waits for ranks holds its group for longer than any that does not.
constexpr std::chrono::seconds kCallPatience{1};

}  // namespace

absl::StatusOr<std::shared_ptr<NcclSession>> NcclSession::Open(
    int device, absl::Duration timeout, std::function<absl::Status()> health) {
  WEFT_ASSIGN_OR_RETURN(collectives::Device loaded, collectives::Device::Load());
  WEFT_RETURN_IF_ERROR(
      loaded.Check(loaded.calls().SetDevice(device), absl::StrCat("select GPU ", device)));
  std::shared_ptr<NcclSession> session(new NcclSession(loaded, device, timeout, std::move(health)));
  session->thread_ = std::thread([one = session.get(), device] {
    (void)one->device_.calls().SetDevice(device);
    one->Watch();
  });
  return session;
}

NcclSession::NcclSession(const collectives::Device& device, int gpu, absl::Duration timeout,
                         std::function<absl::Status()> health)
    : device_(device), gpu_(gpu), timeout_(timeout), health_(std::move(health)) {}

NcclSession::~NcclSession() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status NcclSession::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

absl::StatusOr<std::string> NcclSession::MakeUniqueId() const {
  std::string id(kWeftNcclIdBytes, '\0');
  WEFT_RETURN_IF_ERROR(device_.Check(
      device_.calls().NcclUniqueId(reinterpret_cast<uint8_t*>(id.data())), "make a unique id"));
  return id;
}

absl::StatusOr<WeftNcclCommunicator*> NcclSession::MakeCommunicator(
    const std::string& group, int rank, int size, const std::string& unique_id) const {
  using Made = absl::StatusOr<WeftNcclCommunicator*>;
  std::future<Made> made =
      StartUnboundDetached([device = device_, gpu = gpu_, group, rank, size, unique_id]() -> Made {
        WEFT_RETURN_IF_ERROR(
            device.Check(device.calls().SetDevice(gpu), absl::StrCat("select GPU ", gpu)));
        WeftNcclCommunicator* communicator = nullptr;
        WEFT_RETURN_IF_ERROR(device.Check(
            device.calls().NcclInit(&communicator, size,
                                    reinterpret_cast<const uint8_t*>(unique_id.data()), 1, rank),
            absl::StrCat("make the NCCL communicator of group ", group)));
        return communicator;
      });
  const absl::Time deadline = SystemClock().Now() + timeout_;
  while (made.wait_for(kLookEvery) != std::future_status::ready) {
    WEFT_RETURN_IF_ERROR(failure());
    if (SystemClock().Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the NCCL communicator of group ", group, " was not made in ",
                       absl::FormatDuration(timeout_),
                       " (collective.timeout): a rank of the group is gone, or does not make it"));
    }
  }
  return made.get();
}

absl::Status NcclSession::Add(NcclCollectives* group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) groups_.insert(group);
  return failure_;
}

void NcclSession::Remove(NcclCollectives* group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  groups_.erase(group);
}

void NcclSession::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ended_.wait_for(lock, kLookEvery, [this] { return ends_; })) {
    if (failure_.ok()) FailLocked(Look());
  }
}

absl::Status NcclSession::Look() const {
  WEFT_RETURN_IF_ERROR(health_());
  for (NcclCollectives* group : groups_) WEFT_RETURN_IF_ERROR(group->Check(SystemClock().Now()));
  return absl::OkStatus();
}

void NcclSession::Fail(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  FailLocked(why);
}

void NcclSession::FailLocked(const absl::Status& why) {
  if (why.ok() || !failure_.ok()) return;
  failure_ = why;
  WEFT_LOG_WARN("all NCCL communicators are aborted: ", failure_.message());
  // In one call, as their works may wait for one another (device_table.h).
  std::vector<std::unique_lock<std::timed_mutex>> calling;
  std::vector<WeftNcclCommunicator*> communicators;
  for (NcclCollectives* group : groups_) {
    calling.emplace_back(group->calling_, kCallPatience);
    WeftNcclCommunicator* const communicator = group->communicator_.exchange(nullptr);
    if (communicator != nullptr) communicators.push_back(communicator);
  }
  const int result =
      device_.calls().NcclAbort(communicators.data(), static_cast<int>(communicators.size()));
  const absl::Status aborted = device_.Check(result, "abort NCCL's communicators");
  if (!aborted.ok()) WEFT_LOG_WARN(aborted.message());
}

absl::StatusOr<std::unique_ptr<NcclCollectives>> NcclCollectives::Create(
    std::shared_ptr<NcclSession> session, std::string group, int rank, int size,
    const std::string& unique_id, WeftStream* current, bool high_priority) {
  if (unique_id.size() != kWeftNcclIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a unique id of ", unique_id.size(),
                                                   " bytes; NCCL's have ", kWeftNcclIdBytes));
  }
  std::unique_ptr<NcclCollectives> made(
      new NcclCollectives(std::move(session), std::move(group), size, current));
  WEFT_RETURN_IF_ERROR(made->Prepare(high_priority));
  WEFT_ASSIGN_OR_RETURN(made->communicator_,
                        made->session_->MakeCommunicator(made->group_, rank, size, unique_id));
  WEFT_RETURN_IF_ERROR(made->session_->Add(made.get()));
  return made;
}

absl::Status NcclCollectives::Prepare(bool high_priority) {
  WEFT_RETURN_IF_ERROR(session_->device().Check(
      calls().StreamCreate(&stream_, high_priority ? 1 : 0), "make a stream"));
  WEFT_ASSIGN_OR_RETURN(reference_, Record(stream_));
  WEFT_RETURN_IF_ERROR(
      session_->device().Check(calls().StreamSynchronize(stream_), "wait for a stream"));
  reference_ns_ = SystemClock::Nanoseconds();
  return absl::OkStatus();
}

NcclCollectives::~NcclCollectives() {
  // Kernels that wait for a rank that is gone end with those of all groups.
  if (communicator_ != nullptr && session_->failure().ok() && !IsIdle()) {
    session_->Fail(absl::DeadlineExceededError(
        absl::StrCat("group ", group_, " ends with work that the GPU has not ended in ",
                     absl::FormatDuration(session_->timeout_), " (collective.timeout)")));
  }
  session_->Remove(this);
  WeftNcclCommunicator* const communicator = communicator_.exchange(nullptr);
  if (communicator != nullptr && session_->failure().ok()) {
    (void)calls().NcclDestroy(communicator);
  } else if (communicator != nullptr) {  // it came after the failure
    (void)calls().NcclAbort(&communicator, 1);
  }
  for (const Waited& waited : waited_) Release(waited);
  if (reference_ != nullptr) free_.push_back(reference_);
  for (WeftEvent* event : free_) (void)calls().EventDestroy(event);
  if (stream_ != nullptr) (void)calls().StreamDestroy(stream_);
}

bool NcclCollectives::IsIdle() {
  const absl::StatusOr<WeftEvent*> last = Record(stream_);
  if (!last.ok()) return false;
  free_.push_back(*last);
  const absl::Time deadline = SystemClock().Now() + session_->timeout_;
  while (!IsDone(*last)) {
    if (SystemClock().Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

absl::StatusOr<WeftEvent*> NcclCollectives::NewEvent() {
  WeftEvent* event = nullptr;
  if (!free_.empty()) {
    event = free_.back();
    free_.pop_back();
    return event;
  }
  WEFT_RETURN_IF_ERROR(session_->device().Check(calls().EventCreate(&event), "make an event"));
  return event;
}

absl::StatusOr<WeftEvent*> NcclCollectives::Record(WeftStream* stream) {
  WEFT_ASSIGN_OR_RETURN(WeftEvent * event, NewEvent());
  const absl::Status recorded =
      session_->device().Check(calls().EventRecord(event, stream), "record an event");
  if (recorded.ok()) return event;
  free_.push_back(event);
  return recorded;
}

template <typename Call>
absl::StatusOr<NcclCollectives::Work> NcclCollectives::Enqueue(const char* name, Call call) {
  WEFT_ASSIGN_OR_RETURN(WeftEvent * ready, Record(current_));
  const absl::Status waits = session_->device().Check(calls().StreamWaitEvent(stream_, ready),
                                                      "let a stream wait for the computation");
  free_.push_back(ready);  // a stream waits for what was recorded when it was told to
  WEFT_RETURN_IF_ERROR(waits);
  Work work{.name = name};
  WEFT_ASSIGN_OR_RETURN(work.begin, Record(stream_));
  {
    const std::lock_guard<std::timed_mutex> lock(calling_);
    WeftNcclCommunicator* communicator = communicator_.load();
    if (communicator == nullptr) return session_->failure();
    WEFT_RETURN_IF_ERROR(
        session_->device().Check(call(communicator), absl::StrCat(name, " of group ", group_)));
  }
  WEFT_ASSIGN_OR_RETURN(work.done, Record(stream_));
  const std::lock_guard<std::mutex> lock(under_way_mutex_);
  under_way_.push_back({work.done, name, SystemClock().Now()});
  return work;
}

absl::StatusOr<NcclCollectives::Work> NcclCollectives::ReduceScatter(const void* full, void* part,
                                                                     size_t count, DataType type,
                                                                     ReduceOp op) {
  return Enqueue("reduce_scatter", [&](WeftNcclCommunicator* communicator) {
    return calls().NcclReduceScatter(communicator, full, part, count, static_cast<int>(type),
                                     static_cast<int>(op), stream_);
  });
}

absl::StatusOr<NcclCollectives::Work> NcclCollectives::AllGather(const void* part, void* full,
                                                                 size_t count, DataType type) {
  return Enqueue("all_gather", [&](WeftNcclCommunicator* communicator) {
    return calls().NcclAllGather(communicator, part, full, count, static_cast<int>(type), stream_);
  });
}

absl::StatusOr<NcclCollectives::Work> NcclCollectives::AllReduce(void* memory, size_t count,
                                                                 DataType type, ReduceOp op) {
  return Enqueue("all_reduce", [&](WeftNcclCommunicator* communicator) {
    return calls().NcclAllReduce(communicator, memory, memory, count, static_cast<int>(type),
                                 static_cast<int>(op), stream_);
  });
}

absl::StatusOr<NcclCollectives::Work> NcclCollectives::Exchange(
    const char* name, const void* sent, absl::Span<const size_t> sent_counts,
    absl::Span<const size_t> sent_begins, void* received, absl::Span<const size_t> received_counts,
    absl::Span<const size_t> received_begins, DataType type) {
  return Enqueue(name, [&](WeftNcclCommunicator* communicator) {
    return calls().NcclExchange(communicator, sent, sent_counts.data(), sent_begins.data(),
                                received, received_counts.data(), received_begins.data(), size_,
                                static_cast<int>(type), stream_);
  });
}

absl::StatusOr<NcclCollectives::Work> NcclCollectives::Send(const void* memory, size_t count,
                                                            int peer, DataType type) {
  std::vector<size_t> counts(static_cast<size_t>(size_));
  const std::vector<size_t> none = counts;
  counts[static_cast<size_t>(peer)] = count;
  return Exchange("send", memory, counts, none, nullptr, none, none, type);
}

absl::StatusOr<NcclCollectives::Work> NcclCollectives::Receive(void* memory, size_t count, int peer,
                                                               DataType type) {
  std::vector<size_t> counts(static_cast<size_t>(size_));
  const std::vector<size_t> none = counts;
  counts[static_cast<size_t>(peer)] = count;
  return Exchange("receive", nullptr, none, none, memory, counts, none, type);
}

absl::Status NcclCollectives::ConnectForMessages() {
  const auto ranks = static_cast<size_t>(size_);
  const std::vector<size_t> ones(ranks, 1);
  std::vector<size_t> begins(ranks);
  std::iota(begins.begin(), begins.end(), 0);
  void* words = nullptr;
  WEFT_RETURN_IF_ERROR(session_->device().Check(calls().Allocate(&words, 2 * ranks * sizeof(float)),
                                                "allocate words to send"));
  WEFT_ASSIGN_OR_RETURN(const Work work,
                        Exchange("connect", words, ones, begins, static_cast<float*>(words) + ranks,
                                 ones, begins, DataType::kFloat32));
  const bool is_there = IsIdle();
  WEFT_RETURN_IF_ERROR(session_->failure());
  if (!is_there) {  // a kernel may still write to the words
    return absl::DeadlineExceededError(
        absl::StrCat("the ranks of group ", group_, " have not connected in ",
                     absl::FormatDuration(session_->timeout_), " (collective.timeout)"));
  }
  (void)calls().Free(words);
  waited_.push_back({work, nullptr});
  (void)TakeSpans();  // it belongs to no step
  return absl::OkStatus();
}

absl::Status NcclCollectives::Wait(const Work& work) {
  WEFT_RETURN_IF_ERROR(session_->failure());
  WEFT_ASSIGN_OR_RETURN(WeftEvent * reached, Record(current_));
  WEFT_RETURN_IF_ERROR(session_->device().Check(calls().StreamWaitEvent(current_, work.done),
                                                "let the computation wait"));
  waited_.push_back({work, reached});
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclCollectives::TryFinish(const Work& work) {
  WEFT_RETURN_IF_ERROR(session_->failure());
  if (!IsDone(work.done)) return false;
  waited_.push_back({work, nullptr});
  return true;
}

bool NcclCollectives::IsDone(WeftEvent* event) const {
  int done = 0;
  return calls().EventQuery(event, &done) == 0 && done != 0;
}

int64_t NcclCollectives::TimeOf(WeftEvent* event) const {
  float milliseconds = 0;
  (void)calls().EventElapsed(reference_, event, &milliseconds);
  return reference_ns_ + static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
}

void NcclCollectives::Release(const Waited& waited) {
  free_.insert(free_.end(), {waited.work.begin, waited.work.done});
  if (waited.reached != nullptr) free_.push_back(waited.reached);
}

std::vector<NcclCollectives::Span> NcclCollectives::TakeSpans() {
  std::vector<Span> spans;
  while (!waited_.empty() && IsDone(waited_.front().work.done) &&
         (waited_.front().reached == nullptr || IsDone(waited_.front().reached))) {
    const Waited waited = waited_.front();
    waited_.pop_front();
    Span span{.name = waited.work.name,
              .begin_ns = TimeOf(waited.work.begin),
              .end_ns = TimeOf(waited.work.done)};
    if (waited.reached != nullptr) {
      span.exposed_ns =
          std::max<int64_t>(0, span.end_ns - std::max(span.begin_ns, TimeOf(waited.reached)));
    }
    spans.push_back(span);
    {
      // The session's thread asks for ends, too.
      const std::lock_guard<std::mutex> lock(under_way_mutex_);
      under_way_.erase(
          std::remove_if(under_way_.begin(), under_way_.end(),
                         [&](const UnderWay& one) { return one.done == waited.work.done; }),
          under_way_.end());
    }
    MoveReference(waited);
  }
  return spans;
}

// Makes the end of `newest` the event that times are reckoned from.
void NcclCollectives::MoveReference(Waited newest) {
  const int64_t time_ns = TimeOf(newest.work.done);
  std::swap(reference_, newest.work.done);
  reference_ns_ = time_ns;
  Release(newest);
}

absl::Status NcclCollectives::Check(absl::Time now) {
  WeftNcclCommunicator* communicator = communicator_.load();
  if (communicator == nullptr) return absl::OkStatus();
  if (calls().NcclAsyncError(communicator) != 0) {
    return absl::UnavailableError(absl::StrCat("group ", group_, ": ", calls().LastError()));
  }
  const std::lock_guard<std::mutex> lock(under_way_mutex_);
  while (!under_way_.empty() && IsDone(under_way_.front().done)) under_way_.pop_front();
  if (under_way_.empty() || now - under_way_.front().since < session_->timeout_) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat(under_way_.front().name, " of group ", group_, " has not ended on the GPU in ",
                   absl::FormatDuration(session_->timeout_),
                   " (collective.timeout): a rank of the group is gone, or does not call it"));
}

}  // namespace weft::train
