// How many descriptors this process may have open (RLIMIT_NOFILE).
#ifndef WEFT_BASE_OPEN_FILES_H_
#define WEFT_BASE_OPEN_FILES_H_

#include <cerrno>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

// The soft limit in force; 2^30 where there is none, or a higher one.
int64_t OpenFilesLimit();

// Raises the soft limit to the hard one and returns the limit that is then in force. For Weft's own
// programs, at the beginning of main; never for a library inside of another program, which may call
// select(), which cannot take descriptors of 1024 and above.
int64_t RaiseOpenFilesLimit();

// Lowers the soft limit to `limit` again, for a program that this one is about to become (exec). To
// be called after a fork, too: only a system call.
void RestoreOpenFilesLimit(int64_t limit);

// kResourceExhausted: "DOING: too many open files", with the limit in force and what to do.
absl::Status DescriptorsExhausted(int error_number, absl::string_view doing);
inline bool IsDescriptorExhaustion(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace weft

#endif  // WEFT_BASE_OPEN_FILES_H_
