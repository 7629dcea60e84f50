// A spare process of a job: it has loaded what its program needs, and waits for the place of a rank
// that has died, so that what is started anew need not load it again.
//
// The launcher starts it with WEFT_SPARE=1 in its environment, without RANK, and with a pipe as its
// standard input. When a place is there, what a rank of that place would have in its environment
// beside what the spare has already comes through that pipe, as "NAME=value\0" each, and "\0" at
// the end. The launcher's end without a place is the spare's too.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_WARM_PROCESS_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_WARM_PROCESS_H_

#include <map>
#include <string>

#include "absl/status/status.h"

namespace weft::collectives {

inline constexpr char kWarmVariable[] = "WEFT_SPARE";

// Whether this process is one that has no place yet.
bool IsWarmProcess();

// In a spare process: waits for its place, however long that takes, and sets the environment that
// goes with it; standard input is /dev/null then. At once where this is none. kCancelled: there
// will be no place; kDataLoss: what came is no place. Before the process reads its environment, and
// while it has one thread that does.
absl::Status AwaitPlace();

// In the launcher: gives a place to the spare process that reads from `pipe`, which does not block.
// kUnavailable: the process does not take it.
absl::Status WritePlace(int pipe, const std::map<std::string, std::string>& variables);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_WARM_PROCESS_H_
