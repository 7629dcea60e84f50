// Files in memory, without a name.
#ifndef WEFT_BASE_MEMORY_FILE_H_
#define WEFT_BASE_MEMORY_FILE_H_

#include <sys/mman.h>

#include <cerrno>

#include "base/file_descriptor.h"

namespace weft {

// An empty one that may be sealed; `name` is for /proc. None: errno says why. It is not executable,
// which Linux knows since 6.3, and without which it gives none where vm.memfd_noexec is 2.
inline FileDescriptor MakeMemoryFile(const char* name) {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  FileDescriptor file(memfd_create(name, kFlags | kNoExecSeal));
  if (!file && errno == EINVAL) file = FileDescriptor(memfd_create(name, kFlags));
  return file;
}

}  // namespace weft

#endif  // WEFT_BASE_MEMORY_FILE_H_
