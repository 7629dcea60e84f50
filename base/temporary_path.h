// Where temporary files and folders lie.
#ifndef WEFT_BASE_TEMPORARY_PATH_H_
#define WEFT_BASE_TEMPORARY_PATH_H_

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace weft {

// The template of a path for mkostemp() or mkdtemp(), "/tmp/NAME-XXXXXX". An error, errno's: TMPDIR
// names no folder.
inline absl::StatusOr<std::string> TemporaryPath(absl::string_view name) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) return ErrnoStatus(error.value(), "find the folder for temporary files (TMPDIR)");
  return (folder / (std::string(name) + "-XXXXXX")).string();
}

}  // namespace weft

#endif  // WEFT_BASE_TEMPORARY_PATH_H_
