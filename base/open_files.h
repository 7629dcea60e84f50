// How many descriptors this process may have open (RLIMIT_NOFILE).
#ifndef WEFT_BASE_OPEN_FILES_H_
#define WEFT_BASE_OPEN_FILES_H_

#include <cstdint>

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

}  // namespace weft

#endif  // WEFT_BASE_OPEN_FILES_H_
