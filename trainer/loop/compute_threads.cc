#include "trainer/loop/compute_threads.h"

#include <omp.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "topology/host/affinity.h"
#include "topology/host/cpu_mask.h"
#include "topology/host/host.h"

namespace weft::train {
namespace {

std::string ToText(const ThreadShare& share) {
  return absl::StrCat(share.cores, " ", share.threads, " ", topology::CpuMaskText(share.allowed));
}

absl::StatusOr<ThreadShare> ParseShare(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  ThreadShare share;
  std::optional<CpuSet> allowed;
  if (words.size() == 3) allowed = topology::ParseCpuMask(words[2]);
  if (!allowed || !absl::SimpleAtoi(words[0], &share.cores) ||
      !absl::SimpleAtoi(words[1], &share.threads)) {
    return absl::DataLossError(absl::StrCat("'", text, "' is no share of a host's cores"));
  }
  share.allowed = *std::move(allowed);
  return share;
}

// On each thread of OpenMP's pool but the calling one: LibTorch and our kernels compute on these.
void BindOthers(const CpuSet& cpus) {
  const auto threads = static_cast<int>(cpus.size());
#pragma omp parallel num_threads(threads)
  {
    const auto thread = static_cast<size_t>(omp_get_thread_num());
    // Where that fails, the thread runs wherever the kernel likes.
    if (thread > 0) BindThread({cpus[thread]}).IgnoreError();
  }
}

}  // namespace

absl::StatusOr<ComputeThreads> ComputeThreads::Bind(const ParallelGroups& groups, int threads) {
  const absl::StatusOr<CpuSet> allowed = AllowedCpus();
  WEFT_RETURN_IF_ERROR(groups.world->Agree(allowed.status()));
  const absl::StatusOr<Host> own = Host::Discover();
  WEFT_RETURN_IF_ERROR(groups.world->Agree(own.status()));
  const ThreadShare mine{*allowed, static_cast<int>(own->cores().size()), threads};
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, groups.world->Gather(ToText(mine)));

  const auto host_of = [&](size_t rank) { return groups.hosts.empty() ? 0 : groups.hosts[rank]; };
  const auto rank = static_cast<size_t>(groups.world->rank());
  std::vector<ThreadShare> here;
  size_t index = 0;
  for (size_t other = 0; other < all.size(); ++other) {
    if (host_of(other) != host_of(rank)) continue;
    if (other == rank) index = here.size();
    WEFT_ASSIGN_OR_RETURN(here.emplace_back(), ParseShare(all[other]));
  }
  ComputeThreads out;
  const absl::StatusOr<CpuSet> cpus = CpusOfThreads(*own, here, index);
  absl::Status why = cpus.status();  // it is not bound
  if (cpus.ok()) {
    BindOthers(*cpus);
    absl::StatusOr<ThreadBinding> binding = ThreadBinding::To(cpus->front());
    why = binding.status();
    if (binding.ok()) {
      out.binding_.emplace(*std::move(binding));
      out.cpu_ = cpus->front();
    }
  }
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> said,
      groups.world->Gather(out.binding_ ? absl::StrJoin(*cpus, ", ")
                                        : absl::StrCat("not bound: ", why.message())));
  std::vector<std::string> ranks;
  for (size_t other = 0; other < all.size(); ++other) {
    if (host_of(other) == host_of(0))
      ranks.push_back(absl::StrCat(said[other], " (rank ", other, ")"));
  }
  out.description_ = absl::StartsWith(said[0], "not bound")
                         ? said[0]
                         : absl::StrCat("bound to CPUs ", absl::StrJoin(ranks, ", "));
  return out;
}

void ComputeThreads::Rebind() {
  if (cpu_ < 0 || binding_) return;
  absl::StatusOr<ThreadBinding> binding = ThreadBinding::To(cpu_);
  if (binding.ok()) binding_.emplace(*std::move(binding));
}

}  // namespace weft::train
