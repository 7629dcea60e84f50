// Whole files of text, as programs write them.
#ifndef WEFT_BASE_WRITE_FILE_H_
#define WEFT_BASE_WRITE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

// Replaces the file, at once: whoever reads it has the text before or this one, and it stays as it
// was where this one cannot be written whole. A process that is killed while it writes leaves
// nothing beside the file; on file systems without files that have no name (NFS), a draft,
// PATH.new-PID. Devices, pipes, links, files of several names, and files in a folder that may not
// be written, are written in place. Errors: the code of errno, with the path.
absl::Status WriteFile(const std::string& path, absl::string_view text);

// Writes the file, at once, unless there is one of that name: that stays, and is no error.
absl::Status WriteNewFile(const std::string& path, absl::string_view text);

// As WriteFile(), but "-" is standard output.
absl::Status WriteOutput(const std::string& path, absl::string_view text);

// Whether WriteFile() can write the file, for a program whose result takes long to compute: it asks
// before it begins. A file that is there is not touched, a missing one is not there afterwards, and
// pipes and devices are not opened. "-", standard output, and "", no file, are fine. Errors: as
// those of WriteFile(); a disk that fills up meanwhile is still an error of writing.
absl::Status CheckOutput(const std::string& path);

}  // namespace weft

#endif  // WEFT_BASE_WRITE_FILE_H_
