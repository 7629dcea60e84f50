// Processes of weft-init's own: forked, with a socket to speak through, line by line. Forked before
// anything starts a thread: a fork copies no other.
#ifndef WEFT_TOOLS_INIT_PROCESS_H_
#define WEFT_TOOLS_INIT_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "net/transport.h"

namespace weft::init {

class Process {
 public:
  // `body` runs in the new process, with its end of the socket, and the process ends with it.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const std::function<void(int)>& body);
  ~Process();  // ends it, if need be, and reaps it

  void Tell(const std::string& what) const;
  // A whole line, or nothing yet.
  absl::StatusOr<std::string> Read();
  int fd() const { return socket_.get(); }

 private:
  Process(pid_t pid, FileDescriptor socket) : pid_(pid), socket_(std::move(socket)) {}
  const pid_t pid_;
  FileDescriptor socket_;
  std::string line_;
};
using Processes = std::vector<std::unique_ptr<Process>>;

// Until every process has said `word`; anything else is an error, which is returned. `tick` is
// called a few times a second.
absl::Status AwaitAll(const Processes& processes, absl::string_view word, absl::Duration timeout,
                      const std::function<void()>& tick);

// Runs `run` in as many processes as there are ranks, each with the address of a store that this
// process serves them, and waits until all are through; the first error is returned.
absl::Status RunRanks(int ranks, const net::JobSecret& secret, absl::Duration timeout,
                      const std::function<absl::Status(int rank, const std::string& store)>& run);

// What a process says: a line.
void Say(int socket, const std::string& line);
void SayOutcome(int socket, const absl::Status& status);  // "ok", or the error
// Waits for the one thing that Tell() sends, runs, says what came of it, and stays until all are
// through.
void RunWhenTold(int socket, const std::function<absl::Status(const std::string& told)>& run);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_PROCESS_H_
