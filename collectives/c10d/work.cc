#include "collectives/c10d/work.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

// Short enough for a peer that waits for the answer, long enough to cost nothing.
constexpr absl::Duration kPointToPointSlice = absl::Milliseconds(2);

// How often a waiting thread looks for signals: as soon as a person expects Ctrl-C to help.
constexpr absl::Duration kInterruptSlice = absl::Milliseconds(100);

// A group's timeout is that of its collectives too, whose error names the rank that they wait for:
// a wait that ends with the group's timeout gives them this long to say so.
constexpr absl::Duration kVerdictGrace = absl::Seconds(1);

std::atomic<bool (*)()> interrupt_check{nullptr};

// The thread that ends the process; none: the process goes on.
std::atomic<std::thread::id> ending_thread{};

std::atomic<void* (*)()> release_lock{nullptr};
std::atomic<void (*)(void*)> retake_lock{nullptr};

// The lane whose thread this is.
thread_local const void* current_lane = nullptr;

c10::intrusive_ptr<c10::ivalue::Future> NewFuture() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

std::exception_ptr BackendError(const absl::Status& status) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                            "weft: " + std::string(status.ToString())));
}

void SetInterruptCheck(bool (*interrupted)()) { interrupt_check.store(interrupted); }

void BeginProcessEnd() { ending_thread.store(std::this_thread::get_id()); }

void StayIfProcessEnds() {
  const std::thread::id ending = ending_thread.load(std::memory_order_relaxed);
  if (ending == std::thread::id() || ending == std::this_thread::get_id()) return;
  if (current_lane != nullptr) return;  // it is joined before the interpreter goes
  for (;;) pause();
}

InterpreterUnlocked::InterpreterUnlocked()
    : thread_(release_lock.load() == nullptr ? nullptr : release_lock.load()()) {}

InterpreterUnlocked::~InterpreterUnlocked() {
  if (thread_ == nullptr) return;
  StayIfProcessEnds();
  retake_lock.load()(thread_);
}

void SetInterpreterLock(void* (*release)(), void (*retake)(void* thread)) {
  retake_lock.store(retake);
  release_lock.store(release);
}

void JoinThread(std::thread& thread) {
  const InterpreterUnlocked unlocked;
  thread.join();
}

bool TransferState::done() const {
  return std::all_of(works.begin(), works.end(), [](const WorkPtr& work) { return work->done(); });
}

int64_t TransferState::start_ns() const {
  int64_t start = INT64_MAX;
  for (const WorkPtr& work : works) start = std::min(start, work->start_ns());
  return start;
}

int64_t TransferState::busy_ns() const {
  int64_t end = 0;
  for (const WorkPtr& work : works) end = std::max(end, work->end_ns());
  return works.empty() ? 0 : std::max<int64_t>(end - start_ns(), 0);
}

absl::Status TransferState::WaitFor(absl::Duration bound) {
  const std::shared_ptr<Endpoint> kept = endpoint.lock();
  bool (*const interrupted)() = interrupt_check.load();
  const auto slice_of = [&](absl::Duration left) {
    return interrupted != nullptr && left > kInterruptSlice ? kInterruptSlice : left;
  };
  // A single work mostly ends within the first slice, for which no clock is read.
  absl::Time deadline = absl::InfiniteFuture();
  bool has_deadline = works.size() > 1 && bound < absl::InfiniteDuration();
  if (has_deadline) deadline = SystemClock().Now() + bound;
  for (const WorkPtr& work : works) {
    absl::Duration left = bound;
    while (!work->done()) {
      if (has_deadline) left = std::max(deadline - SystemClock().Now(), absl::ZeroDuration());
      const absl::Duration slice = slice_of(left);
      absl::Status status = work->Wait(slice);
      if (work->done()) break;
      if (slice == left) {
        return absl::DeadlineExceededError(absl::StrCat(
            "the timeout of ", absl::FormatDuration(bound), " ran out: ", status.message()));
      }
      if (interrupted()) {
        return absl::CancelledError(
            absl::StrCat("the wait was interrupted by a signal: ", status.message()));
      }
      if (!has_deadline && bound < absl::InfiniteDuration()) {
        has_deadline = true;
        deadline = SystemClock().Now() + bound - slice;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status TransferState::WaitAsGroup(std::chrono::milliseconds timeout) {
  absl::Status status =
      WaitFor(timeout > kNoTimeout ? absl::FromChrono(timeout) : absl::InfiniteDuration());
  if (absl::IsDeadlineExceeded(status) && WaitFor(kVerdictGrace).ok()) return absl::OkStatus();
  return status;
}

std::exception_ptr TransferState::Conclude(const char* title, Statistics& statistics) {
  absl::Status status;
  for (const WorkPtr& work : works) status.Update(work->status());
  std::exception_ptr error;
  if (!status.ok()) {
    if (absl::IsDeadlineExceeded(status)) status = Annotate(status, "the timeout ran out");
    error = BackendError(status);
  } else if (deliver) {
    try {
      deliver();
    } catch (...) {
      error = std::current_exception();
    }
  }
  statistics.Count(title, bytes, busy_ns(), error != nullptr);
  return error;
}

// Without a profiler nothing is recorded: a record would copy the inputs and cost a call some
// hundred nanoseconds.
WeftWork::WeftWork(int rank, c10d::OpType type, const char* title,
                   std::optional<at::TensorList> profiled_inputs, std::chrono::milliseconds timeout,
                   std::shared_ptr<Statistics> statistics, std::weak_ptr<FutureThreads> futures)
    : Work(rank, type, profiled_inputs ? title : nullptr,
           profiled_inputs ? std::optional(profiled_inputs->vec()) : std::nullopt),
      title_(title),
      timeout_(timeout),
      statistics_(std::move(statistics)),
      futures_(std::move(futures)) {}

void WeftWork::CheckProcess() const {
  TORCH_CHECK(forks_ == ForkCount(), "weft: this work, ", title_,
              ", belongs to the process that this one was forked from; wait for it there");
}

void WeftWork::Finish() {
  for (const auto& part : parts_) part->Finish();
  decltype(state_->held) held;  // these two go after the mutex, as work.h says
  decltype(state_->deliver) deliver;
  std::lock_guard<std::mutex> lock(finish_mutex_);
  if (finished_) return;
  std::exception_ptr error = state_->Conclude(title_, *statistics_);
  held.swap(state_->held);
  deliver.swap(state_->deliver);
  finished_ = true;
  finish(error);
}

absl::Status WeftWork::WaitFor(absl::Duration bound) {
  const InterpreterUnlocked unlocked;
  WEFT_RETURN_IF_ERROR(state_->WaitFor(bound));
  Finish();
  return absl::OkStatus();
}

int WeftWork::sourceRank() const {
  TORCH_CHECK(!state_->works.empty() && state_->works[0]->done(),
              "weft: the source of a receive that is not completed");
  const int source = state_->works[0]->source().value();
  TORCH_CHECK(source >= 0, "weft: only receives have a source");
  return source;
}

absl::Duration WeftWork::left() const {
  if (timeout_ <= kNoTimeout || state_->works.empty()) return absl::InfiniteDuration();
  const auto gone = absl::Nanoseconds(SystemClock::Nanoseconds() - state_->start_ns());
  return absl::FromChrono(timeout_) + kVerdictGrace - gone;
}

bool WeftWork::wait(std::chrono::milliseconds timeout) {
  CheckProcess();
  const absl::Status status = timeout > kNoTimeout ? state_->WaitFor(absl::FromChrono(timeout))
                                                   : state_->WaitAsGroup(timeout_);
  if (status.ok()) Finish();
  StayIfProcessEnds();
  if (!status.ok()) std::rethrow_exception(BackendError(status));
  if (std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

bool WeftWork::isCompleted() {
  CheckProcess();
  if (!state_->done()) return false;
  Finish();
  return true;
}

bool WeftWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr WeftWork::exception() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

std::vector<at::Tensor> WeftWork::result() {
  TORCH_CHECK(isCompleted(), "weft: the result of a work that is not completed");
  return {results_.begin(), results_.end()};
}

void WeftWork::abort() {
  TORCH_CHECK(false, "weft: one work cannot be aborted alone: abort its group");
}

float WeftWork::getDuration() const {
  TORCH_CHECK(state_->done(), "weft: the duration of a work that is not completed");
  return static_cast<float>(state_->busy_ns()) / 1e6F;
}

void WeftWork::CompleteFuture(c10::ivalue::Future& future) {
  if (!isCompleted()) {
    future.setError(BackendError(absl::DeadlineExceededError(
        absl::StrCat(title_, ": the timeout of ", absl::FormatDuration(absl::FromChrono(timeout_)),
                     " ran out"))));
  } else if (std::exception_ptr error = exception()) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(results().vec()));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> WeftWork::getFuture() {
  CheckProcess();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(future_mutex_);
    if (future_) return future_;
    future = future_ = NewFuture();
  }
  std::shared_ptr<FutureThreads> threads = futures_.lock();
  if (threads == nullptr || isCompleted()) {
    WaitFor(left()).IgnoreError();
    CompleteFuture(*future);
  } else {
    threads->Complete(c10::intrusive_ptr<WeftWork>::reclaim_copy(this), future);
  }
  return future;
}

void WeftWork::AtEnd(std::function<void()> call) {
  c10::intrusive_ptr<c10::ivalue::Future> ended = NewFuture();
  ended->addCallback([call = std::move(call)](c10::ivalue::Future&) { call(); });
  std::shared_ptr<FutureThreads> threads = futures_.lock();
  if (threads == nullptr) {  // its group was shut down: it has ended
    WaitFor(left()).IgnoreError();
    CompleteFuture(*ended);
  } else {
    threads->Complete(c10::intrusive_ptr<WeftWork>::reclaim_copy(this), std::move(ended));
  }
}

// ---- FutureThreads

FutureThreads::FutureThreads()
    : lanes_{std::make_shared<Lane>(absl::InfiniteDuration()),
             std::make_shared<Lane>(kPointToPointSlice)} {}

FutureThreads::~FutureThreads() {
  for (const std::shared_ptr<Lane>& lane : lanes_) {
    std::lock_guard<std::mutex> lock(lane->mutex);
    lane->stopping = true;
    lane->changed.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (!thread.joinable()) continue;
    // A callback may have dropped the last reference to the backend.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      JoinThread(thread);
    }
  }
}

void FutureThreads::Complete(c10::intrusive_ptr<WeftWork> work,
                             c10::intrusive_ptr<c10::ivalue::Future> future) {
  size_t index = c10d::isP2POp(work->retrieveOpType()) ? 1 : 0;
  const std::shared_ptr<Lane>& lane = lanes_[index];
  if (current_lane == lane.get()) {
    work->WaitFor(work->left()).IgnoreError();
    work->CompleteFuture(*future);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(lane->mutex);
    lane->items.push_back({std::move(work), std::move(future)});
    lane->changed.notify_all();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!threads_[index].joinable()) threads_[index] = std::thread(Run, lane);
}

void FutureThreads::Run(std::shared_ptr<Lane> lane) {
  current_lane = lane.get();
  std::unique_lock<std::mutex> lock(lane->mutex);
  for (;;) {
    lane->changed.wait(lock, [&] { return lane->stopping || !lane->items.empty(); });
    if (lane->items.empty()) return;
    // Only this thread takes items out, so that the oldest stays the oldest while it is waited for.
    c10::intrusive_ptr<WeftWork> oldest = lane->items.front().work;
    lock.unlock();
    oldest->WaitFor(std::clamp(oldest->left(), absl::ZeroDuration(), lane->slice)).IgnoreError();
    std::vector<Item> completed;
    lock.lock();
    bool ordered = lane->slice == absl::InfiniteDuration();
    for (auto item = lane->items.begin(); item != lane->items.end();) {
      // CompleteFuture() finishes the work, as that may want the interpreter's lock.
      if (item->work->state()->done() || item->work->left() <= absl::ZeroDuration()) {
        completed.push_back(std::move(*item));
        item = lane->items.erase(item);
      } else if (ordered) {
        break;
      } else {
        ++item;
      }
    }
    lock.unlock();
    oldest.reset();
    for (Item& item : completed) item.work->CompleteFuture(*item.future);
    completed.clear();
    lock.lock();
  }
}

}  // namespace weft::collectives
