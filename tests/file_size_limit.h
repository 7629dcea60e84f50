// As if the disk were full: for as long as it lives, this process cannot write a file beyond so
// many bytes (EFBIG).
#ifndef WEFT_TESTS_FILE_SIZE_LIMIT_H_
#define WEFT_TESTS_FILE_SIZE_LIMIT_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

namespace weft {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit now{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FileSizeLimit() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  sighandler_t handler_;
};

}  // namespace weft

#endif  // WEFT_TESTS_FILE_SIZE_LIMIT_H_
