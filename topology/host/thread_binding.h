// Which CPU each compute thread of a process gets, where the processes of a host compute together,
// and threads that are not to share these.
#ifndef WEFT_TOPOLOGY_HOST_THREAD_BINDING_H_
#define WEFT_TOPOLOGY_HOST_THREAD_BINDING_H_

#include <cstddef>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/host/affinity.h"
#include "topology/host/host.h"

namespace weft {

// What each process of a host tells the others.
struct ThreadShare {
  CpuSet allowed;   // its affinity mask
  int cores = 0;    // that it may use: hyperthreads of one core count once
  int threads = 0;  // that compute
};

// The CPU of each thread of process `index` of `processes`, all those of one job on this host: one
// a core. `own` is the host within the mask of that process.
//
// Where a launcher gave each process CPUs of its own, these are taken. Where all have one mask,
// they share its cores in their order if their threads take all of them; if they leave some, the
// kernel may know better which are idle. FailedPrecondition otherwise, with the reason, for every
// process of the host alike.
absl::StatusOr<CpuSet> CpusOfThreads(const Host& own, absl::Span<const ThreadShare> processes,
                                     size_t index);

// Binds the calling thread to one CPU for as long as it lives. Threads that it starts meanwhile
// inherit that, unless StartUnbound() starts them. One at a time in a process.
class ThreadBinding {
 public:
  static absl::StatusOr<ThreadBinding> To(int cpu);
  ThreadBinding(ThreadBinding&& other) noexcept : before_(std::exchange(other.before_, {})) {}
  ThreadBinding& operator=(ThreadBinding&&) = delete;
  ~ThreadBinding();

 private:
  explicit ThreadBinding(CpuSet before) : before_(std::move(before)) {}
  CpuSet before_;
};

// The CPUs of this process: the calling thread's, or what it had before a ThreadBinding.
absl::StatusOr<CpuSet> ProcessCpus();

// Keeps the calling thread on some of the process's CPUs for as long as it lives, but while a
// ThreadBinding does: compute threads then have a core each, and a thread that could run on few
// cores would take turns with the same compute threads all the time. It may use all of the
// process's CPUs then. Ended by the thread that made it.
class NearBinding {
 public:
  // `cpus`: some of those that the process may use.
  static absl::StatusOr<NearBinding> To(const CpuSet& cpus);
  NearBinding(NearBinding&& other) noexcept : thread_(std::exchange(other.thread_, 0)) {}
  NearBinding& operator=(NearBinding&&) = delete;
  ~NearBinding();

 private:
  explicit NearBinding(int thread) : thread_(thread) {}
  int thread_;  // the kernel's number
};

namespace internal {
void UseUnboundCpus();  // the calling thread: those that the process had before a ThreadBinding
}  // namespace internal

// Starts `work` on a thread of its own, which may use all CPUs of the process although the calling
// thread is bound to one.
template <typename Work>
auto StartUnbound(Work work) {
  return std::async(std::launch::async, [work = std::move(work)]() mutable {
    internal::UseUnboundCpus();
    return work();
  });
}

// The same, where nobody has to wait for the end: a future that is dropped leaves the thread to
// itself.
template <typename Work>
auto StartUnboundDetached(Work work) {
  std::packaged_task<std::invoke_result_t<Work>()> task([work = std::move(work)]() mutable {
    internal::UseUnboundCpus();
    return work();
  });
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

}  // namespace weft

#endif  // WEFT_TOPOLOGY_HOST_THREAD_BINDING_H_
