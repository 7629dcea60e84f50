// Memory that a transport keeps registered for itself: whole pages with nothing else on them,
// zeroed.
//
// After ibv_fork_init() (ibverbs_nic.cc) a forked child has no registered pages on kernels before
// 5.13: libibverbs marks them MADV_DONTFORK. If they were the heap's, the child, such as a worker
// of PyTorch's DataLoader, would crash at the next object on the same page.
#ifndef WEFT_NET_VERBS_OWN_PAGES_H_
#define WEFT_NET_VERBS_OWN_PAGES_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {

struct UnmapPages {
  size_t bytes = 0;
  void operator()(std::byte* at) const { munmap(at, bytes); }
};
using OwnPages = std::unique_ptr<std::byte[], UnmapPages>;  // NOLINT: their number is not constant

inline absl::StatusOr<OwnPages> MapOwnPages(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", bytes, " bytes of memory"));
  return OwnPages(static_cast<std::byte*>(at), UnmapPages{bytes});
}

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_OWN_PAGES_H_
