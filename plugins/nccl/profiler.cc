#include "plugins/nccl/profiler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/settings.h"
#include "plugins/nccl/job_place.h"
#include "plugins/nccl/log.h"
#include "plugins/nccl/thread_without_signals.h"

namespace weft::nccl {
namespace {

constexpr auto kSamplePeriod = std::chrono::milliseconds(100);
// For the parts of a communicator's last calls to end, whose threads may serve others too.
constexpr int kCloseTries = 50;

// The user's name, of which there may be several, and what tells them apart; short enough for
// "nccl NAME" to be a name in the ring. No spaces: it is a word of a line.
std::string GroupName(const ProfiledCommunicator& about) {
  constexpr size_t kUserBytes = 16;
  std::string name;
  for (const char* c = about.name; c != nullptr && *c != '\0' && name.size() < kUserBytes; ++c) {
    name += *c > ' ' && *c < 127 ? *c : '_';
  }
  return absl::StrFormat("%s-%08x", name.empty() ? "nccl" : name,
                         static_cast<uint32_t>(about.id ^ about.id >> 32));
}

int64_t Now() { return SystemClock::Nanoseconds(); }

}  // namespace

Profiler& Profiler::OfProcess() {
  // Never deleted: NCCL's threads may outlive static objects.
  static Profiler* const profiler = new Profiler;
  struct Guard {
    ~Guard() { profiler->End(); }
  };
  static const Guard guard;
  return *profiler;
}

// ---- Communicators

// Reads the settings for the first of several communicators at a time.
bool Profiler::Begin() {
  if (owner_pid_ !=
      static_cast<int>(getpid())) {  // a child of fork: the ring and the sampler are its parent's
    ring_.Forget();
    static_cast<void>(sampler_.release());
    open_ = 0;
    owner_pid_ = static_cast<int>(getpid());
  }
  if (open_ > 0) return true;
  Settings settings(LibrarySettings());
  if (absl::Status status = settings.SetFromEnvironment(/*strict=*/false); !status.ok()) {
    LogWarning(absl::StrCat("profiler: ", status.message(), "; nothing is recorded"));
    return false;
  }
  const std::string& mode = settings.Text("nccl.profiler");
  if (mode == "off" || !settings.Bool("records.enabled")) return false;
  // NCCL finds a profiler in the net plugin's library, too, where nobody has asked for one.
  kernels_ =
      mode == "kernels" || (mode == "auto" && std::getenv("NCCL_PROFILER_PLUGIN") != nullptr);
  ring_tried_ = false;
  return true;
}

void* Profiler::Open(const ProfiledCommunicator* about) try {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!Begin()) return nullptr;
  const auto taken = communicators_.Take();
  if (!taken.has_value()) {
    ring_.Drop();
    return nullptr;
  }
  Communicator& communicator = communicators_[taken->first];
  communicator.introduced = communicator.muted = false;
  communicator.sequence = 0;
  communicator.rank = -1;
  communicator.ranks = 0;
  communicator.group = 0;
  flows_.SetName(taken->first, 0);
  communicator.id = 0;
  ++open_;
  if (about != nullptr) Describe(taken->first, *about);
  return EventHandle{EventKind::kCommunicator, 0, taken->first, taken->second}.ToPointer();
} catch (const std::exception& error) {
  LogWarning(absl::StrCat("profiler: ", error.what()));
  return nullptr;
}

void Profiler::Introduce(void* context, const ProfiledCommunicator& about) try {
  Communicator* communicator = communicators_.Find(EventHandle::Of(context));
  if (communicator == nullptr) return;
  if (communicator->introduced.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!communicator->introduced) Describe(EventHandle::Of(context).index, about);
} catch (const std::exception& error) {
  LogWarning(absl::StrCat("profiler: ", error.what()));
}

void Profiler::OpenRing(const ProfiledCommunicator& about) {
  ring_tried_ = true;
  Settings settings(LibrarySettings());
  if (!settings.SetFromEnvironment(/*strict=*/false).ok()) return;
  const JobPlace place = PlaceFromEnvironment();
  rank_ = place.rank.value_or(std::max(about.rank, 0));
  world_size_ = place.rank.has_value() ? place.world_size : std::max(about.ranks, rank_ + 1);
  const std::string job = place.job.empty() ? absl::StrFormat("nccl-%016x", about.id) : place.job;
  // Beside a ring of the job that the process may have from another library.
  std::unique_ptr<Records> records =
      Records::FromSettings(settings, absl::StrCat(job, "/nccl"), rank_, world_size_);
  if (records == nullptr) return;
  calls_.WriteNames(*records);
  LogInfo(
      absl::StrCat("profiler: records of job ", job, ", rank ", rank_, ", in ", records->path()));
  ring_.Open(std::move(records));
  StartSampler();
}

// A communicator of all ranks in their order numbers its peers as the job does; which ranks those
// of another are readers find by the lines of all its members.
void Profiler::Describe(uint16_t index, const ProfiledCommunicator& about) {
  Communicator& communicator = communicators_[index];
  if (!ring_tried_) OpenRing(about);
  communicator.id = about.id;
  communicator.rank = about.rank;
  communicator.ranks = about.ranks;
  for (size_t i = 0; i < kCommunicatorsMax; ++i) {
    const Communicator& other = communicators_[i];
    if (&other == &communicator || !SlotState{other.state}.busy() || !other.introduced) continue;
    if (other.id != about.id || other.rank == about.rank || other.muted) continue;
    LogInfo(absl::StrCat("profiler: this process holds ranks ", other.rank.load(), " and ",
                         about.rank, " of one communicator; only the first is recorded"));
    communicator.muted = true;
    break;
  }
  if (Records* records = ring_.records(); records != nullptr && !communicator.muted) {
    const std::string group = GroupName(about);
    const bool is_world = about.ranks == world_size_ && about.rank == rank_;
    communicator.group = records->Name(group);
    flows_.SetName(index, records->Name(absl::StrCat("nccl ", group)));
    const std::string ranks = world_size_ > 1 ? absl::StrCat("0-", world_size_ - 1) : "0";
    records->Say(is_world ? absl::StrCat("group ", group, " ", ranks)
                          : absl::StrCat("member ", group, " ", about.rank, " ", about.ranks));
  }
  communicator.introduced.store(true, std::memory_order_release);
}

void Profiler::Close(void* context) {
  const EventHandle handle = EventHandle::Of(context);
  if (handle.kind != EventKind::kCommunicator) return;
  for (int tries = 0; tries < kCloseTries; ++tries) {
    if (!calls_.HasPartsUnderWay(handle.index)) break;
    usleep(1000);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Communicator* communicator = communicators_.Find(handle);
  if (communicator == nullptr) return;
  const int64_t now_ns = Now();
  calls_.Abandon(handle.index, now_ns);
  flows_.Abandon(handle.index, now_ns);
  uint64_t bits = communicator->state;
  communicator->state = bits & ~SlotState::kBusy;
  if (--open_ > 0) return;
  StopSampler();
  ring_.Close();
}

void Profiler::End() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || owner_pid_ != static_cast<int>(getpid()) || open_ == 0) return;
  StopSampler();
  ring_.Close();
}

// ---- Events

Profiler::Communicator* Profiler::Recorded(const EventHandle& context) {
  if (context.kind != EventKind::kCommunicator) return nullptr;
  Communicator* const communicator = communicators_.Find(context);
  if (communicator == nullptr || !ring_.is_open() || communicator->muted) return nullptr;
  return communicator;
}

void* Profiler::StartCall(void* context, const ProfiledCall& call) {
  const EventHandle owner = EventHandle::Of(context);
  Communicator* const communicator = Recorded(owner);
  if (communicator == nullptr || !communicator->introduced.load(std::memory_order_acquire)) {
    return nullptr;
  }
  const ProfiledCalls::Caller caller{.communicator = owner.index,
                                     .ranks = communicator->ranks,
                                     .group = communicator->group,
                                     .sequence = communicator->sequence};
  return calls_.Start(caller, call, kernels() ? std::max(call.channels, 0) : 0);
}

void* Profiler::StartOperation(void* context, void* call, int pid, int peer, bool sends) {
  // Another process, whose GPU uses a NIC near this one's (PXN), shows its own calls.
  if (pid != owner_pid_) return nullptr;
  const EventHandle owner = EventHandle::Of(context);
  if (Recorded(owner) == nullptr) return nullptr;
  return flows_.StartOperation(owner.index, call, peer, sends);
}

void Profiler::Stop(void* event) {
  const EventHandle handle = EventHandle::Of(event);
  switch (handle.kind) {
    case EventKind::kCall:
      return calls_.Stop(handle);
    case EventKind::kKernel:
      return calls_.StopKernel(handle);
    case EventKind::kOperation:
      return flows_.StopOperation(handle);
    case EventKind::kStep:
      return flows_.StopStep(handle);
    case EventKind::kNone:
    case EventKind::kGroup:
    case EventKind::kCommunicator:
    case EventKind::kNet:
      return;
  }
}

// ---- The sampler

void Profiler::StartSampler() try {
  stop_ = false;
  sampler_ = std::make_unique<std::thread>(ThreadWithoutSignals([this] {
    std::unique_lock<std::mutex> lock(sample_mutex_);
    while (!wake_.wait_for(lock, kSamplePeriod, [this] { return stop_; })) {
      lock.unlock();
      Tick(Now());
      lock.lock();
    }
  }));
} catch (const std::exception& error) {
  LogWarning(absl::StrCat("profiler: no thread that samples flows: ", error.what()));
}

void Profiler::StopSampler() {
  if (sampler_ == nullptr) return;
  {
    std::lock_guard<std::mutex> lock(sample_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  sampler_->join();
  sampler_.reset();
}

void Profiler::Tick(int64_t now_ns) {
  calls_.Settle(now_ns);
  flows_.Sample(now_ns);
  ring_.Pulse(now_ns);
}

}  // namespace weft::nccl
