// A host whose memory or processor flips bits: runs a program, and meanwhile flips bits in numbers
// that lie in its memory, without any sign of it.
#ifndef WEFT_TOOLS_FAULT_FLIP_BITS_H_
#define WEFT_TOOLS_FAULT_FLIP_BITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft::fault {

struct FlipOptions {
  std::vector<std::string> command;
  absl::Duration every = absl::Milliseconds(1);  // between two rounds of flips
  int flips = 64;                                // of a round, tried
  uint64_t seed = 1;                             // draws where
};

// Until the program ends; its exit status (128 + the signal that ended it). Flips the highest bit
// of the fraction of 4-byte words that look like a float32 between 1e-5 and 1e2, in the heap and in
// large anonymous mappings; prints how many in the end. kPermissionDenied: the kernel lets no
// parent write its child's memory (kernel.yama.ptrace_scope above 1).
absl::StatusOr<int> FlipBits(const FlipOptions& options);

}  // namespace weft::fault

#endif  // WEFT_TOOLS_FAULT_FLIP_BITS_H_
