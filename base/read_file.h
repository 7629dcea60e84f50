// Whole files of text, as programs read them: bounded, so that a device, a pipe without an end or a
// file that was named by mistake is an error and not the end of the memory.
#ifndef WEFT_BASE_READ_FILE_H_
#define WEFT_BASE_READ_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"

namespace weft {

// Larger than any file that a person writes or a program here makes for a person.
inline constexpr Bytes kReadFileMost = MiB(256);

// What the file holds, or what a pipe or a device gives until its end. Errors name the path: the
// code of errno, also for a folder; ResourceExhausted where there are more than `size_max` bytes.
absl::StatusOr<std::string> ReadFile(const std::string& path, Bytes size_max = kReadFileMost);

// The same up to kReadFileMost, but "-" is standard input.
absl::StatusOr<std::string> ReadInput(const std::string& path);

}  // namespace weft

#endif  // WEFT_BASE_READ_FILE_H_
