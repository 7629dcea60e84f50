#include "base/write_file.h"

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft {

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("write ", path));
}

absl::Status WriteOutput(const std::string& path, absl::string_view text) {
  if (path != "-") return WriteFile(path, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "write");
}

}  // namespace weft
