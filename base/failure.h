// What a failure concerns, as data that an absl::Status carries beside its code and message, from
// the level that saw it to the last line of the program. Whoever decides what to do next (recovery,
// a driver) reads this, never the message.
//
//   request     one operation: a deadline, a mismatch of calls; others may go on
//   connection  the links between two processes
//   path        one way through the network between them
//   device      a NIC or another device of this host
//   process     a process that ended or was replaced
//
// Pure functions; thread-safe.
#ifndef WEFT_BASE_FAILURE_H_
#define WEFT_BASE_FAILURE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

enum class FailureScope : uint8_t { kUnknown, kRequest, kConnection, kPath, kDevice, kProcess };
const char* ToString(FailureScope scope);  // "unknown", "request", ...

struct Failure {
  FailureScope scope = FailureScope::kUnknown;
  int rank = -1;       // of the job, whom it concerns; -1: nobody in particular
  std::string device;  // "mlx5_0"
  std::string path;    // "10.0.1.2:49152"

  bool operator==(const Failure&) const = default;
};

// Adds what `status` does not carry yet: what a lower level has said stays. An OK status stays so.
absl::Status WithFailure(absl::Status status, const Failure& failure);
// What the status carries; kUnknown and nothing else where it carries nothing.
Failure FailureOf(const absl::Status& status);

// "process rank=2 device=mlx5_0": the scope, then what is known. Blanks in names become '_'.
std::string ToText(const Failure& failure);
// The inverse; what is no such text, or has more than 256 characters, is kUnknown.
Failure ParseFailure(absl::string_view text);

// For a program's last line: "<message> [process rank=2]"; the message alone where nothing is
// known.
std::string DescribeFailure(const absl::Status& status);

}  // namespace weft

#endif  // WEFT_BASE_FAILURE_H_
