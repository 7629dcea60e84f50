// Room for files that are mapped.
#ifndef WEFT_BASE_FILE_ROOM_H_
#define WEFT_BASE_FILE_ROOM_H_

#include <fcntl.h>
#include <signal.h>

#include <cstddef>

namespace weft {

// Takes the room of the file's first `bytes` bytes, for a file system that is full is an error here
// and would be the signal SIGBUS once they are written to. 0 or errno. As posix_fallocate(), but
// signals, as those of a profiler's timer, do not end it early.
inline int TakeRoom(int file, size_t bytes) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace weft

#endif  // WEFT_BASE_FILE_ROOM_H_
