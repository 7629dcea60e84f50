#include "topology/host/thread_binding.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft {
namespace {

std::mutex unbound_mutex;
CpuSet& Unbound() {  // empty: no thread is bound
  static auto* const cpus = new CpuSet;
  return *cpus;
}
// By thread: the CPUs of its NearBinding. With unbound_mutex.
std::map<int, CpuSet>& NearThreads() {
  static auto* const threads = new std::map<int, CpuSet>;
  return *threads;
}

bool Overlap(const CpuSet& a, const CpuSet& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](int cpu) { return std::binary_search(b.begin(), b.end(), cpu); });
}

// The first of this process's cores among those of `processes`, all with one mask; -1: each has
// CPUs of its own.
absl::StatusOr<int> FirstCore(absl::Span<const ThreadShare> processes, size_t index) {
  bool are_equal = true, are_apart = true;
  int before = 0, threads = 0;
  for (size_t i = 0; i < processes.size(); ++i) {
    are_equal = are_equal && processes[i].allowed == processes[0].allowed;
    for (size_t j = 0; j < i; ++j) {
      are_apart = are_apart && !Overlap(processes[i].allowed, processes[j].allowed);
    }
    if (i < index) before += processes[i].threads;
    threads += processes[i].threads;
  }
  if (are_apart && processes.size() > 1) {
    for (const ThreadShare& one : processes) {
      if (one.threads <= one.cores) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("a process has ", one.threads, " threads and ", one.cores, " cores"));
    }
    return -1;
  }
  if (!are_equal) return absl::FailedPreconditionError("processes share some of their CPUs");
  if (threads == processes[0].cores) return before;
  return absl::FailedPreconditionError(absl::StrCat("the processes of this host have ", threads,
                                                    " threads and ", processes[0].cores, " cores"));
}

}  // namespace

absl::StatusOr<CpuSet> CpusOfThreads(const Host& own, absl::Span<const ThreadShare> processes,
                                     size_t index) {
  WEFT_ASSIGN_OR_RETURN(const int first, FirstCore(processes, index));
  CpuSet cpus;
  const int begin = std::max(first, 0), end = begin + processes[index].threads;
  for (int core = begin; core < end; ++core) {
    cpus.push_back(own.cores()[static_cast<size_t>(core)].cpus.front());
  }
  return cpus;
}

absl::StatusOr<ThreadBinding> ThreadBinding::To(int cpu) {
  WEFT_ASSIGN_OR_RETURN(CpuSet before, AllowedCpus());
  WEFT_RETURN_IF_ERROR(BindThread({cpu}));
  std::lock_guard<std::mutex> lock(unbound_mutex);
  Unbound() = before;
  for (const auto& [thread, _] : NearThreads()) BindThread(thread, before).IgnoreError();
  return ThreadBinding(std::move(before));
}

ThreadBinding::~ThreadBinding() {
  if (before_.empty()) return;
  BindThread(before_).IgnoreError();
  std::lock_guard<std::mutex> lock(unbound_mutex);
  Unbound().clear();
  for (const auto& [thread, cpus] : NearThreads()) BindThread(thread, cpus).IgnoreError();
}

absl::StatusOr<CpuSet> ProcessCpus() {
  {
    std::lock_guard<std::mutex> lock(unbound_mutex);
    if (!Unbound().empty()) return Unbound();
  }
  return AllowedCpus();
}

absl::StatusOr<NearBinding> NearBinding::To(const CpuSet& cpus) {
  const int thread = gettid();
  std::lock_guard<std::mutex> lock(unbound_mutex);
  WEFT_RETURN_IF_ERROR(BindThread(thread, Unbound().empty() ? cpus : Unbound()));
  NearThreads()[thread] = cpus;
  return NearBinding(thread);
}

NearBinding::~NearBinding() {
  if (thread_ == 0) return;
  std::lock_guard<std::mutex> lock(unbound_mutex);
  NearThreads().erase(thread_);
}

void internal::UseUnboundCpus() {
  CpuSet cpus;
  {
    std::lock_guard<std::mutex> lock(unbound_mutex);
    cpus = Unbound();
  }
  // Where that fails, the thread goes on at its starter's CPU.
  if (!cpus.empty()) BindThread(cpus).IgnoreError();
}

}  // namespace weft
