#include "collectives/c10d/backend.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/c10d/call.h"
#include "collectives/c10d/completion_hook.h"
#include "collectives/c10d/deferred.h"
#include "collectives/c10d/fork.h"
#include "collectives/c10d/group.h"
#include "collectives/c10d/work.h"

namespace weft::collectives {
namespace {

// Keeps the value for ever, where its destructor must not run.
template <typename Value>
void Leak(Value&& value) {
  [[maybe_unused]] auto* kept = new (std::nothrow) Value(std::forward<Value>(value));
}

// c10d wants exceptions.
template <typename Value>
Value OrThrow(absl::StatusOr<Value> value) {
  if (!value.ok()) std::rethrow_exception(BackendError(value.status()));
  return *std::move(value);
}

}  // namespace

// What was called since startCoalescing().
struct WeftBackend::Coalescing {
  std::vector<c10::intrusive_ptr<WeftWork>> works;
};

absl::StatusOr<c10::intrusive_ptr<WeftBackend>> WeftBackend::Create(
    std::shared_ptr<Endpoint> endpoint, absl::string_view name, std::vector<Rank> ranks) {
  WEFT_ASSIGN_OR_RETURN(auto settings, BackendSettings::From(endpoint->settings()));
  return Create(std::move(endpoint), name, std::move(ranks), std::move(settings),
                std::make_shared<CommunicatorNames>());
}

absl::StatusOr<c10::intrusive_ptr<WeftBackend>> WeftBackend::Create(
    std::shared_ptr<Endpoint> endpoint, absl::string_view name, std::vector<Rank> ranks,
    BackendSettings settings, std::shared_ptr<CommunicatorNames> names) {
  WEFT_ASSIGN_OR_RETURN(auto communicator, CreateCommunicator(endpoint, names->Next(name, ranks),
                                                              ranks, settings.group));
  return c10::make_intrusive<WeftBackend>(std::move(endpoint), std::move(communicator), name,
                                          std::move(ranks), std::move(settings), std::move(names));
}

WeftBackend::WeftBackend(std::shared_ptr<Endpoint> endpoint,
                         std::unique_ptr<Communicator> communicator, absl::string_view name,
                         std::vector<Rank> ranks, BackendSettings settings,
                         std::shared_ptr<CommunicatorNames> names)
    : Backend(communicator->rank().value(), communicator->size()),
      name_(name),
      ranks_(std::move(ranks)),
      settings_(std::move(settings)),
      names_(std::move(names)),
      endpoint_of_works_(endpoint),
      forks_(ForkCount()),
      statistics_(std::make_shared<Statistics>()),
      endpoint_(std::move(endpoint)),
      communicator_(std::move(communicator)),
      futures_(std::make_shared<FutureThreads>()),
      futures_of_works_(futures_) {}

WeftBackend::~WeftBackend() { End(); }

void WeftBackend::End() {
  if (!inherited_by_fork()) {
    shutdown();
    return;
  }
  // Their destructors would join threads that are not here and take leave on the parent's sockets.
  Leak(std::move(communicator_));
  Leak(std::move(endpoint_));
  Leak(std::move(futures_));
  Leak(std::move(deferred_));
  Leak(std::move(hook_));
  Leak(std::move(pending_));
}

bool WeftBackend::inherited_by_fork() const { return forks_ != ForkCount(); }

void WeftBackend::CheckProcess() const {
  TORCH_CHECK(!inherited_by_fork(), "weft: group \"", name_,
              "\" belongs to the process that this one was forked from; use it there, or start "
              "workers with spawn or forkserver and make their groups in them");
}

std::shared_ptr<Communicator> WeftBackend::communicator() const {
  StayIfProcessEnds();
  CheckProcess();
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(communicator_ != nullptr, "weft: group \"", name_, "\" was shut down");
  return communicator_;
}

std::shared_ptr<Endpoint> WeftBackend::endpoint() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return endpoint_;
}

Priority WeftBackend::SetPriority(Priority priority) {
  communicator()->SetPriority(priority);
  return priority_.exchange(priority);
}

c10::intrusive_ptr<c10d::Backend::Options> WeftBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>("weft", timeout_.load());
  options->group_name = name_;
  options->group_desc = pg_desc_;
  for (Rank rank : ranks_) {
    options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank.value()));
  }
  return options;
}

c10d::ErrorType WeftBackend::getError() {
  switch (communicator()->status().code()) {
    case absl::StatusCode::kOk:
      return c10d::ErrorType::SUCCESS;
    case absl::StatusCode::kDeadlineExceeded:
      return c10d::ErrorType::TIMEOUT;
    case absl::StatusCode::kUnavailable:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void WeftBackend::abort() {
  Fail(absl::CancelledError(
      absl::StrCat("rank ", rank_, " aborted the group through its PyTorch backend")));
}

void WeftBackend::Fail(const absl::Status& reason) {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Deferred> deferred;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (inherited_by_fork() || communicator_ == nullptr) return;
    communicator = communicator_;
    // Others may have calls in theirs, though this rank has none.
    auto made = MadeDeferred();
    if (made.ok()) deferred = *std::move(made);
  }
  communicator->Abort(reason);
  if (deferred != nullptr) deferred->Abort(reason);
}

void WeftBackend::waitForPendingWorks() {
  CheckProcess();
  const std::shared_ptr<Endpoint> kept = endpoint_of_works_.lock();
  pending_->Await();
  std::shared_ptr<CompletionHook> hook;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    hook = hook_;
  }
  if (hook != nullptr) hook->Await();
}

void WeftBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  auto made = std::make_shared<CompletionHook>(std::move(hook), communicator());
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(hook_ == nullptr, "weft: group \"", name_, "\" has a completion hook already");
  hook_ = std::move(made);
  // By which c10d::Backend knows that there is one; it is not called.
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo>&) {};
  has_hook_.store(true, std::memory_order_relaxed);
}

void WeftBackend::shutdown() {
  if (inherited_by_fork()) return;
  const InterpreterUnlocked unlocked;
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<FutureThreads> futures;
  std::shared_ptr<Deferred> deferred;
  std::shared_ptr<CompletionHook> hook;
  std::unique_ptr<Coalescing> coalescing;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    endpoint.swap(endpoint_);
    communicator.swap(communicator_);
    futures.swap(futures_);
    deferred.swap(deferred_);
    hook.swap(hook_);
    coalescing.swap(coalescing_);
    is_coalescing_.store(false, std::memory_order_relaxed);
    has_hook_.store(false, std::memory_order_relaxed);
  }
  // The communicator ends with its last reference. Calls of other threads have one, and wait.
  if (communicator.use_count() > 1) {
    communicator->Abort(absl::CancelledError(absl::StrCat(
        "rank ", rank_, " of the group shut it down during a call of another thread")));
  }
  communicator.reset();
  deferred.reset();
  futures.reset();
  memory_->Close();
  pending_->AwaitAndDrop();  // after an abort some may be about to end
}

absl::StatusOr<std::shared_ptr<Deferred>> WeftBackend::MadeDeferred() {
  if (deferred_ == nullptr) {
    WEFT_ASSIGN_OR_RETURN(
        auto communicator,
        CreateCommunicator(endpoint_, absl::StrCat(communicator_->name(), "/deferred"), ranks_,
                           settings_.group));
    deferred_ = std::make_shared<Deferred>(std::move(communicator));
  }
  return deferred_;
}

std::shared_ptr<Deferred> WeftBackend::deferred() {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(communicator_ != nullptr, "weft: group \"", name_, "\" was shut down");
  return OrThrow(MadeDeferred());
}

// ---- Groups made of this one

void WeftBackend::Register(const c10::intrusive_ptr<WeftBackend>& group,
                           std::shared_ptr<BackendRegistry> registry) {
  registry->Add(group);
  std::lock_guard<std::mutex> lock(group->mutex_);
  group->registry_ = std::move(registry);
}

c10::intrusive_ptr<WeftBackend> WeftBackend::Registered(
    c10::intrusive_ptr<WeftBackend> group) const {
  std::shared_ptr<BackendRegistry> registry;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    registry = registry_;
  }
  if (registry != nullptr) Register(group, std::move(registry));
  return group;
}

absl::StatusOr<c10::intrusive_ptr<WeftBackend>> WeftBackend::Subgroup(
    absl::string_view name, const std::vector<int64_t>& ranks, BackendSettings settings) const {
  std::shared_ptr<Endpoint> endpoint = this->endpoint();
  if (endpoint == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("group \"", name_, "\" was shut down"));
  }
  std::vector<Rank> chosen;
  for (int64_t rank : ranks) {
    if (rank < 0 || rank >= size_) {
      return absl::InvalidArgumentError(absl::StrCat("group \"", name, "\": rank ", rank,
                                                     " is not one of the ", size_, " of group \"",
                                                     name_, "\""));
    }
    chosen.push_back(ranks_[static_cast<size_t>(rank)]);
  }
  WEFT_ASSIGN_OR_RETURN(auto group, Create(std::move(endpoint), name, std::move(chosen),
                                           std::move(settings), names_));
  group->setTimeout(timeout_.load());
  return group;
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::split(const c10::intrusive_ptr<c10d::Store>&,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<Options>& options) {
  CheckProcess();
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
  TORCH_CHECK(options != nullptr && !options->group_name.empty(),
              "weft split: the new group needs a name (options.group_name)");
  auto group = OrThrow(Subgroup(options->group_name, {ranks.begin(), ranks.end()},
                                settings_.WithTimeout(options->timeout)));
  if (options->timeout > kNoTimeout) group->setTimeout(options->timeout);
  return Registered(std::move(group));
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const c10::intrusive_ptr<Options>& options,
                                                     const int& rank, const int& size) {
  CheckProcess();
  std::shared_ptr<Endpoint> endpoint = this->endpoint();
  TORCH_CHECK(endpoint != nullptr, "weft merge: group \"", name_, "\" was shut down");
  GroupOptions group;
  group.store = store;
  group.rank = rank;
  group.size = size;
  TORCH_CHECK(options != nullptr, "weft merge: the merged group needs options");
  group.name = options->group_name;
  group.timeout = options->timeout;
  group.settings = endpoint->settings();
  return Registered(OrThrow(JoinGroup(std::move(group))));
}

c10::intrusive_ptr<c10d::Backend> WeftBackend::shrink(const std::vector<int64_t>& excluded,
                                                      int flags,
                                                      const c10::intrusive_ptr<Options>& options) {
  TORCH_CHECK(flags == kShrinkDefault || flags == kShrinkAbort, "weft shrink: flags are ", flags,
              "; right are ", kShrinkDefault, " (SHRINK_DEFAULT) and ", kShrinkAbort,
              " (SHRINK_ABORT)");
  std::vector<GroupRank> out;
  std::vector<Rank> kept;
  for (int64_t rank : excluded) {
    TORCH_CHECK(rank >= 0 && rank < size_ && rank != rank_, "weft shrink: rank ", rank,
                " cannot be excluded by rank ", rank_, " from a group of ", size_);
    out.emplace_back(static_cast<int>(rank));
  }
  for (int rank = 0; rank < size_; ++rank) {
    const bool leaves = std::find(out.begin(), out.end(), GroupRank(rank)) != out.end();
    if (!leaves) kept.push_back(ranks_[static_cast<size_t>(rank)]);
  }
  std::string name = options == nullptr ? "" : options->group_name;
  if (name.empty()) {
    std::lock_guard<std::mutex> lock(mutex_);
    name = absl::StrCat(name_, "/shrunk_", ++shrunk_);
  }
  const std::shared_ptr<Endpoint> endpoint = this->endpoint();
  const std::shared_ptr<Communicator> whole = communicator();
  if (flags == kShrinkAbort) {
    Fail(absl::CancelledError(
        absl::StrCat("rank ", rank_, " shrinks the group, with SHRINK_ABORT")));
  }
  auto group = OrThrow(whole->Shrink(out, names_->Next(name, kept)));
  auto backend = c10::make_intrusive<WeftBackend>(endpoint, std::move(group), name, std::move(kept),
                                                  settings_, names_);
  const bool has_timeout = options != nullptr && options->timeout > kNoTimeout;
  backend->setTimeout(has_timeout ? options->timeout : timeout_.load());
  return Registered(std::move(backend));
}

at::Tensor WeftBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(options.device().is_cpu(), "weft: memory of ", options.device(),
              " was asked for; this backend has the host's");
  const size_t bytes = static_cast<size_t>(size) * options.dtype().itemsize();
  std::shared_ptr<Endpoint> endpoint = this->endpoint();
  TORCH_CHECK(endpoint != nullptr, "weft allocateTensor: group \"", name_, "\" was shut down");
  std::shared_ptr<std::byte> memory =
      memory_->Take(bytes, [&endpoint](size_t size) { return endpoint->Allocate(size); });
  TORCH_CHECK(memory != nullptr, "weft: no memory for a tensor of ", bytes, " bytes");
  std::byte* data = memory.get();
  return at::from_blob(
      data, {size}, [memory = std::move(memory)](void*) mutable { memory.reset(); }, options);
}

// ---- Calls

WeftBackend::WorkHandle WeftBackend::Start(Call& call, bool is_async, at::TensorList results) {
  uint64_t sequence = 0;
  if (!c10d::isP2POp(call.type())) sequence = ++sequence_;
  pending_->DropDone();
  const bool is_coalescing = is_coalescing_.load(std::memory_order_relaxed);
  const bool has_hook = has_hook_.load(std::memory_order_relaxed);
  if (!is_async && !is_coalescing && !has_hook && !call.is_profiled()) {
    Finish(call);
    return nullptr;
  }
  c10::intrusive_ptr<WeftWork> work = call.TakeWork(results);
  work->set_sequence(sequence);
  pending_->Keep(work->state());
  if (has_hook) {
    std::shared_ptr<CompletionHook> hook;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      hook = hook_;
    }
    if (hook != nullptr) hook->Follow(*work);
  }
  if (is_coalescing) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (coalescing_ != nullptr) {
      coalescing_->works.push_back(work);
      return work;
    }
  }
  if (is_async) return work;
  work->wait(kNoTimeout);
  return nullptr;
}

void WeftBackend::Finish(Call& call) {
  const absl::Status status = call.state().WaitAsGroup(call.timeout());
  std::exception_ptr error;
  if (status.ok()) {
    error = call.state().Conclude(call.title(), *statistics_);
  } else {
    error = BackendError(status);
    pending_->Keep(std::make_shared<TransferState>(std::exchange(call.state(), {})));
  }
  call.LetGo();
  StayIfProcessEnds();
  if (error != nullptr) std::rethrow_exception(error);
}

void WeftBackend::startCoalescing() {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(coalescing_ == nullptr, "weft: coalescing has been started already");
  coalescing_ = std::make_unique<Coalescing>();
  is_coalescing_.store(true, std::memory_order_relaxed);
}

WeftBackend::WorkHandle WeftBackend::endCoalescing() {
  std::unique_ptr<Coalescing> coalescing;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    coalescing.swap(coalescing_);
    is_coalescing_.store(false, std::memory_order_relaxed);
  }
  TORCH_CHECK(coalescing != nullptr, "weft: coalescing was not started");
  Call call(*this, c10d::OpType::COALESCED, "weft:coalesced", c10d::kUnsetTimeout, {}, Traffic());
  std::vector<at::Tensor> results;
  for (const auto& work : coalescing->works) {
    for (const WorkPtr& part : work->state()->works) call.Add(part);
    results.insert(results.end(), work->results().begin(), work->results().end());
  }
  // A work that has moved everything may have failed to copy what was staged.
  call.AtEnd([parts = coalescing->works] {
    for (const auto& part : parts) {
      if (std::exception_ptr error = part->exception()) std::rethrow_exception(error);
    }
  });
  c10::intrusive_ptr<WeftWork> whole = call.TakeWork(results);
  whole->set_parts(std::move(coalescing->works));
  return whole;
}

}  // namespace weft::collectives
