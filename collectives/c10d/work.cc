#include "collectives/c10d/work.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace weft::collectives {
namespace {

// Short enough for a peer that waits for the answer, long enough to cost nothing.
constexpr absl::Duration kPointToPointSlice = absl::Milliseconds(2);

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

bool TransferState::done() const {
  return std::all_of(works.begin(), works.end(), [](const WorkPtr& work) { return work->done(); });
}

WeftWork::WeftWork(int rank, Details details, std::shared_ptr<TransferState> state,
                   std::weak_ptr<FutureThreads> futures)
    : Work(rank, details.type, details.title),
      details_(std::move(details)),
      state_(std::move(state)),
      futures_(std::move(futures)) {}

void WeftWork::Finish() {
  std::lock_guard<std::mutex> lock(finish_mutex_);
  if (finished_) return;
  absl::Status status;
  for (const WorkPtr& work : state_->works) status.Update(work->status());
  std::exception_ptr error;
  if (status.ok()) {
    try {
      if (state_->deliver) state_->deliver();
    } catch (...) {
      error = std::current_exception();
    }
  } else {
    error = BackendError(status);
  }
  state_->deliver = nullptr;
  state_->held.clear();
  finished_ = true;
  finish(error);
}

absl::Status WeftWork::WaitFor(absl::Duration bound) {
  absl::Time deadline =
      bound == absl::InfiniteDuration() ? absl::InfiniteFuture() : absl::Now() + bound;
  for (const WorkPtr& work : state_->works) {
    if (work->done()) continue;
    absl::Duration left = deadline == absl::InfiniteFuture()
                              ? absl::InfiniteDuration()
                              : std::max(deadline - absl::Now(), absl::ZeroDuration());
    absl::Status status = work->Wait(left);
    if (!work->done()) return status;
  }
  Finish();
  return absl::OkStatus();
}

bool WeftWork::wait(std::chrono::milliseconds timeout) {
  if (timeout <= kNoTimeout) timeout = details_.timeout;
  absl::Status status =
      WaitFor(timeout > kNoTimeout ? absl::FromChrono(timeout) : absl::InfiniteDuration());
  if (!status.ok()) std::rethrow_exception(BackendError(status));
  if (std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

bool WeftWork::isCompleted() {
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
  return details_.results;
}

void WeftWork::abort() {
  TORCH_CHECK(false, "weft: one work cannot be aborted alone: abort its group");
}

float WeftWork::getDuration() const {
  int64_t start = INT64_MAX, end = 0;
  for (const WorkPtr& work : state_->works) {
    TORCH_CHECK(work->done(), "weft: the duration of a work that is not completed");
    start = std::min(start, work->start_ns());
    end = std::max(end, work->end_ns());
  }
  return start < end ? static_cast<float>(end - start) / 1e6F : 0.0F;
}

void WeftWork::CompleteFuture(c10::ivalue::Future& future) {
  if (std::exception_ptr error = exception()) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(details_.results));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> WeftWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(future_mutex_);
    if (future_) return future_;
    future = future_ = NewFuture();
  }
  std::shared_ptr<FutureThreads> threads = futures_.lock();
  if (threads == nullptr || isCompleted()) {
    if (!WaitFor(absl::InfiniteDuration()).ok()) Finish();
    CompleteFuture(*future);
  } else {
    threads->Complete(c10::intrusive_ptr<WeftWork>::reclaim_copy(this), future);
  }
  return future;
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
      thread.join();
    }
  }
}

void FutureThreads::Complete(c10::intrusive_ptr<WeftWork> work,
                             c10::intrusive_ptr<c10::ivalue::Future> future) {
  size_t index = c10d::isP2POp(work->retrieveOpType()) ? 1 : 0;
  const std::shared_ptr<Lane>& lane = lanes_[index];
  if (current_lane == lane.get()) {
    if (!work->WaitFor(absl::InfiniteDuration()).ok()) work->Finish();
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
    absl::Status in_time = oldest->WaitFor(lane->slice);
    std::vector<Item> completed;
    lock.lock();
    bool ordered = lane->slice == absl::InfiniteDuration();
    for (auto item = lane->items.begin(); item != lane->items.end();) {
      if (item->work->isCompleted()) {
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
