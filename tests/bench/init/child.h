// A program of somebody else's, with pipes to its standard input and from its output.
#ifndef WEFT_TESTS_BENCH_INIT_CHILD_H_
#define WEFT_TESTS_BENCH_INIT_CHILD_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"

namespace weft::init {

// Its standard input is closed, and it is killed, at the end. Used by one thread.
class Child {
 public:
  // `hosts_file`: stands for /etc/nsswitch.conf in the program, where it may be mounted; empty:
  // nothing does. kNotFound: there is no such program.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const std::vector<std::string>& words,
                                                      const std::string& hosts_file);
  ~Child();

  // What follows `beginning` in a line of its output. kUnavailable: it ended before, and its last
  // line was this.
  absl::StatusOr<std::string> Await(absl::string_view beginning, absl::Time deadline);
  bool ended() const;
  double cpu_seconds() const;  // so far; negative: nobody can say

 private:
  Child(pid_t pid, FileDescriptor in, FileDescriptor out)
      : pid_(pid), in_(std::move(in)), out_(std::move(out)) {}

  const pid_t pid_;
  FileDescriptor in_;
  FileDescriptor out_;
};

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_CHILD_H_
